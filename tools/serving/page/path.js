// How the token at the chosen place came to be, as one drawing: from the embedding through every layer to the
// draw, with the model's own numbers. It can be played, stopped and stepped.

import { button, byId, clicks, code, el, percent, plays, ranked } from "./dom.js";
import { attention, lens, placeAt, places } from "./looked.js";
import { derived, effect, state } from "./reactive.js";
import { at, head, settings, text, view } from "./store.js";

const REST = 1100; // milliseconds at each step

/** @typedef {{name: string, size: number, guess: [string, number], told: any[], look?: () => void, where?: string}} Step
 * size: the norm of the stream; guess: what the head would say there; look: shows more of it, in the view `where` */

const path = derived(steps), step = state(0);

const stop = plays(byId("play"), () => go(step.peek() + 1), REST);
clicks(byId("back"), () => jump(step.peek() - 1));
clicks(byId("step"), () => jump(step.peek() + 1));

effect(() => {
  void [at.value, text.value];
  jump(0);
});

effect(() => {
  const most = Math.max(...path.value.map(({ size }) => size));
  byId("path").hidden = !path.value.length;
  byId("boxes").replaceChildren(...path.value.map(({ name, size, guess: [word, p] }, i) => el("li", {},
    button({ onclick: () => jump(i) }, el("span", { class: "column", "aria-hidden": "true" },
      el("span", { class: "level", style: { height: `${(100 * size) / most}%` } })),
    el("span", { class: "name" }, name), el("span", { class: "name" }, `norm ${size.toPrecision(3)}`),
    el("span", { class: "guess" }, code(word), ` ${percent(p)}`)))));
});

effect(() => {
  const now = path.value[step.value];
  for (const [i, box] of [...byId("boxes").children].entries()) {
    box.firstChild.classList.toggle("passed", i < step.value);
    box.firstChild.setAttribute("aria-current", i === step.value ? "step" : "false");
  }
  const look = now?.look && button({ class: "plain", onclick: now.look }, `Look closer in ${now.where}`);
  byId("path-told").replaceChildren(...(now?.told ?? []), look ?? "");
});

function jump(i) {
  stop();
  go(i);
}

/** Go to a step. Return whether there are more. */
function go(i) {
  const last = path.peek().length - 1;
  step.value = Math.max(0, Math.min(last, i));
  return i < last;
}

/** @returns {Step[]} */
function steps() {
  const seen = lens.value, { tokens } = text.value, place = placeAt(at.value);
  const t = seen ? at.value - 1 - seen.to.start : -1, token = tokens[at.value];
  if (!seen || !place || t < 0 || t >= seen.tokens.length) return [];
  /** @returns {[string, number]} */
  const guess = (l) => [seen.names[seen.likeliest[l][t][0]], seen.probabilities[l][t][0]];
  const stream = seen.stream_norms.map((row) => row[t]), last = stream[stream.length - 1];
  const layers = seen.attn_norms.map((row, l) => {
    const { look, told } = reads(l, t);
    return { name: `layer ${l + 1}`, size: stream[l + 1], guess: guess(l + 1), look, where: "Attention",
      told: [...told, `attention adds a vector of norm ${row[t].toPrecision(3)}, the MLP one of `
        + `${seen.mlp_norms[l][t].toPrecision(3)}; the head would now say `, code(guess(l + 1)[0]), "."] };
  });
  const { temperature, top_k, top_p } = settings.value, after = place.likeliest_after, named = places.value.names;
  const best = after.indexOf(Math.max(...after));
  const kept = `temperature ${temperature}${top_k ? `, top-k ${top_k}` : ""}${top_p < 1 ? `, top-p ${top_p}` : ""}`;
  return [
    { name: "embedding", size: stream[0], guess: guess(0), where: "Logit lens", look: () => { view.value = "lens"; },
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
function reads(layer, t) {
  const seen = attention.value, look = () => { view.value = "attention"; };
  if (!seen || at.value - 1 - seen.to.start !== t) return { look, told: [] };
  const most = Array.from({ length: seen.H }, (_, h) => ranked(seen.reads(layer, h, t), 1)[0]);
  const [[sharpest, share]] = ranked(most.map(([, weight]) => weight), 1), [s] = most[sharpest];
  return {
    look: () => { head.value = { layer, head: sharpest }; look(); },
    told: [`Head ${sharpest + 1} gives ${percent(share)} of its attention to `, code(seen.tokens[s].text), "; "],
  };
}
