// The view Logit lens: what the head would predict from the residual stream after each layer, at each place; and
// for the chosen place the sizes of the stream and of what each block adds to it.

import { arrows, bars, button, byId, code, el, number, percent, table, visible } from "./dom.js";
import { lens } from "./looked.js";
import { effect } from "./reactive.js";
import { at, choose, model, text } from "./store.js";

const grid = byId("lens-table");

export function showLens() {
  byId("tied").hidden = !model.peek().config.tie_embeddings;
  grid.addEventListener("click", ({ target: { dataset } }) => dataset.place && choose(Number(dataset.place)));
  arrows(grid, (right, _, target) => {
    if (!right || target === grid) return false;
    choose(Math.max(1, at.peek() + right));
    grid.querySelector("button.chosen")?.focus();
    return true;
  });
  effect(() => {
    byId("lens-note").textContent = lens.error.value || (text.value.tokens.length ? "" : "Type a text first.");
    if (lens.value) draw(lens.value);
  });
  effect(mark);
}

function draw({ tokens, likeliest, probabilities, names, to: { start } }) {
  const rows = likeliest.map((row, l) => el("tr", {}, el("th", { scope: "row" }, layer(l)), ...tokens.map((_, t) => {
    const [id] = row[t], [p] = probabilities[l][t], right = tokens[t + 1]?.id === id;
    return el("td", { class: right ? "right" : "", title: `${visible(names[id])} ${percent(p)}`, dir: "auto",
      "data-place": start + t + 1, style: { "--strength": p } }, visible(names[id]));
  })));
  const heads = tokens.map(({ text }, t) => el("th", { scope: "col" },
    button({ title: `after token ${start + t + 1}`, "data-place": start + t + 1 }, visible(text))));
  const foot = el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "read"), ...heads));
  grid.replaceChildren(el("table", {}, el("tbody", {}, ...rows.reverse()), foot));
}

/** Mark the column of the chosen place, and show its numbers. */
function mark() {
  const seen = lens.value, place = at.value, t = seen ? place - 1 - seen.to.start : -1;
  for (const cell of grid.querySelectorAll("[data-place]")) {
    const mine = cell.dataset.place === String(place);
    cell.classList.toggle("chosen", mine);
    if (cell.tagName === "BUTTON") cell.tabIndex = mine ? 0 : -1;
  }
  const column = grid.querySelector("button.chosen");
  requestAnimationFrame(() => { // the view may not be shown yet
    if (column) grid.scrollLeft = column.parentElement.offsetLeft - grid.clientWidth / 2;
  });
  byId("lens-detail").hidden = !seen?.tokens[t];
  if (seen?.tokens[t]) details(seen, t);
}

/** The numbers of one place: a row for each layer. */
function details({ tokens, likeliest, probabilities, names, stream_norms, attn_norms, mlp_norms }, t) {
  const following = tokens[t + 1];
  const most = Math.max(...[...stream_norms, ...attn_norms, ...mlp_norms].map((row) => row[t]));
  const norm = (value) => (value == null ? el("td") : el("td", { class: "norm" },
    number(value.toPrecision(3)), bars(value / most)));
  const guess = (l, id, n) => el("span", { class: id === following?.id ? "guess right" : "guess",
    style: { "--strength": probabilities[l][t][n] } }, code(names[id]), ` ${percent(probabilities[l][t][n])}`);
  const rows = stream_norms.map((stream, l) => el("tr", {}, el("th", { scope: "row" }, layer(l)),
    el("td", {}, el("span", { class: "guesses" }, ...likeliest[l][t].map((id, n) => guess(l, id, n)))),
    ...[stream, attn_norms[l - 1], mlp_norms[l - 1]].map((row) => norm(row?.[t]))));
  byId("lens-title").replaceChildren("After ", code(tokens[t].text),
    ...(following ? [" comes ", code(following.text)] : [" comes what is not written yet"]));
  const heads = ["after", "the likeliest next tokens", "stream", "attention adds", "MLP adds"];
  byId("lens-norms").replaceChildren(table("norms", heads, rows.reverse()));
}

const layer = (l) => l === 0 ? "embedding" : `layer ${l}`;
