// The view Attention: what the model read when it chose the token at the chosen place, in one head; all heads
// next to each other; the matrix of one, and the arithmetic of a cell of it.

import { post } from "./api.js";
import { arrows, button, byId, code, el, percent, ranked } from "./dom.js";
import { asked, attention } from "./looked.js";
import { derived, effect, state } from "./reactive.js";
import { at, choose, head, model, read, text, view } from "./store.js";

const over = state(/** @type {[number, number] | null} */ (null)); // the cell below the pointer

/** The head that is shown: the sharpest until there is another, which a URL may name wrongly. */
const chosen = derived(() => {
  const seen = attention.value, wanted = head.value;
  if (wanted && (!seen || (wanted.layer < seen.L && wanted.head < seen.H))) return wanted;
  return seen?.sharpest ?? { layer: 0, head: 0 };
});

/** The token that reads, which stands before the chosen place, and how much of each it reads; null: there is none. */
const reading = derived(() => {
  if (!attention.value) return null;
  const { to: { start }, T, reads } = attention.value, t = at.value - 1 - start, { layer, head } = chosen.value;
  return t < 0 || t >= T ? null : { t, start, T, reads, weights: reads(layer, head, t) };
});

/** Choose the cell in which token t reads token s. */
function pick(t, s) {
  const { start } = attention.peek().to;
  choose(start + Math.max(0, t) + 1);
  read.value = Math.max(start, Math.min(at.peek() - 1, start + s));
}

const isShown = () => view.value === "attention" && attention.value;
const headName = (layer, head) => `layer ${layer + 1}, head ${head + 1}`;

const matrix = byId("matrix"), grid = byId("grid");
arrows(grid, (right, down) => {
  if (!attention.peek()) return false;
  const { L, H } = attention.peek(), { layer, head: number } = chosen.peek();
  head.value = { layer: (layer + down + L) % L, head: (number + right + H) % H };
  return grid.querySelector("[aria-pressed=true]").focus();
});

/** The cell of the matrix that an event is at: [t, s]. @returns {[number, number]} */
function where({ clientX, clientY }) {
  const { left, top, width, height } = matrix.getBoundingClientRect(), T = attention.peek()?.T;
  const cell = (share) => Math.max(0, Math.min(T - 1, Math.floor(share * T)));
  return T ? [cell((clientY - top) / height), cell((clientX - left) / width)] : null;
}

matrix.addEventListener("click", (event) => attention.peek() && pick(...where(event)));
matrix.addEventListener("pointermove", (event) => { over.value = where(event); });
matrix.addEventListener("pointerleave", () => { over.value = null; });

arrows(byId("frame"), (right, down) => {
  if (!reading.peek()) return false;
  const { t, start } = reading.peek();
  pick(t + down, (read.peek() ?? t + start) - start + right);
  return true;
});

effect(() => {
  if (!isShown()) return;
  const had = grid.contains(document.activeElement), { layer, head } = chosen.peek();
  grid.replaceChildren(...drawHeads());
  if (had) [...grid.children].find(({ title }) => title === headName(layer, head))?.focus();
});
effect(() => {
  const { layer, head: number } = chosen.value, name = headName(layer, number);
  for (const one of grid.children) {
    one.setAttribute("aria-pressed", String(one.title === name));
    one.tabIndex = one.title === name ? 0 : -1;
  }
  byId("matrix-title").textContent = `The matrix of ${name}`;
  if (isShown()) paintHead(matrix, attention.value, layer, number);
});
effect(() => byId("most").replaceChildren(...sentence()));
effect(tell);

/** The arithmetic of the chosen cell: query times key, scale, mask, softmax, and what is read from the value. */
const cell = asked(() => {
  const seen = attention.value, { layer, head } = chosen.value;
  if (view.value !== "attention" || !seen || read.value === null) return null;
  const { text, start, version } = seen.to, reader = at.value - 1 - start, column = read.value - start;
  if (column < 0 || column > reader || reader >= seen.T) return null;
  return { text, layer, head, reader, read: column, start, version };
}, ({ text, layer, head, reader, read }, signal) =>
  post("inside/cell", { text, layer, head, reader, read }, signal));
effect(() => {
  const shown = read.value !== null && attention.value && cell.value;
  byId("cell").replaceChildren(...(cell.error.value ? [cell.error.value] : shown ? arithmetic(cell.value) : []));
});

/** The tints of the text: what is read. */
export function tints() {
  if (!reading.value) return [];
  const { t, start, weights } = reading.value, most = Math.max(...weights);
  return text.value.tokens.map((_, i) => {
    const value = weights[i - start], side = i === start + t ? "reader" : "read";
    if (value === undefined) return { strength: 0, side: "unseen" };
    return { strength: Math.sqrt(value / most) * Math.min(1, 0.35 + most), side, said: `${percent(value)} read` };
  });
}

/** A row of heads for each layer. */
function drawHeads() {
  const seen = attention.value;
  grid.style.setProperty("--heads", seen.H);
  return seen.heads.map(({ layer, head: number }) => {
    const picture = el("canvas"), name = headName(layer, number);
    requestAnimationFrame(() => paintHead(picture, seen, layer, number));
    const onclick = () => { head.value = { layer, head: number }; };
    return button({ title: name, "aria-label": name, onclick }, picture);
  });
}

/** Row t is the token that reads, column s the one it reads. Small weights are seen by their square roots. */
function paintHead(picture, { T, reads }, layer, head) {
  paint(picture, T, Array.from({ length: T }, (_, t) => reads(layer, head, t).map(Math.sqrt)));
}

function sentence() {
  const { tokens } = text.value;
  if (!tokens.length || attention.error.value) return [attention.error.value || "Type a text first."];
  if (!reading.value) return [at.value ? "Looking …" : "Nothing stands before the first token: choose another."];
  const { t, start, weights } = reading.value, next = tokens[at.value];
  return ["At ", code(tokens[start + t]?.text), ", before it ",
    ...(next ? ["wrote ", code(next.text)] : ["writes what comes next"]), ", this head attended to ",
    ...ranked(weights, 5).flatMap(([s, value], n) => [n ? ", " : "", code(tokens[start + s]?.text),
      ` ${percent(value)} `, el("span", { class: "faint" }, s === t ? "(itself)" : `(${t - s} back)`)]), "."];
}

/** Tell about the cell below the pointer, or else the chosen one. */
function tell() {
  const now = reading.value, picked = read.value !== null;
  byId("cursor").hidden = !now || !picked;
  if (!now) return;
  const mine = [now.t, picked ? read.value - now.start : -1];
  const to = { top: now.t, left: mine[1], width: 1, height: 1 };
  for (const [name, cells] of Object.entries(to)) byId("cursor").style[name] = `${(100 * cells) / now.T}%`;
  const [t, s] = over.value ?? mine;
  const name = (i) => [code(text.value.tokens[now.start + i]?.text), ` (token ${now.start + i + 1})`];
  byId("told").replaceChildren(...(s > t || s < 0 ? ["Point at a cell."] : [...name(t),
    ` gives ${percent(now.reads(chosen.value.layer, chosen.value.head, t)[s])} of its attention to `, ...name(s)]));
}

function arithmetic({ query, key, value, scores, weights, output, to: { layer, head, reader, read, start } }) {
  const name = (i) => code(text.peek().tokens[start + i]?.text), C = query.length;
  const products = query.map((x, i) => x * key[i]), sum = products.reduce((a, b) => a + b, 0);
  const seen = scores.map((x, s) => (weights[s] ? x : -Infinity)), allowed = weights.filter(Boolean).length;
  const most = Math.max(...seen), share = Math.exp(seen[read] - most);
  const whole = seen.reduce((total, x) => total + Math.exp(x - most), 0);
  const turned = model.peek().config.position === "rope" ? ", both turned by their positions" : "";
  return [
    el("h3", {}, `The arithmetic of a cell: ${headName(layer, head)}`),
    el("dl", { class: "arithmetic" },
      ...row(["query of ", name(reader), ": what it looks for"], numbers(query)),
      ...row(["key of ", name(read), ": what it offers"], numbers(key)),
      ...row([`their products${turned}`], numbers(products)),
      ...row(["score"], `their sum ${round(sum)}, divided by √${C}, is ${round(sum / Math.sqrt(C))}`),
      ...row(["mask"], `the ${allowed} tokens up to `, name(reader), " may be seen; others count as −∞"),
      ...row(["softmax"], `e^(${round(seen[read])} − ${round(most)}), divided by the sum, ${round(whole)}: `,
        `${round(share)} / ${round(whole)} = ${percent(weights[read])}`),
      ...row(["value of ", name(read), ": what it passes on"], numbers(value)),
      ...row([`${percent(weights[read])} of it`], numbers(value.map((x) => x * weights[read]), value)),
      ...row(["the sum over all tokens: what the head gives"], numbers(output))),
  ];
}

const row = (label, ...told) => [el("dt", {}, ...label), el("dd", {}, ...told)];

/** A vector as a strip of colours. @param {number[]} values @param {number[]} scale whose largest is the full colour */
function numbers(values, scale = values) {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(round);
  const label = `${values.length} numbers from ${low} to ${high}`;
  const most = Math.max(...scale.map(Math.abs)) || 1;
  const picture = el("canvas", { class: "strip", role: "img", "aria-label": label });
  requestAnimationFrame(() => paint(picture, values.length, [values.map((x) => x / most)]));
  return el("span", { class: "vector" }, picture, el("span", { class: "faint" }, `${low} … ${high}`));
}

const round = (x) => Number(x.toPrecision(3)).toString().replace("-", "−").replace("Infinity", "∞");

/** Paint rows of numbers from -1 to 1, a pixel each: the larger, the more of a colour, another one below 0.
 * @param {HTMLCanvasElement} element @param {number} width @param {number[][]} rows */
function paint(element, width, rows) {
  element.width = width;
  element.height = rows.length;
  const context = element.getContext("2d"), image = context.createImageData(width, rows.length);
  const [above, below] = [colour(element, "--accent"), colour(element, "--bad")];
  for (const [y, row] of rows.entries()) {
    row.forEach((value, x) => {
      image.data.set([...(value < 0 ? below : above), Math.round(255 * Math.abs(value))], 4 * (y * width + x));
    });
  }
  context.putImageData(image, 0, 0);
}

/** A colour of style.css as numbers. */
function colour(element, name) {
  const hex = getComputedStyle(element).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}
