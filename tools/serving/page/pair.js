// Two checkpoints, or two runs, write from one beginning with one seed: where they part, and how sure each was.

import { post } from "./api.js";
import { button, card, code, el, mean } from "./dom.js";
import { title } from "./loss.js";
import { effect, state } from "./reactive.js";
import { at, settings, text } from "./store.js";
import { surprise } from "./tokens.js";

/** @typedef {import("./reactive.js").State<string | null>} Name */

export class Pair {
  /** @param {Name} one @param {Name} other the names of the checkpoints */
  constructor(one, other) {
    this.line = el("p", { class: "faint", role: "status" });
    this.texts = el("div", { class: "columns two" });
    this.write = button("Write with both", "from the text before the chosen token, with one seed", () => this.start([one.peek(), other.peek()]));
    this.element = card("Both write", el("p", { class: "faint" }, "From the text before the chosen token, with the settings "
      + "of Write and one seed. The first token in which they differ is framed; tints say how unlikely each was to its writer."),
    el("div", { class: "row tools" }, this.write, this.line), this.texts);
    effect(() => {
      this.element.hidden = !other.value;
      void one.value;
      this.texts.replaceChildren();
      this.line.textContent = "";
    });
  }

  /** @param {string[]} names */
  async start(names) {
    const { temperature, top_k, top_p, max_tokens } = settings.peek(), drawing = { temperature, top_k, top_p };
    const seed = settings.peek().seed ?? 1, prompt = text.peek().tokens.slice(0, at.peek()).map(({ id }) => id);
    if (!prompt.length) return void (this.line.textContent = "Choose a token after the first.");
    this.line.textContent = "writing …";
    try {
      const texts = [];
      for (const checkpoint of names) {
        const { tokens } = await post("inside/write", { text: prompt, checkpoint, seed, max_tokens, ...drawing });
        const whole = tokens.map(({ id }) => id), question = { text: whole, prompt: prompt.length, checkpoint, ...drawing };
        const { places } = await post("inside/places", question);
        texts.push(tokens.map((token, i) => ({ ...token, p: places[i]?.before })).slice(prompt.length));
      }
      this.show(names, texts, seed);
    } catch (error) {
      this.line.textContent = error.message;
    }
  }

  /** @param {string[]} names @param {{id: number, text: string, p: number}[][]} texts @param {number} seed */
  show(names, texts, seed) {
    const [a, b] = texts, parted = a.findIndex((token, i) => token.id !== b[i]?.id);
    this.line.replaceChildren(`with the seed ${seed}: `, ...(parted < 0 ? ["they write the same"]
      : [`they part at token ${parted + 1}, `, code(a[parted].text), " and ", code(b[parted]?.text ?? "")]));
    this.texts.replaceChildren(...texts.map((tokens, n) => el("div", {}, el("h4", {}, title(names[n])),
      el("p", { class: "text small", dir: "auto" }, ...tokens.map(({ text, p }, i) => {
        const made = el("span", { class: i === parted ? "token chosen" : "token", title: surprise(p).said }, text || "◌");
        made.style.setProperty("--strength", surprise(p).strength.toFixed(3));
        return made;
      })), el("p", { class: "faint" }, `${mean(tokens.map(({ p }) => -Math.log2(p))).toFixed(2)} bits per token, to itself`))));
  }
}
