// The panel of the chosen place: how likely its token was, and the ten likeliest there, each a button to go on with.

import { bar, bits, code, el, percent, visible } from "./dom.js";
import { effect } from "./reactive.js";
import { at, choose, model, text, writing } from "./store.js";
import { looking, placeAt, places, pointed } from "./looked.js";
import { branch } from "./writing.js";

export class PlacePanel {
  /** @param {() => void} back returns the focus to the text */
  constructor(back) {
    this.back = back;
    this.element = el("aside", { class: "card place", "aria-label": "what could stand at the chosen place" });
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") back();
      else this.key(event);
    });
    effect(() => {
      const i = pointed.value ?? at.value;
      const had = this.element.contains(document.activeElement);
      this.element.replaceChildren(...this.content(i, text.value.tokens[i]));
      if (had) this.enter();
    });
  }

  enter() {
    this.element.querySelector("button")?.focus();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const rows = [...this.element.querySelectorAll("button")];
    rows[(rows.indexOf(/** @type {any} */ (document.activeElement)) + step + rows.length) % rows.length]?.focus();
  }

  /** @param {number} i @param {import("./store.js").Token | undefined} token none behind the last */
  content(i, token) {
    const tokens = text.value.tokens, place = placeAt(i);
    const title = token ? el("h3", {}, code(token.text), ` token ${i + 1} of ${tokens.length}`) : el("h3", {}, "What comes next");
    const note = (/** @type {string} */ told) => [title, el("p", { class: "faint" }, told)];
    if (!tokens.length) return note("Once there is a text, you see here what could stand at each of its places.");
    if (i === 0) return note("Nothing stands before the first token, so the model had nothing to go by.");
    if (writing.value) return note("Looked up when the text is written.");
    if (place === undefined) return note(places.error.value || "Looking it up …");
    if (!place) return note(`The model reads ${model.value.config.block_size} tokens at most, and no longer sees this one.`);
    const name = looking.value === model.value.version ? "" : ` at ${looking.value}`;
    const head = token ? `The model gave it ${percent(place.before)}${name}, ${bits(place.before)}; ${percent(place.after)} as drawn.`
      : "Choose the next token yourself, or press Write.";
    const most = Math.max(...place.likeliest_before, ...place.likeliest_after);
    return [title, el("p", { class: "what" }, head),
      el("p", { class: "choice titles", "aria-hidden": "true" }, el("span", {}, "token"), el("span"),
        el("span", { class: "number" }, "model"), el("span", { class: "number" }, "as drawn")),
      ...place.likeliest.map((id, n) => this.choice(i, id, place, n, most, id === token?.id)),
      el("p", { class: "faint" }, "As drawn: after temperature, top-k and top-p. Click one to go on from it instead.")];
  }

  /** @param {number} i @param {number} id @param {import("./looked.js").Place} place @param {number} n
   * @param {number} most @param {boolean} mine */
  choice(i, id, place, n, most, mine) {
    const name = places.value.names[id], before = place.likeliest_before[n], after = place.likeliest_after[n];
    const onclick = () => {
      pointed.value = null;
      this.back();
      choose(i);
      branch(i, { id, text: name, probability: before });
    };
    return el("button", { type: "button", class: mine ? "choice mine" : "choice", onclick,
      "aria-label": `go on with ${visible(name)}: ${percent(before)}, ${percent(after)} as drawn` }, code(name),
    el("span", { class: "bars", "aria-hidden": "true" }, bar(before / most, "before"), bar(after / most, "after")),
    el("span", { class: "number" }, percent(before)), el("span", { class: "number" }, percent(after)));
  }
}
