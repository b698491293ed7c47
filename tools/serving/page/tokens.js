// A text as its tokens: each is a span that can be pointed at, reached with the arrow keys, and tinted.

import { el, visible } from "./dom.js";

// Bits of surprise at which the tint is full: a token of 1 in 256.
const FULL = 8;

// `on` may have look(i, span, how) when a token is pointed at or focused, leave(), open(i, span) for a click or
// Enter, edit(i) for a double click or "e".
export class Tokens {
  constructor(label, on = {}) {
    this.on = on;
    this.spans = [];
    this.current = 0; // the one that Tab leads to
    this.element = el("div", { class: "text", role: "group", "aria-label": label });
    const listen = (name, action) => this.element.addEventListener(name, (event) => {
      const i = this.spans.indexOf(event.target);
      if (i >= 0) action(i, event);
    });
    listen("pointerover", (i, event) => event.pointerType === "mouse" && on.look?.(i, this.spans[i], "pointer"));
    listen("pointerout", (i, event) => event.pointerType === "mouse" && on.leave?.());
    listen("focusin", (i) => { this.reach(i); if (this.spans[i].matches(":focus-visible")) on.look?.(i, this.spans[i], "focus"); });
    listen("click", (i) => { this.reach(i); this.spans[i].focus({ preventScroll: true }); on.open?.(i, this.spans[i]); });
    listen("dblclick", (i) => on.edit?.(i));
    listen("keydown", (i, event) => this.key(i, event));
  }

  show(tokens) {
    this.spans = [];
    this.element.replaceChildren();
    this.add(tokens);
  }

  add(tokens) {
    const made = tokens.map((token) => this.span(token));
    this.spans.push(...made);
    this.element.append(...made);
    this.reach(Math.min(this.current, this.spans.length - 1));
  }

  span({ id, text, mine, picked }) {
    const span = el("span", { class: "token", tabindex: "-1", role: "button" }, text || "◌");
    span.setAttribute("aria-label", id == null ? "what comes next" : `token ${visible(text)}`);
    span.classList.toggle("mine", Boolean(mine));
    span.classList.toggle("picked", Boolean(picked));
    span.classList.toggle("part", text === ""); // in the middle of a character
    span.classList.toggle("newline", text.includes("\n"));
    return span;
  }

  reach(i) {
    if (i < 0) return;
    if (this.spans[this.current]) this.spans[this.current].tabIndex = -1;
    this.current = i;
    this.spans[i].tabIndex = 0;
  }

  key(i, event) {
    const last = this.spans.length - 1;
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: last }[event.key];
    if (to !== undefined) this.spans[Math.max(0, Math.min(last, to))].focus();
    else if (event.key === "Enter" || event.key === "ArrowDown") this.on.open?.(i, this.spans[i], true);
    else if (event.key === "e" && !event.ctrlKey && !event.metaKey) this.on.edit?.(i);
    else return;
    event.preventDefault();
  }

  // Tint a token by how unlikely it was; null takes the tint away.
  tint(i, probability) {
    if (probability == null) this.spans[i].style.removeProperty("--strength");
    else this.strength(i, Math.min(1, -Math.log2(Math.max(probability, 1e-9)) / FULL));
  }

  strength(i, value, side = "") {
    this.spans[i].style.setProperty("--strength", value.toFixed(3));
    this.spans[i].dataset.side = side;
  }
}

// What the tints mean: the same scale in every view.
export function legend() {
  const steps = [["100%", 0], ["50%", 1], ["10%", 3.32], ["1%", 6.64], ["under 0.4%", 8]];
  const made = steps.map(([text, bits]) => {
    const chip = el("span", { class: "token chip" }, text);
    chip.style.setProperty("--strength", (bits / FULL).toFixed(3));
    return chip;
  });
  return el("p", { class: "legend" }, "how likely the token was: ", ...made);
}

// The tokens of an edited text, where those that are as before keep what is known of them.
export function merged(before, after) {
  let same = 0;
  while (same < Math.min(before.length, after.length) && before[same].id === after[same].id) same += 1;
  return after.map((token, i) => (i < same ? before[i] : { ...token, mine: true }));
}
