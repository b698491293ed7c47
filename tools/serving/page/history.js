// Texts that the browser keeps: each with its name and all that can be undone. A tab writes its own text alone, so
// that two tabs do not disturb each other, and finds it again after a reload.

import { button, el } from "./dom.js";
import { batch, effect } from "./reactive.js";
import { at, choose, future, model, past, text } from "./store.js";
import { say } from "./writing.js";

/** @typedef {import("./store.js").Text} Text */
/** @typedef {{model: string, name: string, saved: number, at: number, text: Text, past: Text[], future: Text[]}} Kept */

const PREFIX = "text-", MINE = "text";
const SOON = 400; // milliseconds until a change is kept

export class History {
  /** @param {() => Promise<boolean>} settle takes over what is being typed */
  constructor(settle) {
    this.id = sessionStorage.getItem(MINE) ?? fresh();
    this.name = "";
    this.list = el("ul", { class: "kept" });
    this.field = el("input", { "aria-label": "name of this text", placeholder: "name of this text",
      oninput: () => { this.name = this.field.value; this.keep(); } });
    this.element = el("details", { class: "history", ontoggle: async () => {
      if (!this.element.open) return;
      await settle();
      this.keep();
      this.draw();
    } }, el("summary", {}, "History"), el("div", { class: "menu" }, this.field, this.list));
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
    effect(() => {
      void [text.value, past.value, future.value, at.value];
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.keep(), SOON);
    });
    addEventListener("pagehide", () => this.keep());
  }

  close() {
    this.element.open = false;
    this.element.querySelector("summary").focus();
  }

  /** Keep the text as it is now. */
  keep() {
    if (!model.peek() || !text.peek().tokens.length || (text.peek().example && !past.peek().length)) return;
    sessionStorage.setItem(MINE, this.id);
    const kept = { model: model.peek().name, name: this.name, saved: Date.now(), at: at.peek(), text: text.peek(),
      past: past.peek(), future: future.peek() };
    for (;;) {
      try {
        return localStorage.setItem(PREFIX + this.id, JSON.stringify(kept));
      } catch {
        const oldest = entries().filter(([id]) => id !== this.id).pop();
        if (oldest) localStorage.removeItem(PREFIX + oldest[0]);
        else if (kept.past.length) kept.past = kept.past.slice(1 + kept.past.length / 2);
        else return say("The browser's storage is full: this text is kept in the URL alone.", true);
      }
    }
  }

  /** Show a text that is kept. @param {string} id @param {Kept} kept */
  open(id, kept) {
    this.keep();
    this.id = id;
    this.name = kept.name;
    sessionStorage.setItem(MINE, id);
    batch(() => {
      text.value = kept.text;
      past.value = kept.past;
      future.value = kept.future;
      choose(kept.at);
    });
  }

  /** The text that this tab had before a reload. @returns {Kept | null} */
  mine() {
    const kept = JSON.parse(localStorage.getItem(PREFIX + this.id) ?? "null");
    return kept?.model === model.peek().name ? kept : null;
  }

  /** Begin with no text. */
  begin() {
    this.keep();
    this.id = fresh();
    this.name = "";
    batch(() => {
      past.value = future.value = [];
      text.value = { tokens: [], from: 0 };
      choose(0);
    });
  }

  draw() {
    this.field.value = this.name;
    const rows = entries().filter(([, kept]) => kept.model === model.peek()?.name).map(([id, kept]) => {
      const begun = kept.text.tokens.slice(0, 40).map((token) => token.text).join("").trim().slice(0, 40);
      const open = button(kept.name || begun || "(blank)", new Date(kept.saved).toLocaleString(), () => {
        this.open(id, kept);
        this.close();
      }, { class: "plain", "aria-current": id === this.id });
      const drop = button("✕", "remove this text", () => {
        localStorage.removeItem(PREFIX + id);
        if (id === this.id) this.begin();
        this.draw();
      }, { "aria-label": `remove ${kept.name || begun}` });
      return el("li", {}, open, drop);
    });
    this.list.replaceChildren(...(rows.length ? rows : [el("li", { class: "faint" }, "No text is kept yet.")]));
  }
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
