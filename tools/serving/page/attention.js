// The view Attention: what the model read when it chose the token at the chosen place, in one head or averaged over
// those of a layer; all heads next to each other; the matrix of one, and the arithmetic of a cell of it.

import { showCell } from "./cell.js";
import { arrows, button, byId, code, el, offer, percent, ranked } from "./dom.js";
import { attention } from "./looked.js";
import { cellAt, paint } from "./matrix.js";
import { derived, effect, state } from "./reactive.js";
import { at, choose, head, model, read, text } from "./store.js";

const FIRST = 5; // of the tokens that are read most

const colours = state(0); // counts their changes
const over = state(/** @type {[number, number] | null} */ (null)); // the cell below the pointer
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours.value += 1; });

/** The head that is shown; one past the last means the average of its layer. */
export const chosen = derived(() => head.value ?? attention.value?.sharpest ?? { layer: 0, head: 0 });

/** The token that reads, which stands before the chosen place, and how much of each it reads; null: there is none. */
const reading = derived(() => {
  if (!attention.value) return null;
  const { to: { start }, T, reads } = attention.value, t = at.value - 1 - start, { layer, head } = chosen.value;
  return t < 0 || t >= T ? null : { t, start, weights: reads(layer, head, t) };
});

/** Choose the cell in which token t reads token s. */
function pick(t, s) {
  const { T, to: { start } } = attention.peek(), row = Math.max(0, Math.min(T - 1, t));
  choose(start + row + 1);
  read.value = start + Math.max(0, Math.min(row, s));
}

export function showAttention() {
  const { n_layer, n_head } = model.peek().config;
  const layer = byId("layer"), number = byId("head"), matrix = byId("matrix");
  offer(layer, Array.from({ length: n_layer }, (_, i) => [i, `layer ${i + 1}`]));
  offer(number, [...Array.from({ length: n_head }, (_, i) => [i, `head ${i + 1}`]), [n_head, "average"]]);
  for (const select of [layer, number]) {
    select.addEventListener("change", () => {
      head.value = { layer: Number(layer.value), head: Number(number.value) };
    });
  }
  const where = (event) => (attention.peek() ? cellAt(matrix, event, attention.peek().T) : null);
  matrix.addEventListener("click", () => over.peek() && pick(...over.peek()));
  for (const name of ["pointerdown", "pointermove"]) {
    matrix.addEventListener(name, (event) => { over.value = where(event); });
  }
  matrix.addEventListener("pointerleave", () => { over.value = null; });
  arrows(byId("frame"), (right, down) => {
    if (!reading.peek()) return false;
    const { t, start } = reading.peek();
    pick(t + down, (read.peek() ?? t + start) - start + right);
    return true;
  });
  showCell();
  effect(() => {
    void colours.value;
    layer.value = chosen.value.layer;
    number.value = chosen.value.head;
    for (const one of byId("grid").children) one.setAttribute("aria-pressed", isChosen(one.id));
    byId("matrix-title").textContent = `The matrix of ${headName(chosen.value)}`;
    const { T, reads } = attention.value ?? {};
    if (T) paint(matrix, T, (t) => reads(chosen.value.layer, chosen.value.head, t));
  });
  effect(() => {
    void colours.value;
    if (attention.value) drawGrid();
  });
  effect(() => byId("most").replaceChildren(...sentence()));
  effect(tell);
  return tints;
}

/** The tints of the text: what is read. */
function tints() {
  if (!reading.value) return [];
  const { t, start, weights } = reading.value, most = Math.max(...weights);
  return text.value.tokens.map((_, i) => {
    const value = weights[i - start], side = i === start + t ? "reader" : "read";
    if (value === undefined) return { strength: 0, side: "unseen" };
    return { strength: Math.sqrt(value / most) * Math.min(1, 0.35 + most), side, said: `${percent(value)} read` };
  });
}

/** A row of heads for each layer, and their average. */
function drawGrid() {
  const { L, H, T, reads } = attention.value;
  byId("grid").style.setProperty("--heads", H + 1);
  byId("grid").replaceChildren(...Array.from({ length: L * (H + 1) }, (_, i) => {
    const layer = Math.floor(i / (H + 1)), number = i % (H + 1), picture = el("canvas"), id = `head-${layer}-${number}`;
    requestAnimationFrame(() => paint(picture, T, (t) => reads(layer, number, t)));
    const name = headName({ layer, head: number });
    return button({ id, title: name, "aria-label": name, class: number === H ? "mean" : "",
      "aria-pressed": isChosen(id), onclick: () => { head.value = { layer, head: number }; } }, picture);
  }));
}

function headName({ layer, head }) {
  return `layer ${layer + 1}, ${head === model.peek().config.n_head ? "average" : `head ${head + 1}`}`;
}

function isChosen(id) {
  return String(id === `head-${chosen.peek().layer}-${chosen.peek().head}`);
}

function sentence() {
  const { tokens } = text.value;
  if (!tokens.length || attention.error.value) return [attention.error.value || "Type a text first."];
  if (!reading.value) return [at.value ? "Looking …" : "Nothing stands before the first token: choose another."];
  const { t, start, weights } = reading.value, next = tokens[at.value];
  const first = ranked(weights, FIRST);
  return ["At ", code(tokens[start + t]?.text), ", before it ",
    ...(next ? ["wrote ", code(next.text)] : ["writes what comes next"]), ", this head read ",
    ...first.flatMap(([s, value], n) => [n ? ", " : "", code(tokens[start + s]?.text), ` ${percent(value)} `,
      el("span", { class: "faint" }, s === t ? "(itself)" : `(${t - s} back)`)]), "."];
}

/** Tell about the cell below the pointer, or else the chosen one. */
function tell() {
  const now = reading.value, picked = read.value !== null;
  byId("cursor").hidden = !now || !picked;
  if (!now) return;
  const { T, reads } = attention.value, mine = [now.t, picked ? read.value - now.start : -1];
  const to = { top: now.t, left: mine[1], width: 1, height: 1 };
  for (const [name, cells] of Object.entries(to)) byId("cursor").style[name] = `${(100 * cells) / T}%`;
  const [t, s] = over.value ?? mine;
  const name = (i) => [code(text.value.tokens[now.start + i]?.text), ` (token ${now.start + i + 1})`];
  byId("told").replaceChildren(...(s > t || s < 0 ? ["Point at a cell."]
    : [...name(t), ` reads ${percent(reads(chosen.value.layer, chosen.value.head, t)[s])} of `, ...name(s)]));
}
