// A text as its tokens: each is a span that can be pointed at, reached with the arrow keys, and tinted.

import { bits, byId, el, percent, visible } from "./dom.js";
import { pointed } from "./looked.js";
import { enter } from "./place.js";
import { choose, model } from "./store.js";

/** @typedef {import("./store.js").Token} Token */
/** @typedef {{strength: number, side?: string, said?: string} | null} Tint side: a colour of style.css */

const FULL = 8; // bits of surprise at which the tint is full: a token of 1 in 256
const FULL_GAIN = 4; // bits of difference, to another model's
const NEXT = { id: -1, text: "▸" }; // after the last token: what comes next

export const box = byId("tokens");
/** @type {HTMLElement[]} */
const spans = [];
/** @type {Token[]} */
let shown = [];
let current = 0; // the one that Tab leads to

/** @returns {Tint} */
export function surprise(probability) {
  return probability == null ? null : { strength: Math.min(1, bits(probability) / FULL), said: percent(probability) };
}

/** @type {Tint} */
export const UNLEARNED = { strength: 0, side: "unlearned", said: "which the model did not learn to write" };

/** How much more a token was expected than by another model. @param {number} bits @returns {Tint} */
export function gained(bits, said) {
  return { strength: Math.min(1, Math.abs(bits) / FULL_GAIN), side: bits > 0 ? "good" : "bad", said };
}

/** Listen to the tokens; `edit` changes the text from one of them on. @param {(i: number) => void} edit */
export function listen(edit) {
  const on = /** @type {{[name: string]: (i: number, event: any) => void}} */ ({
    pointerover: (i, event) => event.pointerType === "mouse" && (pointed.value = i),
    focusin: choose,
    click: focus,
    dblclick: edit,
    keydown: (i, event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      pointed.value = null; // the panel follows the keys, wherever the pointer rests
      const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: spans.length - 1 }[event.key];
      if (to !== undefined) focus(to);
      else if (["Enter", " ", "ArrowDown"].includes(event.key)) enter();
      else if (event.key === "e") edit(i);
      else return;
      event.preventDefault();
    },
  });
  for (const [name, action] of Object.entries(on)) {
    box.addEventListener(name, (event) => spans.includes(event.target) && action(spans.indexOf(event.target), event));
  }
  box.addEventListener("pointerleave", () => { pointed.value = null; });
}

/** Show other tokens; those that are the same keep their spans. @param {Token[]} tokens @param {boolean} growing */
export function show(tokens, growing) {
  const wanted = growing ? tokens : [...tokens, NEXT], focused = box.contains(document.activeElement);
  const differ = wanted.findIndex((token, i) => token !== shown[i]), same = differ < 0 ? wanted.length : differ;
  for (const old of spans.splice(same)) old.remove();
  const made = wanted.slice(same).map(span);
  spans.push(...made);
  box.append(...made);
  shown = wanted;
  if (focused && !box.contains(document.activeElement)) focus(current);
}

export function focus(i) {
  const span = spans[Math.max(0, Math.min(spans.length - 1, i))];
  span?.focus({ preventScroll: true });
  span?.scrollIntoView({ block: "nearest" });
}

/** Mark the chosen token, and tint all. @param {number} at @param {Tint[]} tints what is missing has none */
export function mark(at, tints) {
  current = Math.min(at, spans.length - 1);
  for (const [i, span] of spans.entries()) {
    span.tabIndex = i === current ? 0 : -1;
    look(span, shown[i], tints[i], i === current);
  }
}

export function look(span, token, tint, chosen) {
  const name = token === NEXT ? "what comes next" : `token ${visible(token.text)}`;
  span.classList.toggle("chosen", chosen);
  span.ariaCurrent = chosen ? "true" : null;
  span.style.setProperty("--strength", (tint?.strength ?? 0).toFixed(3));
  span.dataset.side = tint?.side ?? "";
  span.title = tint?.said ?? "";
  span.ariaLabel = tint?.said ? `${name}, ${tint.said}` : name;
}

export function span({ id, text, mine, picked }) {
  const special = model.peek()?.marks.special.includes(id);
  const kinds = { token: true, mine, picked, special, newline: text.includes("\n"), next: id === NEXT.id };
  const names = Object.keys(kinds).filter((name) => kinds[name]);
  return el("span", { class: names.join(" "), tabindex: -1, role: "button" }, text || "◌");
}
