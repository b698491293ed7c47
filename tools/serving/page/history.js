// Texts that the browser keeps: each with its name and all that can be undone. A tab writes its own text alone, so
// that two tabs do not disturb each other, and finds it again after a reload.

import { button, byId, el } from "./dom.js";
import { batch, effect } from "./reactive.js";
import { at, choose, future, model, past, text } from "./store.js";
import { say } from "./writing.js";

/** @typedef {import("./store.js").Text} Text */
/** @typedef {{model: string, name: string, saved: number, at: number, text: Text, past: Text[],
 * future: Text[]}} Kept */

const PREFIX = "text-", MINE = "text";
const SOON = 400; // milliseconds until a change is kept

let id = sessionStorage.getItem(MINE) ?? fresh(), timer = 0;
const menu = byId("history"), field = byId("name");

effect(() => {
  void [text.value, past.value, future.value, at.value];
  timer ||= setTimeout(keep, SOON);
});
addEventListener("pagehide", keep);
field.addEventListener("input", keep);
menu.addEventListener("toggle", () => menu.open && draw());
menu.addEventListener("keydown", (event) => event.key === "Escape" && close());

function close() {
  menu.open = false;
  menu.querySelector("summary").focus();
}

/** Keep the text as it is now. */
function keep() {
  clearTimeout(timer);
  timer = 0;
  if (!model.peek() || !text.peek().tokens.length || (text.peek().example && !past.peek().length)) return;
  sessionStorage.setItem(MINE, id);
  const kept = { model: model.peek().name, name: field.value, saved: Date.now(), at: at.peek(), text: text.peek(),
    past: past.peek(), future: future.peek() };
  for (;;) {
    try {
      return localStorage.setItem(PREFIX + id, JSON.stringify(kept));
    } catch { // it is full
      const oldest = entries().filter(([other]) => other !== id).pop();
      if (oldest) localStorage.removeItem(PREFIX + oldest[0]);
      else if (kept.past.length) kept.past = kept.past.slice(1 + kept.past.length / 2);
      else return say("The browser's storage is full: this text is kept in the URL alone.", true);
    }
  }
}

/** The text that this tab had before a reload. @returns {Kept | null} */
export function mine() {
  const kept = JSON.parse(localStorage.getItem(PREFIX + id) ?? "null");
  return kept?.model === model.peek().name ? kept : null;
}

/** Show a text that is kept. @param {Kept} kept */
export function open(kept, name = id) {
  keep();
  id = name;
  sessionStorage.setItem(MINE, id);
  field.value = kept.name;
  batch(() => {
    text.value = kept.text;
    past.value = kept.past;
    future.value = kept.future;
    choose(kept.at);
  });
}

/** Begin with no text. */
export function begin() {
  const none = { text: { tokens: [], from: 0 }, past: [], future: [], at: 0, name: "" };
  open(/** @type {any} */ (none), fresh());
}

function draw() {
  keep();
  const rows = entries().filter(([, kept]) => kept.model === model.peek()?.name).map(([name, kept]) => {
    const begun = kept.text.tokens.slice(0, 40).map((token) => token.text).join("").trim();
    const title = kept.name || begun.slice(0, 40) || "(blank)";
    const show = () => {
      open(kept, name);
      close();
    };
    const drop = () => {
      if (name === id) begin();
      localStorage.removeItem(PREFIX + name);
      draw();
    };
    const saved = new Date(kept.saved).toLocaleString(), mine = name === id;
    return el("li", {}, button({ class: "plain", title: saved, "aria-current": mine && "true", onclick: show }, title),
      button({ title: "remove this text", "aria-label": `remove ${title}`, onclick: drop }, "✕"));
  });
  byId("kept").replaceChildren(...(rows.length ? rows : [el("li", { class: "faint" }, "No text is kept yet.")]));
}

function fresh() {
  return Math.random().toString(36).slice(2);
}

/** All texts that are kept, the newest first. @returns {[string, Kept][]} */
function entries() {
  return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX))
    .map((key) => /** @type {[string, Kept]} */ ([key.slice(PREFIX.length), JSON.parse(localStorage.getItem(key))]))
    .sort(([, a], [, b]) => b.saved - a.saved);
}
