// How the token at the chosen place came to be, as one drawing: from the embedding through every layer to the
// draw, with the model's own numbers. It can be played, stopped and stepped.

import { button, card, code, el, percent } from "./dom.js";
import { attention, lens, placeAt, places } from "./looked.js";
import { derived, effect, state } from "./reactive.js";
import { at, head, settings, text, view } from "./store.js";

const REST = 1100; // milliseconds at each step

/** @typedef {{name: string, size: number, guess: any, told: any[], open?: () => void}} Step
 * size: the norm of the stream; guess: what the head would say there */

export class Path {
  constructor() {
    this.steps = derived(steps);
    this.step = state(0);
    this.playing = state(false);
    this.play = button("Play", "show step after step", () => { this.playing.value = !this.playing.peek(); });
    const by = (n) => () => { this.playing.value = false; this.go(this.step.peek() + n); };
    this.back = button("Back", "one step back", by(-1));
    this.next = button("Step", "one step on", by(1));
    this.dot = el("span", { class: "dot", "aria-hidden": "true" });
    this.boxes = el("ol", { class: "path" });
    this.told = el("p", { class: "path-told", role: "status" });
    this.element = card("How this token came to be", el("div", { class: "row tools" }, this.play, this.back, this.next),
      el("div", { class: "path-frame" }, this.boxes, this.dot), this.told);
    effect(() => {
      void [at.value, text.value];
      this.step.value = 0;
      this.playing.value = false;
    });
    effect(() => this.draw());
    effect(() => this.mark());
    effect(() => {
      this.play.textContent = this.playing.value ? "Pause" : "Play";
      clearInterval(this.timer);
      if (this.playing.value) this.timer = setInterval(() => this.go(this.step.peek() + 1), REST);
    });
  }

  /** @param {number} step */
  go(step) {
    const last = this.steps.peek().length - 1;
    this.step.value = Math.max(0, Math.min(last, step));
    if (step >= last) this.playing.value = false;
  }

  draw() {
    const all = this.steps.value, most = Math.max(...all.map(({ size }) => size));
    this.element.hidden = !all.length;
    this.boxes.replaceChildren(...all.map(({ name, size, guess }, i) => {
      const bar = el("span", { class: "level" });
      bar.style.height = `${(100 * size) / most}%`;
      return el("li", {}, el("button", { type: "button", onclick: () => { this.playing.value = false; this.go(i); } },
        el("span", { class: "column", "aria-hidden": "true" }, bar), el("span", { class: "name" }, name), guess));
    }));
  }

  mark() {
    const step = this.step.value, now = this.steps.value[step];
    this.boxes.querySelectorAll("button").forEach((box, i) => {
      box.classList.toggle("passed", i < step);
      box.setAttribute("aria-current", i === step ? "step" : "false");
      const { offsetLeft, offsetWidth, offsetTop } = box.parentElement;
      if (i === step) this.dot.style.transform = `translate(${offsetLeft + offsetWidth / 2}px, ${offsetTop}px)`;
    });
    if (!now) return;
    this.told.replaceChildren(...now.told, now.open ? button("Look closer", "in the view that has all of it", now.open, { class: "plain" }) : "");
  }
}

/** @returns {Step[]} */
function steps() {
  const seen = lens.value, { tokens } = text.value, place = placeAt(at.value);
  const t = seen ? at.value - 1 - seen.to.start : -1;
  if (!seen || !place || t < 0 || t >= seen.tokens.length) return [];
  const guess = (l) => el("span", { class: "guess" }, code(seen.names[seen.likeliest[l][t][0]]), ` ${percent(seen.probabilities[l][t][0])}`);
  const stream = seen.stream_norms.map((row) => row[t]), token = tokens[at.value];
  const layers = seen.attn_norms.map((row, l) => ({
    name: `layer ${l + 1}`, size: stream[l + 1], guess: guess(l + 1), ...reads(l, t),
    told: [...reads(l, t).told, `attention adds a vector of norm ${row[t].toPrecision(3)}, the MLP one of ${seen.mlp_norms[l][t].toPrecision(3)}; `
      + "the head would now say ", code(seen.names[seen.likeliest[l + 1][t][0]]), "."],
  }));
  const { temperature, top_k, top_p } = settings.value, last = stream[stream.length - 1];
  const drawn = place.likeliest.map((id, n) => ({ id, p: place.likeliest_after[n] })).sort((a, b) => b.p - a.p)[0];
  const kept = `temperature ${temperature}${top_k ? `, top-k ${top_k}` : ""}${top_p < 1 ? `, top-p ${top_p}` : ""}`;
  return [
    { name: "embedding", size: stream[0], guess: guess(0), open: () => { view.value = "lens"; },
      told: [code(seen.tokens[t].text), ` becomes a vector of norm ${stream[0].toPrecision(3)}: the residual stream, to which every layer adds.`] },
    ...layers,
    { name: "softmax", size: last, guess: el("span", { class: "guess" }, code(places.value.names[place.likeliest[0]]), ` ${percent(place.likeliest_before[0])}`),
      told: ["The head makes one number for each token of the vocabulary, and the softmax makes probabilities of them."] },
    { name: "draw", size: last, guess: el("span", { class: "guess" }, code(token?.text ?? places.value.names[drawn.id]), ` ${percent(token ? place.after : drawn.p)}`),
      told: [`After ${kept}, one is drawn`, ...(token ? [": ", code(token.text), `, which had ${percent(place.after)}.`] : [". It is not drawn yet."])] },
  ];
}

/** What the sharpest head of a layer reads there. @param {number} l @param {number} t */
function reads(l, t) {
  const seen = attention.value;
  if (!seen || at.value - 1 - seen.to.start !== t) return { told: [], open: () => { view.value = "lens"; } };
  let best = { h: 0, s: 0, weight: -1 };
  for (let h = 0; h < seen.H; h += 1) {
    for (let s = 0; s <= t; s += 1) {
      const weight = seen.weight(l, h, t, s);
      if (weight > best.weight) best = { h, s, weight };
    }
  }
  return {
    told: [`Head ${best.h + 1} reads ${percent(best.weight)} of `, code(seen.tokens[best.s].text), "; "],
    open: () => {
      head.value = { layer: l, head: best.h };
      view.value = "attention";
    },
  };
}
