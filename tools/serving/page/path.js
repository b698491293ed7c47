// How the token at the chosen place came to be, as one drawing: from the embedding through every layer to the
// draw, with the model's own numbers. It can be played, stopped and stepped.

import { byId, clicks, code, el, percent } from "./dom.js";
import { attention, lens, placeAt, places } from "./looked.js";
import { derived, effect, state } from "./reactive.js";
import { at, head, settings, text, view } from "./store.js";

const REST = 1100; // milliseconds at each step

/** @typedef {{name: string, size: number, guess: [string, number], told: any[], look?: () => void}} Step
 * size: the norm of the stream; guess: what the head would say there; look: shows more of it */

const path = derived(steps), step = state(0), playing = state(false);
let timer = 0;

clicks(byId("play"), () => { playing.value = !playing.peek(); });
clicks(byId("back"), () => stop(step.peek() - 1));
clicks(byId("step"), () => stop(step.peek() + 1));

effect(() => {
  void [at.value, text.value];
  stop(0);
});

effect(() => {
  byId("play").textContent = playing.value ? "Pause" : "Play";
  clearInterval(timer);
  if (playing.value) timer = setInterval(() => go(step.peek() + 1), REST);
});

effect(() => {
  const most = Math.max(...path.value.map(({ size }) => size));
  byId("path").hidden = !path.value.length;
  byId("boxes").replaceChildren(...path.value.map(({ name, size, guess: [word, p] }, i) => {
    const level = el("span", { class: "level" });
    level.style.height = `${(100 * size) / most}%`;
    const box = el("button", { type: "button" }, el("span", { class: "column", "aria-hidden": "true" }, level),
      el("span", { class: "name" }, name), el("span", { class: "guess" }, code(word), ` ${percent(p)}`));
    clicks(box, () => stop(i));
    return el("li", {}, box);
  }));
});

effect(() => {
  const now = path.value[step.value];
  [...byId("boxes").children].forEach((box, i) => {
    box.firstChild.classList.toggle("passed", i < step.value);
    box.firstChild.setAttribute("aria-current", i === step.value ? "step" : "false");
    const middle = box.offsetLeft + box.offsetWidth / 2;
    if (i === step.value) byId("dot").style.transform = `translate(${middle}px, ${box.offsetTop}px)`;
  });
  const look = now?.look && el("button", { type: "button", class: "plain", onclick: now.look }, "Look closer");
  byId("path-told").replaceChildren(...(now?.told ?? []), look ?? "");
});

function stop(i) {
  playing.value = false;
  go(i);
}

function go(i) {
  const last = path.peek().length - 1;
  step.value = Math.max(0, Math.min(last, i));
  if (i >= last) playing.value = false;
}

/** @returns {Step[]} */
function steps() {
  const seen = lens.value, { tokens } = text.value, place = placeAt(at.value);
  const t = seen ? at.value - 1 - seen.to.start : -1, token = tokens[at.value];
  if (!seen || !place || t < 0 || t >= seen.tokens.length) return [];
  /** @returns {[string, number]} */
  const guess = (l) => [seen.names[seen.likeliest[l][t][0]], seen.probabilities[l][t][0]];
  const stream = seen.stream_norms.map((row) => row[t]), last = stream[stream.length - 1];
  const layers = seen.attn_norms.map((row, l) => ({
    name: `layer ${l + 1}`, size: stream[l + 1], guess: guess(l + 1), ...reads(l, t),
    told: [...reads(l, t).told, `attention adds a vector of norm ${row[t].toPrecision(3)}, the MLP one of `
      + `${seen.mlp_norms[l][t].toPrecision(3)}; the head would now say `, code(guess(l + 1)[0]), "."],
  }));
  const { temperature, top_k, top_p } = settings.value, after = place.likeliest_after, named = places.value.names;
  const best = after.indexOf(Math.max(...after));
  const kept = `temperature ${temperature}${top_k ? `, top-k ${top_k}` : ""}${top_p < 1 ? `, top-p ${top_p}` : ""}`;
  return [
    { name: "embedding", size: stream[0], guess: guess(0), look: () => { view.value = "lens"; },
      told: [code(seen.tokens[t].text), ` becomes a vector of norm ${stream[0].toPrecision(3)}: the residual stream, `
        + "to which every layer adds."] },
    ...layers,
    { name: "softmax", size: last, guess: [named[place.likeliest[0]], place.likeliest_before[0]],
      told: ["The head makes one number for each token of the vocabulary, the softmax makes probabilities of them."] },
    { name: "draw", size: last, guess: token ? [token.text, place.after] : [named[place.likeliest[best]], after[best]],
      told: [`After ${kept}, one is drawn`,
        ...(token ? [": ", code(token.text), `, which had ${percent(place.after)}.`] : [". It is not drawn yet."])] },
  ];
}

/** What the sharpest head of a layer reads there. */
function reads(l, t) {
  const seen = attention.value, fits = seen && at.value - 1 - seen.to.start === t;
  let best = { h: 0, s: 0, weight: -1 };
  for (let h = 0; fits && h < seen.H; h += 1) {
    for (let s = 0; s <= t; s += 1) {
      const weight = seen.weight(l, h, t, s);
      if (weight > best.weight) best = { h, s, weight };
    }
  }
  const look = () => {
    head.value = { layer: l, head: best.h };
    view.value = "attention";
  };
  if (!fits) return { look, told: [] };
  return { look, told: [`Head ${best.h + 1} reads ${percent(best.weight)} of `, code(seen.tokens[best.s].text), "; "] };
}
