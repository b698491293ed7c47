// The view Attention: what the model read when it chose the token at the chosen place, in one head or averaged over
// those of a layer; all heads next to each other; the matrix of one, and the arithmetic of a cell of it.

import { Cell } from "./cell.js";
import { card, code, el, field, percent, select } from "./dom.js";
import { attention } from "./looked.js";
import { canvas, cellAt, paint, plotted } from "./matrix.js";
import { derived, effect, state } from "./reactive.js";
import { at, choose, head, model, read, text } from "./store.js";

const FIRST = 5; // of the tokens that are read most
const dark = state(0); // counts changes of the colours

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { dark.value += 1; });

/** The head that is shown; one past the last means the average of its layer. */
export const chosen = derived(() => head.value ?? attention.value?.sharpest ?? { layer: 0, head: 0 });

/** How much token t reads of token s. @param {number} l @param {number} h @param {number} t @param {number} s */
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

export class Attention {
  constructor() {
    const { n_layer, n_head } = model.peek().config;
    const numbers = (/** @type {number} */ n, /** @type {string} */ name) =>
      /** @type {[any, string][]} */ (Array.from({ length: n }, (_, i) => [i, `${name} ${i + 1}`]));
    this.layer = select(numbers(n_layer, "layer"), (l) => this.show(Number(l), chosen.peek().head));
    this.head = select([...numbers(n_head, "head"), [n_head, "average"]], (h) => this.show(chosen.peek().layer, Number(h)));
    this.told = el("p", { class: "faint told" });
    this.most = el("p", { class: "most" });
    this.grid = el("div", { class: "grid", role: "group", "aria-label": "all heads" });
    this.grid.style.setProperty("--heads", String(n_head + 1));
    this.makeMatrix();
    this.cell = new Cell();
    this.elements = [
      el("div", { class: "card" }, el("div", { class: "row controls" },
        field("Layer", "the block whose attention is shown", this.layer), field("Head", "one of the block's heads", this.head),
        this.most)),
      el("div", { class: "columns" },
        card("All heads", el("p", { class: "faint" }, "A row for each layer, from the first; on the right the average "
          + "of its heads. The page opens on the head that reads most sharply. Click another."), this.grid),
        card("The matrix of this head", el("p", { class: "faint" }, "A row for each token that reads, a column for each "
          + "that is read. Click a cell, or move with the arrow keys, for its arithmetic."), this.frame, this.told)),
      this.cell.element];
    this.watch();
  }

  makeMatrix() {
    this.matrix = canvas({ class: "matrix" });
    this.cursor = el("span", { class: "cursor" });
    this.frame = el("div", { class: "frame", tabindex: "0", role: "group", "aria-label": "the matrix of weights; arrow keys move" },
      this.matrix, this.cursor);
    const where = (/** @type {any} */ event) => cellAt(this.matrix, event, attention.peek().T);
    this.matrix.addEventListener("click", (event) => this.pick(...where(event)));
    this.matrix.addEventListener("pointermove", (event) => this.tell(...where(event)));
    this.matrix.addEventListener("pointerleave", () => this.tell());
    this.frame.addEventListener("keydown", (event) => {
      const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
      if (down === undefined || !reading.peek()) return;
      event.preventDefault();
      const { t, start } = reading.peek();
      this.pick(t + down, (read.peek() ?? t + start) - start + right);
    });
  }

  watch() {
    effect(() => {
      this.layer.value = String(chosen.value.layer);
      this.head.value = String(chosen.value.head);
    });
    effect(() => {
      void dark.value;
      if (attention.value) this.drawGrid();
    });
    effect(() => {
      void dark.value;
      const { layer, head } = chosen.value;
      for (const one of this.grid.children) one.setAttribute("aria-pressed", String(one.id === `head-${layer}-${head}`));
      if (attention.value) paint(this.matrix, attention.value.T, (t, s) => weight(layer, head, t, s));
    });
    effect(() => {
      this.most.replaceChildren(...this.sentence());
      this.tell();
    });
  }

  /** @param {number} layer @param {number} number */
  show(layer, number) {
    head.value = { layer, head: number };
  }

  /** Choose the cell in which token t reads token s. @param {number} t @param {number} s */
  pick(t, s) {
    const { T, to: { start } } = attention.peek(), row = Math.max(0, Math.min(T - 1, t));
    choose(start + row + 1);
    read.value = start + Math.max(0, Math.min(row, s));
  }

  drawGrid() {
    const { L, H, T } = attention.value;
    const heads = Array.from({ length: L * (H + 1) }, (_, i) => [Math.floor(i / (H + 1)), i % (H + 1)]);
    this.grid.replaceChildren(...heads.map(([l, h]) => {
      const name = `layer ${l + 1}, ${h === H ? "average" : `head ${h + 1}`}`, picture = canvas();
      const { layer, head } = chosen.peek();
      requestAnimationFrame(() => paint(picture, T, (t, s) => weight(l, h, t, s)));
      return el("button", { type: "button", id: `head-${l}-${h}`, title: name, "aria-label": name, class: h === H ? "mean" : "",
        "aria-pressed": String(l === layer && h === head), onclick: () => this.show(l, h) }, picture);
    }));
  }

  sentence() {
    if (!text.value.tokens.length) return ["Type a text first."];
    if (attention.error.value) return [attention.error.value];
    if (!reading.value) return [at.value ? "Looking …" : "Nothing stands before the first token: choose another."];
    const { t, start, weights } = reading.value, { tokens } = text.value, next = tokens[at.value];
    const first = weights.map((value, s) => ({ value, s })).sort((a, b) => b.value - a.value).slice(0, FIRST);
    return ["At ", code(tokens[start + t]?.text ?? ""), next ? ", before it wrote " : ", before it writes what comes next",
      next ? code(next.text) : "", ", this head read ",
      ...first.flatMap(({ value, s }, n) => [n ? ", " : "", code(tokens[start + s]?.text ?? ""), ` ${percent(value)} `,
        el("span", { class: "faint" }, s === t ? "(itself)" : `(${t - s} back)`)]), "."];
  }

  /** The tints of the text: what is read. */
  tints() {
    const { tokens } = text.value;
    if (!reading.value) return [];
    const { t, start, weights } = reading.value, most = Math.max(...weights);
    return tokens.map((_, i) => {
      const value = weights[i - start];
      if (value === undefined) return { strength: 0, side: "unseen" };
      return { strength: Math.sqrt(value / most) * Math.min(1, 0.35 + most), side: i === start + t ? "reader" : "read",
        said: `${percent(value)} read` };
    });
  }

  /** Tell about a cell, by default the chosen one. @param {number} [t] @param {number} [s] */
  tell(t, s) {
    const now = reading.value, { tokens } = text.value;
    this.cursor.hidden = !now || read.value === null;
    if (!now) return;
    if (read.value !== null) plotted(this.cursor, attention.value.T, now.t, read.value - now.start);
    const row = t ?? now.t, column = t === undefined ? read.value === null ? null : read.value - now.start : s;
    const name = (/** @type {number} */ i) => [code(tokens[now.start + i]?.text ?? ""), ` (token ${now.start + i + 1})`];
    this.told.replaceChildren(...(column === null || column > row || column < 0 ? ["Point at a cell."]
      : [...name(row), ` reads ${percent(weight(chosen.value.layer, chosen.value.head, row, column))} of `, ...name(column)]));
  }
}
