// The view Logit lens: what the head would predict from the residual stream after each layer, at each place; and
// for the chosen place the sizes of the stream and of what each block adds to it.

import { bar, card, code, el, percent, visible } from "./dom.js";
import { lens } from "./looked.js";
import { effect } from "./reactive.js";
import { at, choose, model, text } from "./store.js";

export class Lens {
  constructor() {
    this.table = el("div", { class: "scroll lens", tabindex: "0", role: "region", "aria-label": "predictions by layer; scrolls sideways" });
    this.detail = el("div", { class: "card" });
    const tied = model.peek().config.tie_embeddings
      ? " The embedding’s row mostly repeats the token itself: the head is the table of embeddings (tied embeddings), and "
        + "a vector is most like its own entry." : "";
    this.note = el("p", { class: "faint" });
    this.elements = [
      card("The likeliest next token after each layer", el("p", { class: "faint" }, "A column for each token that is read, "
        + "from the embedding at the bottom to the model’s own prediction at the top. The stronger a cell is tinted, the "
        + "surer the prediction; a green line is below the token that did come next. Click a column for its numbers."
        + tied), this.table, this.note), this.detail];
    this.table.addEventListener("click", (event) => {
      const place = /** @type {HTMLElement} */ (event.target).dataset.place;
      if (place !== undefined) choose(Number(place));
    });
    this.table.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || event.target === this.table) return;
      event.preventDefault();
      choose(Math.max(1, at.peek() + step));
      /** @type {HTMLElement} */ (this.table.querySelector("button.chosen"))?.focus();
    });
    effect(() => {
      this.note.textContent = lens.error.value || (text.value.tokens.length ? "" : "Type a text first.");
      if (lens.value) this.draw(lens.value);
    });
    effect(() => this.mark());
  }

  /** @param {any} seen */
  draw({ tokens, likeliest, probabilities, names, to: { start } }) {
    const rows = likeliest.map((/** @type {number[][]} */ row, /** @type {number} */ l) => {
      const cells = tokens.map((/** @type {any} */ _, /** @type {number} */ t) => {
        const [id] = row[t], [p] = probabilities[l][t], right = tokens[t + 1]?.id === id;
        const cell = el("td", { class: right ? "right" : "", title: `${visible(names[id])} ${percent(p)}`, dir: "auto",
          "data-place": start + t + 1 }, visible(names[id]));
        cell.style.setProperty("--strength", p.toFixed(3));
        return cell;
      });
      return el("tr", {}, el("th", { scope: "row" }, layer(l)), ...cells);
    });
    const heads = tokens.map((/** @type {any} */ token, /** @type {number} */ t) => el("th", { scope: "col" },
      el("button", { type: "button", "aria-label": `after token ${start + t + 1}, ${visible(token.text)}`,
        "data-place": start + t + 1 }, visible(token.text))));
    const foot = el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "read"), ...heads));
    this.table.replaceChildren(el("table", {}, el("tbody", {}, ...rows.reverse()), foot));
  }

  /** Mark the column of the chosen place, and show its numbers: a row for each layer. */
  mark() {
    const seen = lens.value, place = at.value;
    for (const cell of this.table.querySelectorAll("[data-place]")) {
      const mine = cell.getAttribute("data-place") === String(place);
      cell.classList.toggle("chosen", mine);
      if (cell.tagName === "BUTTON") cell.setAttribute("tabindex", mine ? "0" : "-1");
    }
    const column = this.table.querySelector("button.chosen");
    if (column instanceof HTMLElement) requestAnimationFrame(() => { // the view may not be in the page yet
      this.table.scrollLeft = column.offsetLeft + column.offsetWidth / 2 - this.table.clientWidth / 2;
    });
    const t = seen ? place - 1 - seen.to.start : -1;
    this.detail.hidden = !seen || t < 0 || t >= seen.tokens.length;
    if (!this.detail.hidden) this.detail.replaceChildren(...details(seen, t));
  }
}

/** @param {number} l */
function layer(l) {
  return l === 0 ? "embedding" : `layer ${l}`;
}

/** The numbers of one place. @param {any} seen @param {number} t */
function details(seen, t) {
  const { tokens, stream_norms, attn_norms, mlp_norms } = seen, following = tokens[t + 1];
  const most = Math.max(...[...stream_norms, ...attn_norms, ...mlp_norms].map((row) => row[t]));
  const rows = stream_norms.map((/** @type {number[]} */ stream, /** @type {number} */ l) => el("tr", {},
    el("th", { scope: "row" }, layer(l)), el("td", {}, guesses(seen, l, t, following)),
    ...[stream, attn_norms[l - 1], mlp_norms[l - 1]].map((row) => norm(row?.[t], most))));
  const heads = ["after", "the likeliest next tokens", "stream", "attention adds", "MLP adds"];
  return [
    el("h3", {}, "After ", code(tokens[t].text), following ? " comes " : " comes what is not written yet",
      following ? code(following.text) : ""),
    el("p", { class: "faint" }, "The last columns are Euclidean norms: of the residual stream, and of what the layer’s "
      + "attention and MLP have added to it."),
    el("div", { class: "scroll" }, el("table", { class: "norms" },
      el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows.reverse())))];
}

/** @param {any} seen @param {number} l @param {number} t @param {any} following */
function guesses({ likeliest, probabilities, names }, l, t, following) {
  return el("span", { class: "guesses" }, ...likeliest[l][t].map((/** @type {number} */ id, /** @type {number} */ n) => {
    const guess = el("span", { class: id === following?.id ? "guess right" : "guess" }, code(names[id]),
      ` ${percent(probabilities[l][t][n])}`);
    guess.style.setProperty("--strength", probabilities[l][t][n].toFixed(3));
    return guess;
  }));
}

/** A norm as a number and a bar. @param {number | undefined} value @param {number} most */
function norm(value, most) {
  if (value == null) return el("td", {});
  return el("td", { class: "norm" }, el("span", { class: "number" }, value.toPrecision(3)),
    el("span", { class: "bars", "aria-hidden": "true" }, bar(value / most)));
}
