// The arithmetic of one cell of a head: query times key, scale, mask, softmax, and what is read from the value.

import { post } from "./api.js";
import { asked } from "./asked.js";
import { chosen } from "./attention.js";
import { bars, byId, code, el, number, percent, ranked } from "./dom.js";
import { attention } from "./looked.js";
import { strip } from "./matrix.js";
import { effect } from "./reactive.js";
import { at, model, read, text, view } from "./store.js";

const FIRST = 8; // of the tokens that are read

export function showCell() {
  const cell = asked(() => {
    const seen = attention.value, { layer, head } = chosen.value;
    if (view.value !== "attention" || !seen || read.value === null || head >= seen.H) return null;
    const { text, start, version } = seen.to, reader = at.value - 1 - start, column = read.value - start;
    if (column < 0 || column > reader || reader >= seen.T) return null;
    return { text, layer, head, reader, read: column, start, version };
  }, ({ text, layer, head, reader, read }, signal) =>
    post("inside/cell", { text, layer, head, reader, read }, signal));
  effect(() => {
    const shown = read.value !== null && attention.value && chosen.value.head < attention.value.H && cell.value;
    byId("cell").hidden = !shown && !cell.error.value;
    byId("cell").replaceChildren(...(cell.error.value ? [cell.error.value] : shown ? draw(cell.value) : []));
  });
}

function draw({ query, key, value, scores, weights, output, to: { layer, head, reader, read, start } }) {
  const name = (i) => code(text.peek().tokens[start + i]?.text), C = query.length;
  const products = query.map((x, i) => x * key[i]), sum = products.reduce((a, b) => a + b, 0);
  const most = Math.max(...scores), share = Math.exp(scores[read] - most);
  const whole = scores.reduce((total, x, s) => (weights[s] ? total + Math.exp(x - most) : total), 0);
  const turned = model.peek().config.position === "rope" ? ", both turned by their positions" : "";
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
    el("ul", { class: "shares", "aria-label": "the tokens that are read most" },
      ...ranked(weights, FIRST).map(([s, weight]) => el("li", {},
        name(s), number(round(scores[s])), number(percent(weight)), bars(weight)))),
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
