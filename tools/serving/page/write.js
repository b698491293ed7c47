// The view Write: a text and its continuation as tokens, what else could have stood at each place, and how to go
// on from there. `settings.js` has the controls of sampling, `editor.js` the text that can be changed.

import { post, stream } from "./api.js";
import { debounced, el, lead, messages, percent, visible } from "./dom.js";
import { Editor } from "./editor.js";
import { Popover } from "./popover.js";
import { Settings } from "./settings.js";
import { Tokens, legend, merged } from "./tokens.js";

const NEXT = { text: "▸" }; // behind the last token: what comes next

export class Write {
  constructor(app) {
    this.app = app;
    this.tokens = []; // {id, text, mine: typed by the reader, picked: chosen in the panel, probability}
    this.from = 0; // where the last continuation began
    this.past = []; // for undo
    this.places = []; // as the server tells them, from token `this.skipped` on
    this.popover = new Popover((id, text) => this.branch(id, text));
    this.text = new Tokens("the text, token by token", {
      look: (i, span, how) => this.look(i, span, false),
      leave: () => this.popover.leave(),
      open: (i, span, enter) => { this.look(i, span, true); if (enter) this.popover.enter(); },
      edit: (i) => this.edit(i),
    });
    this.editor = new Editor(this.text.element, () => this.write());
    this.settings = new Settings(app.model, debounced(() => this.fetchPlaces(), 250));
    const [line, say] = messages();
    this.say = say;
    this.buttons = this.makeButtons();
    this.elements = [
      lead("Write", "The model continues your text, one token at a time. The stronger a token is tinted, the less "
        + "likely it was. Point at one, or tap it, to see what else could have stood there, and go on from that instead."),
      this.settings.element,
      el("div", { class: "card" }, el("div", { class: "row tools" }, ...Object.values(this.buttons)),
        this.editor.element, line),
      legend(),
    ];
    document.addEventListener("keydown", (event) => {
      const undo = (event.ctrlKey || event.metaKey) && event.key === "z";
      if (undo && this.editor.element.offsetParent && !event.target.matches("input, textarea")) this.undo();
    });
    this.edit();
  }

  makeButtons() {
    const button = (text, title, onclick, kind = "") => el("button", { type: "button", title, onclick, class: kind }, text);
    return {
      write: button("Write", "go on with the text (Ctrl+Enter)", () => this.write(), "primary"),
      stop: button("Stop", "stop writing", () => this.writing?.abort()),
      again: button("Regenerate", "write the last continuation anew, with another seed", () => this.again()),
      undo: button("Undo", "take back the last change (Ctrl+Z)", () => this.undo()),
      edit: button("Edit", "change the text anywhere (E, or a double click on a token)",
        () => (this.editor.editing ? this.settle() : this.edit())),
    };
  }

  refresh() {
    const { write, stop, again, undo, edit } = this.buttons, busy = Boolean(this.writing);
    write.disabled = busy;
    stop.disabled = !busy;
    again.disabled = busy || this.editor.editing || this.from >= this.tokens.length;
    undo.disabled = busy || !this.past.length;
    edit.disabled = busy;
    edit.textContent = this.editor.editing ? "Done" : "Edit";
    this.app.tokens = this.tokens;
  }

  // Show the text as it is now, and ask what could stand at its places.
  async draw() {
    this.popover.close();
    this.editor.show();
    this.text.show([...this.tokens, NEXT]);
    this.tokens.forEach((token, i) => this.text.tint(i, token.probability));
    this.refresh();
    await this.fetchPlaces();
  }

  remember() {
    this.past.push({ tokens: this.tokens.slice(), from: this.from });
  }

  undo() {
    if (!this.past.length || this.writing) return;
    Object.assign(this, this.past.pop());
    if (this.tokens.length) this.draw();
    else this.edit();
  }

  // Editing

  edit(i = this.tokens.length) {
    if (this.writing) return;
    this.popover.close();
    const parts = this.tokens.map(({ text }) => text);
    this.editor.edit(parts.join(""), parts.slice(0, i).join("").length);
    this.refresh();
  }

  // Take the text over from the editor. Return whether there is one.
  async settle() {
    if (!this.editor.editing) return this.tokens.length > 0;
    const text = this.editor.value;
    if (!text) {
      this.say("Type the beginning of a text first.");
      if (this.tokens.length) this.remember();
      this.tokens = [];
      this.refresh();
      return false;
    }
    if (text !== this.tokens.map((token) => token.text).join("")) {
      try {
        const { tokens } = await post("inside/tokens", { text });
        this.remember();
        this.tokens = merged(this.tokens, tokens);
        this.from = this.tokens.length;
      } catch (error) {
        this.say(error.message, "bad");
        return false;
      }
    }
    this.say("");
    this.draw();
    return true;
  }

  hide() {
    this.popover.close();
    if (this.editor.editing && this.editor.value) this.settle();
  }

  // Writing

  async write() {
    if (this.writing || this.starting) return;
    this.starting = true; // a second click finds the first under way
    const there = await this.settle();
    this.starting = false;
    if (!there) return;
    this.remember();
    this.from = this.tokens.length;
    await this.continue();
  }

  async again() {
    this.remember();
    this.tokens = this.tokens.slice(0, this.from);
    this.settings.nextSeed();
    await this.continue();
  }

  // Put another token at the place that the panel is at, and go on from there.
  async branch(id, text) {
    const i = this.at;
    if (this.writing) return;
    this.remember();
    this.tokens = [...this.tokens.slice(0, i), { id, text, picked: true, probability: this.probability(i, id) }];
    this.from = this.tokens.length;
    await this.continue();
  }

  async continue() {
    const seed = this.settings.seed(), began = performance.now();
    this.asking?.abort(); // what could have stood in the text before
    this.writing = new AbortController();
    this.popover.close();
    this.editor.show();
    this.text.show(this.tokens);
    this.tokens.forEach((token, i) => this.text.tint(i, token.probability));
    this.refresh();
    this.text.element.classList.add("writing");
    this.say("writing …");
    try {
      const body = { prompt: this.tokens.map((token) => token.id), seed, logprobs: 0, ...this.settings.values() };
      for await (const { choices: [choice] } of stream("v1/completions", body, this.writing.signal)) {
        const made = written(choice);
        this.text.add(made);
        made.forEach((token, i) => this.text.tint(this.tokens.length + i, token.probability));
        this.tokens.push(...made);
      }
      const made = this.tokens.length - this.from, seconds = (performance.now() - began) / 1000;
      this.say(made ? `${made} tokens in ${seconds.toFixed(1)} s, ${Math.round(made / seconds)} a second, with the seed ${seed}`
        : "The model ended the text here.");
    } catch (error) {
      if (error.name === "AbortError") this.say(`stopped after ${this.tokens.length - this.from} tokens`);
      else this.say(error.message, "bad");
    } finally {
      this.writing = null;
      this.text.element.classList.remove("writing");
      await this.draw();
    }
  }

  // Looking

  async fetchPlaces() {
    if (this.writing || this.editor.editing || !this.tokens.length) return;
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const skipped = Math.max(0, this.tokens.length - this.app.model.limits.tokens);
    const { temperature, top_k, top_p } = this.settings.values();
    const body = { text: this.tokens.slice(skipped).map((token) => token.id),
      prompt: Math.max(0, this.from - skipped), temperature, top_k, top_p };
    try {
      const { places, names } = await post("inside/places", body, asking.signal);
      if (asking !== this.asking || this.writing) return;
      Object.assign(this, { places, names, skipped });
    } catch (error) {
      if (error.name !== "AbortError") this.say(error.message, "bad");
      return;
    }
    this.tokens.forEach((token, i) => {
      const place = this.place(i);
      if (place) this.text.tint(i, (token.probability = place.before));
    });
    if (this.popover.open) this.look(this.at, this.popover.anchor, this.popover.pinned);
  }

  place(i) {
    return i >= this.skipped ? this.places[i - this.skipped] : null;
  }

  probability(i, id) {
    const place = this.place(i);
    return place.likeliest_before[place.likeliest.indexOf(id)];
  }

  look(i, span, pinned) {
    if (this.popover.pinned && this.popover.open && !pinned) return;
    this.at = i;
    const place = this.places.length === this.tokens.length - (this.skipped ?? 0) + 1 ? this.place(i) : undefined;
    const token = this.tokens[i]; // none behind the last
    const head = token && place ? [el("code", {}, visible(token.text)), ` had ${percent(place.before)}, and ${percent(place.after)} as drawn`]
      : ["What comes next"];
    const content = place ? this.popover.table(head, place, token?.id, this.names, true)
      : this.popover.note(place === undefined ? "looked up once the text is written …"
        : i === 0 ? "Nothing stands before the first token, so that the model had nothing to go by."
          : `The model reads ${this.app.model.config.block_size} tokens at most, and no longer reads this one.`);
    this.popover.at(span, content, pinned);
  }
}

// The tokens of a part of a completion. Its offsets count characters, of which JavaScript may store one as two.
function written({ text, logprobs: { token_ids, token_logprobs, text_offset } }) {
  const characters = Array.from(text), place = (i) => (i < text_offset.length ? text_offset[i] - text_offset[0] : characters.length);
  return token_ids.map((id, i) => ({
    id, text: characters.slice(place(i), place(i + 1)).join(""), probability: Math.exp(token_logprobs[i]),
  }));
}
