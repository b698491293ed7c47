// A text as its tokens: each is a span that can be pointed at, reached with the arrow keys, and tinted.

import { el, percent, visible } from "./dom.js";

/** @typedef {import("./store.js").Token} Token */
/** @typedef {{strength: number, side?: string, said?: string} | null} Tint side: a colour of style.css */

const FULL = 8; // bits of surprise at which the tint is full: a token of 1 in 256
const NEXT = { id: -1, text: "▸" }; // behind the last token: what comes next

/** @param {number | null | undefined} probability @returns {Tint} */
export function surprise(probability) {
  if (probability == null) return null;
  return { strength: Math.min(1, -Math.log2(Math.max(probability, 1e-9)) / FULL), said: percent(probability) };
}

export class Tokens {
  /** @param {{choose: (i: number) => void, point: (i: number | null) => void, enter: () => void, edit: (i: number) => void}} on */
  constructor(on) {
    this.on = on;
    this.current = 0; // the one that Tab leads to
    /** @type {HTMLElement[]} */
    this.spans = [];
    /** @type {Token[]} */
    this.tokens = [];
    this.element = el("div", { class: "text", role: "group", dir: "auto", "aria-label": "the text, token by token" });
    const listen = (/** @type {string} */ name, /** @type {(i: number, event: any) => void} */ action) =>
      this.element.addEventListener(name, (event) => {
        const i = this.spans.indexOf(/** @type {HTMLElement} */ (event.target));
        if (i >= 0) action(i, event);
      });
    listen("pointerover", (i, event) => event.pointerType === "mouse" && on.point(i));
    this.element.addEventListener("pointerleave", () => on.point(null));
    listen("focusin", (i) => on.choose(i));
    listen("click", (i) => this.focus(i));
    listen("dblclick", (i) => on.edit(i));
    listen("keydown", (i, event) => this.key(i, event));
  }

  /** Show other tokens; those that are the same keep their spans. @param {Token[]} tokens @param {boolean} growing */
  show(tokens, growing) {
    const wanted = growing ? tokens : [...tokens, NEXT];
    let same = 0;
    while (same < Math.min(wanted.length, this.tokens.length) && wanted[same] === this.tokens[same]) same += 1;
    const focused = this.spans.includes(/** @type {HTMLElement} */ (document.activeElement));
    for (const span of this.spans.splice(same)) span.remove();
    const made = wanted.slice(same).map(span);
    this.spans.push(...made);
    this.element.append(...made);
    this.tokens = wanted;
    if (focused && !this.spans.includes(/** @type {HTMLElement} */ (document.activeElement))) this.focus(this.current);
  }

  /** @param {number} i */
  mark(i) {
    for (const span of this.element.querySelectorAll(".chosen")) {
      span.classList.remove("chosen");
      span.setAttribute("tabindex", "-1");
      span.removeAttribute("aria-current");
    }
    this.current = Math.min(i, this.spans.length - 1);
    const span = this.spans[this.current];
    if (!span) return;
    span.tabIndex = 0;
    span.classList.add("chosen");
    span.setAttribute("aria-current", "true");
  }

  /** @param {number} i */
  focus(i) {
    const span = this.spans[Math.min(i, this.spans.length - 1)];
    span?.focus({ preventScroll: true });
    span?.scrollIntoView({ block: "nearest" });
  }

  /** @param {number} i @param {KeyboardEvent} event */
  key(i, event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.spans.length - 1;
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: last }[event.key];
    if (to !== undefined) this.focus(Math.max(0, Math.min(last, to)));
    else if (event.key === "Enter" || event.key === "ArrowDown") this.on.enter();
    else if (event.key === "e") this.on.edit(i);
    else return;
    event.preventDefault();
  }

  /** @param {Tint[]} tints by token; what is missing has none */
  tint(tints) {
    this.spans.forEach((span, i) => {
      const tint = tints[i];
      span.style.setProperty("--strength", (tint?.strength ?? 0).toFixed(3));
      span.dataset.side = tint?.side ?? "";
      const name = this.tokens[i] === NEXT ? "what comes next" : `token ${visible(this.tokens[i].text)}`;
      span.setAttribute("aria-label", tint?.said ? `${name}, ${tint.said}` : name);
    });
  }
}

/** @param {Token} token */
function span({ id, text, mine, picked }) {
  const made = el("span", { class: "token", tabindex: "-1", role: "button" }, text || "◌");
  made.classList.toggle("mine", Boolean(mine));
  made.classList.toggle("picked", Boolean(picked));
  made.classList.toggle("part", text === ""); // in the middle of a character
  made.classList.toggle("newline", text.includes("\n"));
  made.classList.toggle("next", id === NEXT.id);
  return made;
}

/** What the tints mean: the same scale in every view. */
export function legend() {
  const chips = [["100%", 1], ["50%", 0.5], ["10%", 0.1], ["1%", 0.01], ["under 0.4%", 0]].map(([text, p]) => {
    const chip = el("span", { class: "token chip" }, text);
    chip.style.setProperty("--strength", String(surprise(Number(p)).strength));
    return chip;
  });
  return el("p", { class: "legend" }, "how likely the token was: ", ...chips);
}
