// The arithmetic of one cell of a head: query times key, scale, mask, softmax, and what is read from the value.

import { post } from "./api.js";
import { asked } from "./asked.js";
import { chosen } from "./attention.js";
import { bar, bars, byId, code, el, percent } from "./dom.js";
import { attention } from "./looked.js";
import { strip } from "./matrix.js";
import { effect } from "./reactive.js";
import { at, model, read, text, view } from "./store.js";

const FIRST = 8; // of the tokens that are read

export class Cell {
  constructor() {
    const cell = asked(() => {
      const told = attention.value, { layer, head } = chosen.value;
      if (view.value !== "attention" || !told || read.value === null || head >= told.H) return null;
      const { text, start, version } = told.to, reader = at.value - 1 - start, column = read.value - start;
      if (column < 0 || column > reader || reader >= told.T) return null;
      return { text, layer, head, reader, read: column, start, version };
    }, ({ start, version, ...question }, signal) => post("inside/cell", question, signal));
    effect(() => {
      const shown = read.value !== null && chosen.value.head < (attention.value?.H ?? 0);
      const content = cell.error.value ? [el("p", { class: "faint" }, cell.error.value)]
        : cell.value && shown ? draw(cell.value) : [];
      byId("cell").replaceChildren(...(content.length ? [el("div", { class: "card" }, ...content)] : []));
    });
  }
}

function draw({ query, key, value, scores, weights, output, to: { layer, head, reader, read, start } }) {
  const name = (i) => code(text.peek().tokens[start + i]?.text), C = query.length;
  const products = query.map((x, i) => x * key[i]), sum = products.reduce((a, b) => a + b, 0);
  const most = Math.max(...scores), share = Math.exp(scores[read] - most);
  const whole = scores.reduce((total, x, s) => (weights[s] ? total + Math.exp(x - most) : total), 0);
  const turned = model.peek().config.position === "rope" ? ", both turned by their positions" : "";
  const first = weights.map((w, s) => ({ w, s })).sort((a, b) => b.w - a.w).slice(0, FIRST);
  return [
    el("h3", {}, `The arithmetic of a cell: layer ${layer + 1}, head ${head + 1}`),
    el("dl", { class: "arithmetic" },
      ...row(["query of ", name(reader), ": what it looks for"], numbers(query)),
      ...row(["key of ", name(read), ": what it offers"], numbers(key)),
      ...row([`their products${turned}`], numbers(products)),
      ...row(["score"], `their sum ${round(sum)}, divided by √${C}, is ${round(sum / Math.sqrt(C))}`),
      ...row(["mask"], `the ${reader + 1} tokens up to `, name(reader), " may be read; those behind it count as −∞"),
      ...row(["softmax"], `e^(${round(scores[read])} − ${round(most)}), divided by the sum of all, ${round(whole)}: `,
        `${round(share)} / ${round(whole)} = ${percent(weights[read])}`),
      ...row(["value of ", name(read), ": what it passes on"], numbers(value)),
      ...row([`${percent(weights[read])} of it`], numbers(value.map((x) => x * weights[read]), value)),
      ...row(["the sum over all tokens: what the head gives"], numbers(output))),
    el("ul", { class: "shares", "aria-label": "the tokens that are read most" }, ...first.map(({ w, s }) => el("li", {},
      name(s), el("span", { class: "number" }, round(scores[s])), el("span", { class: "number" }, percent(w)),
      bars(bar(w))))),
  ];
}

function row(label, ...told) {
  return [el("dt", {}, ...label), el("dd", {}, ...told)];
}

/** A vector as a strip of colours. @param {number[]} values @param {number[]} scale whose largest is the full colour */
function numbers(values, scale = values) {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(round);
  const label = `${values.length} numbers from ${low} to ${high}`;
  const picture = el("canvas", { class: "strip", role: "img", "aria-label": label });
  requestAnimationFrame(() => strip(picture, values, Math.max(...scale.map(Math.abs))));
  return el("span", { class: "vector" }, picture, el("span", { class: "faint" }, `${low} … ${high}`));
}

function round(x) {
  return Number(x.toPrecision(3)).toString().replace("-", "−");
}
