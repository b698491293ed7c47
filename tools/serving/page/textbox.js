// The text that a view looks at: a field, with the text of Write to begin with, and a button.

import { post } from "./api.js";
import { el, grow, messages } from "./dom.js";

// `look(tokens)` is called with the tokens of the text, of which there are `most` at most: of a longer one, the
// last. It may throw, and while it runs the button says so.
export class TextBox {
  constructor(app, { label, placeholder, most, least = 1, look }) {
    Object.assign(this, { app, most, least, look });
    this.area = el("textarea", { class: "text small", rows: "2", spellcheck: "false", autocapitalize: "off", placeholder,
      "aria-label": label, oninput: () => grow(this.area), onkeydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.start();
      } });
    this.button = el("button", { type: "button", class: "primary", title: "Ctrl+Enter", onclick: () => this.start() }, "Look");
    this.mine = el("button", { type: "button", title: "the text of the view Write",
      onclick: () => { this.take(); this.start(); } }, "Take the text of Write");
    const [line, say] = messages();
    this.say = say;
    this.element = el("div", { class: "card" }, this.area, el("div", { class: "row tools" }, this.button, this.mine, line));
  }

  // When the view is shown: look at once, the first time that there is a text.
  show() {
    this.mine.hidden = !this.app.tokens.length;
    if (!this.area.value && this.app.tokens.length) {
      this.take();
      this.start();
    }
  }

  take() {
    this.area.value = this.app.tokens.map((token) => token.text).join("");
    grow(this.area);
    this.taken = { text: this.area.value, tokens: this.app.tokens.map(({ id, text }) => ({ id, text })) };
  }

  async start() {
    if (this.button.disabled) return;
    const text = this.area.value;
    if (!text) return this.say("Type or paste a text first.");
    this.button.disabled = true;
    this.say("computing …");
    try {
      // A text that the model wrote may be made of other tokens than the tokenizer would make of it.
      const tokens = this.taken?.text === text ? this.taken.tokens : (await post("inside/tokens", { text })).tokens;
      if (tokens.length < this.least) throw new Error(`This needs ${this.least} tokens or more: give a longer text.`);
      const cut = tokens.slice(-this.most);
      await this.look(cut);
      this.say(cut.length < tokens.length
        ? `These are the last ${cut.length} of ${tokens.length} tokens: as many as fit here.` : `${tokens.length} tokens`);
    } catch (error) {
      this.say(error.message, "bad");
    } finally {
      this.button.disabled = false;
    }
  }
}
