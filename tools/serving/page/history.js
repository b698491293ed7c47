// What the browser keeps: the URL, and texts, each with its name and all that can be undone. A tab writes its own text
// alone, so that two tabs do not disturb each other, and finds it again after a reload.

import { button, byId, el } from "./dom.js";
import { batch, effect } from "./reactive.js";
import { at, choose, draft, future, model, past, spelled, text, toHash, writing } from "./store.js";
import { area, editing } from "./textcard.js";
import { say } from "./writing.js";

/** @typedef {import("./store.js").Text} Text */
/** @typedef {{model: string, name: string, saved: number, at: number, text: Text, past: Text[], future: Text[],
 * typed: string}} Kept typed: in the field, and not yet a part of the text */

const PREFIX = "text-", MINE = "text";
const SOON = 150; // milliseconds until a change is kept: browsers allow few changes of the URL

let id = String(Math.random()), timer = 0, seen = ""; // seen: what this tab last kept or opened
const field = byId("name");

const content = ({ saved, at, ...kept }) => JSON.stringify(kept);
const soon = () => { timer ||= setTimeout(keep, SOON); };
effect(() => {
  void [past.value, future.value, toHash(), editing.value];
  soon();
});
addEventListener("pagehide", keep);
for (const typing of [field, area]) typing.addEventListener("input", keep); // a reload may come before pagehide
byId("history").addEventListener("beforetoggle", (event) => event.newState === "open" && draw());

/** Keep what has changed. */
function keep() {
  timer = 0;
  if (!model.peek()) return;
  if (!history.state?.ours || location.hash !== toHash()) history.replaceState({ ours: true }, "", toHash());
  const typed = editing.peek() ? area.value : "", before = draft.peek() ?? text.peek();
  const { tokens, example } = before;
  if (!typed && (!tokens.length || (example && !past.peek().length))) return;
  const kept = { model: model.peek().name, name: field.value, saved: Date.now(), at: at.peek(), text: before,
    past: past.peek(), future: future.peek(), typed };
  if (content(kept) === seen) return;
  sessionStorage.setItem(MINE, id);
  for (;;) {
    try {
      seen = content(kept);
      return localStorage.setItem(PREFIX + id, JSON.stringify(kept));
    } catch { // it is full
      if (!kept.past.length) return say("The browser's storage is full: remove texts from History.", true);
      kept.past = kept.past.slice(1 + kept.past.length / 2);
    }
  }
}

/** The text that this tab had before a reload, maybe with another model. @returns {Kept | null} */
export const mine = () => JSON.parse(localStorage.getItem(PREFIX + sessionStorage.getItem(MINE)) ?? "null");

/** Show a text that is kept. @param {Kept} kept */
export function open(kept, name = sessionStorage.getItem(MINE)) {
  writing.peek()?.abort(); // or it would go on with this text
  keep();
  id = name;
  seen = content(kept);
  sessionStorage.setItem(MINE, id);
  field.value = kept.name;
  batch(() => {
    draft.value = null;
    text.value = kept.text;
    past.value = kept.past;
    future.value = kept.future;
    choose(kept.at);
    editing.value = Boolean(kept.typed) || !kept.text.tokens.length;
  });
  area.value = kept.typed ?? "";
}

/** Begin with no text. */
export function begin() {
  const none = { text: { tokens: [], from: 0 }, past: [], future: [], at: 0, name: "", typed: "", saved: 0 };
  open(/** @type {any} */ (none), String(Math.random()));
}

function draw() {
  keep();
  const rows = entries().filter(([, kept]) => kept.model === model.peek()?.name).map(([name, kept]) => {
    const begun = kept.typed || spelled(kept.text.tokens.slice(0, 40));
    const title = kept.name || begun.trim().slice(0, 40) || "(blank)";
    const drop = () => {
      if (!confirm(`Remove "${title}"?`)) return;
      if (name === id) begin();
      localStorage.removeItem(PREFIX + name);
      draw();
      field.focus();
    };
    const saved = new Date(kept.saved).toLocaleString(), mine = name === id;
    const shows = { popovertarget: "history", onclick: () => open(kept, name) };
    return el("li", {}, button({ class: "plain", title: saved, "aria-current": mine && "true", ...shows }, title),
      button({ title: "remove this text", "aria-label": `remove ${title}`, onclick: drop }, "✕"));
  });
  byId("kept").replaceChildren(...(rows.length ? rows : [el("li", { class: "faint" }, "No text is kept yet.")]));
}

/** All texts that are kept, the newest first. @returns {[string, Kept][]} */
function entries() {
  return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX))
    .map((key) => /** @type {[string, Kept]} */ ([key.slice(PREFIX.length), JSON.parse(localStorage.getItem(key))]))
    .sort(([, a], [, b]) => b.saved - a.saved);
}
