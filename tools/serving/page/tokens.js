// A text as its tokens: each is a span that can be pointed at, reached with the arrow keys, and tinted.

import { bits, byId, el, percent, tinted, visible } from "./dom.js";

/** @typedef {import("./store.js").Token} Token */
/** @typedef {{strength: number, side?: string, said?: string} | null} Tint side: a colour of style.css */

const FULL = 8; // bits of surprise at which the tint is full: a token of 1 in 256
const NEXT = { id: -1, text: "▸" }; // behind the last token: what comes next

/** @returns {Tint} */
export function surprise(probability) {
  return probability == null ? null : { strength: Math.min(1, bits(probability) / FULL), said: percent(probability) };
}

export class Tokens {
  /** @param {{choose: (i: number) => void, point: (i: number | null) => void, enter: () => void,
   * edit: (i: number) => void}} on */
  constructor(on) {
    this.on = on;
    this.current = 0; // the one that Tab leads to
    /** @type {HTMLElement[]} */
    this.spans = [];
    /** @type {Token[]} */
    this.tokens = [];
    this.element = byId("tokens");
    const listen = (name, action) => this.element.addEventListener(name, (event) => {
      const i = this.spans.indexOf(event.target);
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
    const wanted = growing ? tokens : [...tokens, NEXT], focused = this.element.contains(document.activeElement);
    let same = 0;
    while (same < Math.min(wanted.length, this.tokens.length) && wanted[same] === this.tokens[same]) same += 1;
    for (const old of this.spans.splice(same)) old.remove();
    const made = wanted.slice(same).map(span);
    this.spans.push(...made);
    this.element.append(...made);
    this.tokens = wanted;
    if (focused && !this.element.contains(document.activeElement)) this.focus(this.current);
  }

  mark(i) {
    this.current = Math.min(i, this.spans.length - 1);
    this.spans.forEach((span, n) => {
      const mine = n === this.current;
      if (span.classList.contains("chosen") === mine) return;
      span.classList.toggle("chosen", mine);
      span.tabIndex = mine ? 0 : -1;
      if (mine) span.setAttribute("aria-current", "true");
      else span.removeAttribute("aria-current");
    });
  }

  focus(i) {
    const span = this.spans[Math.min(i, this.spans.length - 1)];
    span?.focus({ preventScroll: true });
    span?.scrollIntoView({ block: "nearest" });
  }

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
      const tint = tints[i], token = this.tokens[i];
      tinted(span, tint?.strength ?? 0).dataset.side = tint?.side ?? "";
      const name = token === NEXT ? "what comes next" : `token ${visible(token.text)}`;
      span.setAttribute("aria-label", tint?.said ? `${name}, ${tint.said}` : name);
    });
  }
}

/** @param {Token} token */
function span({ id, text, mine, picked }) {
  const kinds = ["token", mine && "mine", picked && "picked", text.includes("\n") && "newline"];
  if (id === NEXT.id) kinds.push("next");
  return el("span", { class: kinds.filter(Boolean).join(" "), tabindex: -1, role: "button" }, text || "◌");
}
