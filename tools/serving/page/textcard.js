// The text that all views share: read as tokens, or changed in a field at the same place; and what is done with it.

import { post } from "./api.js";
import { able, button, download, el } from "./dom.js";
import { History } from "./history.js";
import { pointed } from "./looked.js";
import { batch, effect, state } from "./reactive.js";
import { at, change, choose, future, merged, model, past, settings, text, undo, writing } from "./store.js";
import { legend, Tokens } from "./tokens.js";
import { again, said, say, stop, write } from "./writing.js";

/** @typedef {import("./tokens.js").Tint} Tint */

export class TextCard {
  /** @param {{tints: () => Tint[], wrong: () => string, enter: () => void}} on
   * tints: of the tokens, in the view that is shown; wrong: what stands in the way of writing */
  constructor(on) {
    this.on = on;
    this.editing = state(true);
    this.tokens = new Tokens({
      choose, enter: on.enter, edit: (i) => this.edit(i), point: (i) => { pointed.value = i; },
    });
    this.area = el("textarea", {
      class: "text", rows: "4", spellcheck: "false", autocapitalize: "off", dir: "auto", "aria-label": "the text to go on with",
      placeholder: "Type the beginning of a text here, then press Write.", oninput: () => grow(this.area),
    });
    this.buttons = {
      write: button("Write", "go on with the text (Ctrl+Enter)", () => (writing.peek() ? stop() : this.write()), { class: "primary" }),
      again: button("Regenerate", "write the last continuation anew, with another seed", again),
      undo: button("Undo", "take back the last change (Ctrl+Z)", () => this.undo()),
      redo: button("Redo", "make it again (Ctrl+Shift+Z)", () => undo(future, past)),
      edit: button("Edit", "change the text anywhere (E, or a double click on a token)",
        () => (this.editing.peek() ? this.settle() : this.edit())),
      fresh: button("New", "begin another text; this one stays in the history", () => this.fresh()),
      save: button("Save", "save the text with its tokens, probabilities and settings, as JSON", () => this.save()),
    };
    this.history = new History(() => this.settle());
    this.line = el("p", { class: "message", role: "status" });
    this.by = el("p", { class: "faint by" });
    this.legend = legend();
    this.element = el("div", { class: "card textcard", role: "region", "aria-label": "the text" },
      el("div", { class: "row tools" }, ...Object.values(this.buttons), this.history.element),
      el("div", { class: "editor" }, this.area, this.tokens.element), this.line, this.by, this.legend);
    this.watch();
    document.addEventListener("keydown", (event) => this.key(event));
  }

  watch() {
    effect(() => {
      const editing = this.editing.value, inside = this.element.contains(document.activeElement);
      this.area.hidden = !editing;
      this.tokens.element.hidden = editing;
      if (inside && document.activeElement === document.body) this.tokens.focus(at.peek());
    });
    effect(() => {
      const box = this.tokens.element, busy = Boolean(writing.value), before = box.classList.contains("writing");
      const follows = busy !== before || box.scrollTop + box.clientHeight >= box.scrollHeight - 40;
      this.tokens.show(text.value.tokens, busy);
      if ((busy || before) && follows) box.scrollTop = box.scrollHeight;
      box.classList.toggle("writing", busy);
      this.tokens.mark(at.value);
      const tints = this.on.tints();
      this.tokens.tint(tints);
      this.legend.hidden = !tints.some((tint) => tint && tint.side === undefined);
    });
    effect(() => {
      const busy = Boolean(writing.value), { tokens, from, by, seed, example } = text.value;
      this.buttons.write.textContent = busy ? "Stop" : "Write";
      this.buttons.edit.textContent = this.editing.value ? "Done" : "Edit";
      able(this.buttons.again, !busy && !this.editing.value && from < tokens.length && !example);
      able(this.buttons.undo, !busy && (past.value.length > 0 || this.editing.value));
      able(this.buttons.redo, !busy && future.value.length > 0 && !this.editing.value);
      for (const name of ["edit", "fresh", "save"]) able(this.buttons[name], !busy);
      this.by.textContent = example ? "An example from the validation text. Press Write to go on with it, or just type a text of your own."
        : by ? `written by ${by}, with the seed ${seed}` : "";
    });
    effect(() => {
      this.line.textContent = said.value.text;
      this.line.classList.toggle("bad", said.value.bad);
    });
  }

  /** Keys that work wherever the focus is. @param {KeyboardEvent} event */
  key(event) {
    if (!this.element.offsetParent) return;
    const command = event.ctrlKey || event.metaKey, pressed = event.key.toLowerCase();
    const field = /** @type {HTMLElement} */ (event.target).matches("input, textarea, select");
    if (command && event.key === "Enter") this.write();
    else if (event.key === "Escape" && writing.peek()) stop();
    else if (event.key === "Escape" && event.target === this.area && this.area.value) this.settle();
    else if (command && !field && pressed === "z" && !event.shiftKey) this.undo();
    else if (command && !field && (pressed === "y" || pressed === "z")) undo(future, past);
    else if (event.target === document.body && event.key.length === 1 && event.key !== " " && !command && !event.altKey) {
      this.edit(); // and there the key arrives
      if (text.peek().example) this.area.select();
      return;
    } else return;
    event.preventDefault();
  }

  edit(i = text.peek().tokens.length) {
    if (writing.peek() || this.editing.peek()) return;
    const parts = text.peek().tokens.map((token) => token.text), caret = parts.slice(0, i).join("").length;
    this.area.value = parts.join("");
    this.editing.value = true;
    this.area.focus({ preventScroll: true });
    this.area.setSelectionRange(caret, caret);
    grow(this.area);
  }

  /** Take the text over from the field. Return whether there is one. */
  async settle() {
    if (!this.editing.peek()) return text.peek().tokens.length > 0;
    const typed = this.area.value, { tokens, by, seed } = text.peek();
    if (!typed) {
      say("Type the beginning of a text first.");
      return false;
    }
    if (typed !== tokens.map((token) => token.text).join("")) {
      try {
        const next = merged(tokens, (await post("inside/tokens", { text: typed })).tokens);
        batch(() => {
          this.editing.value = false;
          change({ tokens: next, from: next.length, by, seed });
        });
      } catch (error) {
        say(error.message, true);
        return false;
      }
    }
    say("");
    this.editing.value = false;
    return true;
  }

  async write() {
    const wrong = this.on.wrong();
    if (wrong) say(wrong, true);
    else if (!writing.peek() && !this.starting) {
      this.starting = true; // a second press finds the first under way
      const there = await this.settle();
      this.starting = false;
      if (there) await write();
    }
  }

  async undo() {
    if (this.editing.peek() && this.area.value) await this.settle(); // so that what was typed can be had again
    else if (text.peek().tokens.length) this.editing.value = false;
    undo();
    if (!text.peek().tokens.length) this.edit();
  }

  fresh() {
    this.history.begin();
    this.area.value = "";
    this.edit();
  }

  save() {
    const { name, version } = model.peek(), { tokens, from, by, seed } = text.peek();
    const told = tokens.map(({ id, text, probability }) => ({
      id, text, logprob: probability == null ? null : Math.log(probability) }));
    const content = { model: name, checkpoint: by ?? version, prompt_tokens: from, ...settings.peek(), seed: seed ?? null, tokens: told };
    download(`${name}.json`, JSON.stringify(content, null, 1), "application/json");
  }
}

/** Make a textarea as high as its text. @param {HTMLTextAreaElement} area */
function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}
