// The view Logit lens: what the head would predict from the residual stream after each layer, at each place.

import { arrows, button, byId, el, percent, visible } from "./dom.js";
import { lens } from "./looked.js";
import { effect } from "./reactive.js";
import { at, choose, model, text, view } from "./store.js";

const grid = byId("lens-table");

grid.addEventListener("click", ({ target: { dataset, title } }) => {
  if (!dataset.place) return;
  choose(Number(dataset.place));
  byId("lens-note").textContent = title.replaceAll("\n", ", ");
});
arrows(grid, (right, _, target) => {
  if (!right || target === grid) return false;
  choose(Math.max(1, at.peek() + right));
  grid.querySelector("button.chosen")?.focus();
  return true;
});
effect(() => { byId("tied").hidden = !model.value?.config.tie_embeddings; });
effect(() => {
  void at.value;
  byId("lens-note").textContent = lens.error.value || (text.value.tokens.length ? "" : "Type a text first.");
});
effect(() => view.value === "lens" && lens.value && draw(lens.value)); // before the mark, as it reads nothing else
effect(mark);

function draw({ tokens, likeliest, probabilities, names, to: { start } }) {
  const rows = likeliest.map((row, l) => el("tr", {}, el("th", { scope: "row" }, l === 0 ? "embedding" : `layer ${l}`),
    ...tokens.map((_, t) => {
      const [id] = row[t], [p] = probabilities[l][t], right = tokens[t + 1]?.id === id;
      const title = row[t].map((other, n) => `${visible(names[other])} ${percent(probabilities[l][t][n])}`).join("\n");
      return el("td", { class: right ? "right" : "", title, dir: "auto",
        "data-place": start + t + 1, style: { "--strength": p } }, visible(names[id]));
    })));
  const heads = tokens.map(({ text }, t) => el("th", { scope: "col" },
    button({ title: `after token ${start + t + 1}`, "data-place": start + t + 1 }, visible(text))));
  const foot = el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "token"), ...heads));
  const had = grid.contains(document.activeElement);
  grid.replaceChildren(el("table", {}, el("tbody", {}, ...rows.reverse()), foot));
  if (had) /** @type {HTMLElement} */ (grid.querySelector(`button[data-place="${at.peek()}"]`))?.focus();
}

/** Mark the column of the chosen place. */
function mark() {
  void [view.value, lens.value];
  const place = String(at.value);
  for (const cell of grid.querySelectorAll("[data-place]")) {
    const mine = cell.dataset.place === place;
    cell.classList.toggle("chosen", mine);
    if (cell.tagName === "BUTTON") cell.tabIndex = mine ? 0 : -1;
  }
  const column = grid.querySelector("button.chosen");
  requestAnimationFrame(() => { // the view may not be shown yet
    if (column) grid.scrollLeft = column.parentElement.offsetLeft - grid.clientWidth / 2;
  });
}
