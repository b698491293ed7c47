// The view Attention: what the model read when it chose the token at the chosen place, in one head or averaged over
// those of a layer; all heads next to each other; the matrix of one, and the arithmetic of a cell of it.

import { Cell } from "./cell.js";
import { byId, clicks, code, el, offer, percent } from "./dom.js";
import { attention } from "./looked.js";
import { cellAt, paint } from "./matrix.js";
import { derived, effect, state } from "./reactive.js";
import { at, choose, head, model, read, text } from "./store.js";

const FIRST = 5; // of the tokens that are read most

const colours = state(0); // counts their changes
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours.value += 1; });

/** The head that is shown; one past the last means the average of its layer. */
export const chosen = derived(() => head.value ?? attention.value?.sharpest ?? { layer: 0, head: 0 });

/** How much token t reads of token s. */
function weight(l, h, t, s) {
  const { H, weight } = attention.value;
  if (h < H) return weight(l, h, t, s);
  let sum = 0;
  for (let i = 0; i < H; i += 1) sum += weight(l, i, t, s);
  return sum / H;
}

/** The token that reads, which stands before the chosen place, and how much of each it reads; null: there is none. */
const reading = derived(() => {
  if (!attention.value) return null;
  const { to: { start }, T } = attention.value, t = at.value - 1 - start, { layer, head } = chosen.value;
  if (t < 0 || t >= T) return null;
  return { t, start, weights: Array.from({ length: t + 1 }, (_, s) => weight(layer, head, t, s)) };
});

function show(layer, number) {
  head.value = { layer, head: number };
}

/** Choose the cell in which token t reads token s. */
function pick(t, s) {
  const { T, to: { start } } = attention.peek(), row = Math.max(0, Math.min(T - 1, t));
  choose(start + row + 1);
  read.value = start + Math.max(0, Math.min(row, s));
}

export class Attention {
  constructor() {
    const { n_layer, n_head } = model.peek().config;
    const layer = byId("layer"), number = byId("head"), matrix = byId("matrix");
    offer(layer, Array.from({ length: n_layer }, (_, i) => [i, `layer ${i + 1}`]));
    offer(number, [...Array.from({ length: n_head }, (_, i) => [i, `head ${i + 1}`]), [n_head, "average"]]);
    for (const select of [layer, number]) {
      select.addEventListener("change", () => show(Number(layer.value), Number(number.value)));
    }
    const where = (event) => cellAt(matrix, event, attention.peek().T);
    matrix.addEventListener("click", (event) => pick(...where(event)));
    matrix.addEventListener("pointermove", (event) => tell(...where(event)));
    matrix.addEventListener("pointerleave", () => tell());
    byId("frame").addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step || !reading.peek()) return;
      event.preventDefault();
      const { t, start } = reading.peek();
      pick(t + step[0], (read.peek() ?? t + start) - start + step[1]);
    });
    new Cell();
    effect(() => {
      layer.value = chosen.value.layer;
      number.value = chosen.value.head;
    });
    effect(() => {
      void colours.value;
      if (attention.value) drawGrid();
    });
    effect(() => {
      void colours.value;
      const { layer, head } = chosen.value;
      for (const one of byId("grid").children) one.setAttribute("aria-pressed", one.id === `head-${layer}-${head}`);
      if (attention.value) paint(matrix, attention.value.T, (t, s) => weight(layer, head, t, s));
    });
    effect(() => {
      byId("most").replaceChildren(...sentence());
      tell();
    });
  }

  /** The tints of the text: what is read. */
  tints() {
    if (!reading.value) return [];
    const { t, start, weights } = reading.value, most = Math.max(...weights);
    return text.value.tokens.map((_, i) => {
      const value = weights[i - start], side = i === start + t ? "reader" : "read";
      if (value === undefined) return { strength: 0, side: "unseen" };
      return { strength: Math.sqrt(value / most) * Math.min(1, 0.35 + most), side, said: `${percent(value)} read` };
    });
  }
}

function drawGrid() {
  const { L, H, T } = attention.value, { layer, head } = chosen.peek();
  const heads = Array.from({ length: L * (H + 1) }, (_, i) => [Math.floor(i / (H + 1)), i % (H + 1)]);
  byId("grid").style.setProperty("--heads", H + 1);
  byId("grid").replaceChildren(...heads.map(([l, h]) => {
    const name = `layer ${l + 1}, ${h === H ? "average" : `head ${h + 1}`}`, picture = el("canvas");
    requestAnimationFrame(() => paint(picture, T, (t, s) => weight(l, h, t, s)));
    const made = el("button", { type: "button", id: `head-${l}-${h}`, title: name, "aria-label": name,
      class: h === H ? "mean" : "", "aria-pressed": String(l === layer && h === head) }, picture);
    clicks(made, () => show(l, h));
    return made;
  }));
}

function sentence() {
  const { tokens } = text.value;
  if (!tokens.length || attention.error.value) return [attention.error.value || "Type a text first."];
  if (!reading.value) return [at.value ? "Looking …" : "Nothing stands before the first token: choose another."];
  const { t, start, weights } = reading.value, next = tokens[at.value];
  const first = weights.map((value, s) => ({ value, s })).sort((a, b) => b.value - a.value).slice(0, FIRST);
  return ["At ", code(tokens[start + t]?.text), ", before it ",
    ...(next ? ["wrote ", code(next.text)] : ["writes what comes next"]), ", this head read ",
    ...first.flatMap(({ value, s }, n) => [n ? ", " : "", code(tokens[start + s]?.text), ` ${percent(value)} `,
      el("span", { class: "faint" }, s === t ? "(itself)" : `(${t - s} back)`)]), "."];
}

/** Tell about a cell, by default the chosen one. */
function tell(t = reading.value?.t, s = read.value === null ? -1 : read.value - reading.value?.start) {
  const now = reading.value, { tokens } = text.value, cursor = byId("cursor");
  cursor.hidden = !now || read.value === null;
  if (!now) return;
  const share = 100 / attention.value.T, to = { top: now.t, left: read.value - now.start, width: 1, height: 1 };
  for (const [name, cells] of Object.entries(to)) cursor.style[name] = `${share * cells}%`;
  const name = (i) => [code(tokens[now.start + i]?.text), ` (token ${now.start + i + 1})`];
  byId("told").replaceChildren(...(s > t || s < 0 ? ["Point at a cell."]
    : [...name(t), ` reads ${percent(weight(chosen.value.layer, chosen.value.head, t, s))} of `, ...name(s)]));
}
