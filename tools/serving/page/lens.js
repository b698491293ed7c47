// The view Logit lens: what the head would predict from the residual stream after each layer, at each place; and
// for the chosen place the sizes of the stream and of what each block adds to it.

import { bar, bars, byId, code, el, percent, table, tinted, visible } from "./dom.js";
import { lens } from "./looked.js";
import { effect } from "./reactive.js";
import { at, choose, model, text } from "./store.js";

const grid = byId("lens-table");

export class Lens {
  constructor() {
    byId("tied").hidden = !model.peek().config.tie_embeddings;
    grid.addEventListener("click", (event) => {
      const { place } = event.target.dataset;
      if (place !== undefined) choose(Number(place));
    });
    grid.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || event.target === grid) return;
      event.preventDefault();
      choose(Math.max(1, at.peek() + step));
      grid.querySelector("button.chosen")?.focus();
    });
    effect(() => {
      byId("lens-note").textContent = lens.error.value || (text.value.tokens.length ? "" : "Type a text first.");
      if (lens.value) draw(lens.value);
    });
    effect(mark);
  }
}

function draw({ tokens, likeliest, probabilities, names, to: { start } }) {
  const rows = likeliest.map((row, l) => el("tr", {}, el("th", { scope: "row" }, layer(l)), ...tokens.map((_, t) => {
    const [id] = row[t], [p] = probabilities[l][t], right = tokens[t + 1]?.id === id;
    return tinted(el("td", { class: right ? "right" : "", title: `${visible(names[id])} ${percent(p)}`, dir: "auto",
      "data-place": start + t + 1 }, visible(names[id])), p);
  })));
  const heads = tokens.map(({ text }, t) => el("th", { scope: "col" }, el("button", { type: "button",
    title: `after token ${start + t + 1}`, "data-place": start + t + 1 }, visible(text))));
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
    if (column) grid.scrollLeft = column.offsetLeft + column.offsetWidth / 2 - grid.clientWidth / 2;
  });
  byId("lens-detail").hidden = !seen || t < 0 || t >= seen.tokens.length;
  if (!byId("lens-detail").hidden) details(seen, t);
}

/** The numbers of one place: a row for each layer. */
function details(seen, t) {
  const { tokens, stream_norms, attn_norms, mlp_norms } = seen, following = tokens[t + 1];
  const most = Math.max(...[...stream_norms, ...attn_norms, ...mlp_norms].map((row) => row[t]));
  const rows = stream_norms.map((stream, l) => el("tr", {}, el("th", { scope: "row" }, layer(l)),
    el("td", {}, guesses(seen, l, t, following)),
    ...[stream, attn_norms[l - 1], mlp_norms[l - 1]].map((row) => norm(row?.[t], most))));
  byId("lens-title").replaceChildren("After ", code(tokens[t].text),
    ...(following ? [" comes ", code(following.text)] : [" comes what is not written yet"]));
  const heads = ["after", "the likeliest next tokens", "stream", "attention adds", "MLP adds"];
  byId("lens-norms").replaceChildren(table("norms", heads, rows.reverse()));
}

function layer(l) {
  return l === 0 ? "embedding" : `layer ${l}`;
}

function guesses({ likeliest, probabilities, names }, l, t, following) {
  return el("span", { class: "guesses" }, ...likeliest[l][t].map((id, n) => {
    const p = probabilities[l][t][n], kind = id === following?.id ? "guess right" : "guess";
    return tinted(el("span", { class: kind }, code(names[id]), ` ${percent(p)}`), p);
  }));
}

/** A norm as a number and a bar. */
function norm(value, most) {
  return value == null ? el("td") : el("td", { class: "norm" },
    el("span", { class: "number" }, value.toPrecision(3)), bars(bar(value / most)));
}
