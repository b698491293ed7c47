// The view Loss: how many bits each token of a text costs the model, how that came about over the run's
// checkpoints, and where two of them differ.

import { get, post } from "./api.js";
import { Chart } from "./chart.js";
import { debounced, el, field, lead, select, visible } from "./dom.js";
import { Popover } from "./popover.js";
import { TextBox } from "./textbox.js";
import { Tokens, legend } from "./tokens.js";

const FULL = 4; // bits of difference between two checkpoints at which the tint is full
const PAUSE = 500; // milliseconds that a replay rests at each checkpoint
const NONE = "";

export class Loss {
  constructor(app) {
    this.app = app;
    this.checkpoints = [{ name: app.model.version }];
    this.popover = new Popover();
    this.box = new TextBox(app, {
      label: "the text whose loss is shown", placeholder: "Paste a text, then press Look.", least: 2,
      most: app.model.limits.tokens, look: (tokens) => this.load(tokens),
    });
    this.text = new Tokens("the text, token by token", {
      look: (i, span) => this.look(i, span, false),
      leave: () => this.popover.leave(),
      open: (i, span) => this.look(i, span, true),
    });
    const moved = debounced(() => this.draw(), 60);
    this.slider = el("input", { type: "range", min: 0, step: 1, oninput: () => { this.name(); moved(); } });
    this.named = el("output", {});
    this.play = el("button", { type: "button", onclick: () => this.replay() }, "Replay");
    this.other = select([], () => this.draw());
    this.figures = el("dl", { class: "figures" });
    this.chart = new Chart({ title: "Bits per token of this text, by checkpoint", size: "small", format: (y) => y.toFixed(2) });
    this.slide = el("div", { class: "card row controls" },
      field("Checkpoint", "the model as it was at this iteration of its training", el("span", { class: "slider" }, this.slider, this.named)),
      this.play, field("Compared with", "tokens are tinted by which of the two knew them better", this.other));
    this.scale = legend();
    this.sides = el("p", { class: "legend" }, "The checkpoint of the slider is ", side("better", "good"), side("worse", "bad"),
      ` by ${FULL} bits or more; fainter for less. Of two figures the first is the slider’s.`);
    this.shown = el("div", { class: "stack", hidden: true }, this.slide,
      el("div", { class: "card" }, this.figures, this.text.element), this.scale, this.sides,
      el("div", { class: "card" }, this.chart.element));
    this.elements = [
      lead("Loss", "The loss says how surprised the model is by a text: a token that it gave the probability p costs log₂ 1/p bits. "
        + "Move the slider to see what the model learned while it was trained."),
      this.box.element, this.shown];
  }

  async show() {
    try {
      const { checkpoints } = await get("inside/checkpoints");
      if (checkpoints.length) this.offer(checkpoints);
    } catch (error) {
      this.box.say(error.message, "bad");
    }
    this.box.show();
  }

  hide() {
    this.popover.close();
    this.playing = false;
  }

  // Set the slider to the run's checkpoints, at the one that is served.
  offer(checkpoints) {
    const before = this.checkpoints[this.slider.value]?.name, compared = this.other.value;
    this.checkpoints = checkpoints;
    const at = (name) => checkpoints.findIndex((checkpoint) => checkpoint.name === name);
    this.slider.max = checkpoints.length - 1;
    this.slider.value = Math.max(at(before), at(this.app.model.version), 0);
    this.other.replaceChildren(...[[NONE, "nothing"], ...checkpoints.map((checkpoint) => [checkpoint.name, title(checkpoint)])]
      .map(([value, text]) => el("option", { value }, text)));
    this.other.value = at(compared) >= 0 ? compared : NONE;
    this.name();
  }

  get checkpoint() {
    return this.checkpoints[Number(this.slider.value)] ?? this.checkpoints[0];
  }

  name() {
    this.named.textContent = title(this.checkpoint);
  }

  async load(tokens) {
    Object.assign(this, { tokens, bits: new Map(), asked: new Map() });
    this.text.show(tokens);
    await this.bitsOf(this.checkpoint.name);
    this.shown.hidden = false;
    this.slide.hidden = this.checkpoints.length < 2;
    this.chart.element.parentElement.hidden = this.checkpoints.length < 2;
    await this.draw();
  }

  // The bits of each token but the first, as a checkpoint has it: asked for once.
  async bitsOf(name) {
    if (!this.bits.has(name)) {
      const { places } = await this.placesOf(name);
      this.bits.set(name, places.slice(1, -1).map(({ before }) => -Math.log2(Math.max(before, 2 ** -126))));
    }
    return this.bits.get(name);
  }

  placesOf(name) {
    if (!this.asked.has(name)) {
      const asked = this.asked, answer = post("inside/places", { text: this.tokens.map(({ id }) => id), checkpoint: name });
      answer.catch(() => asked.delete(name));
      asked.set(name, answer);
    }
    return this.asked.get(name);
  }

  async draw() {
    if (!this.tokens) return;
    const drawing = (this.drawing = Symbol()), { name } = this.checkpoint, other = this.other.value;
    let bits, others;
    try {
      bits = await this.bitsOf(name);
      others = other && await this.bitsOf(other);
    } catch (error) {
      if (error.status === 404) await this.show(); // a run in training deletes checkpoints
      this.box.say(error.message, "bad");
      return;
    }
    if (drawing !== this.drawing) return; // the slider has moved on
    this.popover.close();
    bits.forEach((value, i) => {
      if (others) this.text.strength(i + 1, Math.min(1, Math.abs(others[i] - value) / FULL), value < others[i] ? "good" : "bad");
      else this.text.tint(i + 1, 2 ** -value), delete this.text.spans[i + 1].dataset.side;
    });
    this.sides.hidden = !others;
    this.scale.hidden = Boolean(others);
    this.tell(bits, others);
    this.chart.show([{ name: "", kind: "dots", colour: 1, points: this.checkpoints
      .filter((checkpoint) => this.bits.has(checkpoint.name))
      .map((checkpoint) => [checkpoint.iteration ?? 0, mean(this.bits.get(checkpoint.name))]) }]);
  }

  tell(bits, others) {
    const bytes = new TextEncoder().encode(this.tokens.slice(1).map(({ text }) => text).join("")).length;
    const each = (figure) => (others ? `${figure(bits)} / ${figure(others)}` : figure(bits));
    const figures = [
      ["bits per token", each((x) => mean(x).toFixed(3))],
      ["perplexity", each((x) => Number((2 ** mean(x)).toPrecision(4)).toLocaleString("en"))],
      ["bits per byte", each((x) => ((mean(x) * x.length) / bytes).toFixed(3))],
      ["tokens", bits.length.toLocaleString("en")],
    ];
    this.figures.replaceChildren(...figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  // Move the slider over all checkpoints, from the first.
  async replay() {
    if (this.playing) {
      this.playing = false;
      return;
    }
    this.playing = true;
    this.play.textContent = "Stop";
    for (let i = 0; i < this.checkpoints.length && this.playing; i += 1) {
      this.slider.value = i;
      this.name();
      await this.draw();
      await new Promise((done) => setTimeout(done, PAUSE));
    }
    this.playing = false;
    this.play.textContent = "Replay";
  }

  // Tell what the checkpoint would have had at a place.
  async look(i, span, pinned) {
    const { name } = this.checkpoint, looking = (this.looking = Symbol());
    const show = (content) => {
      if (looking === this.looking) this.popover.at(span, content, pinned);
    };
    if (i === 0) return show(this.popover.note("Nothing stands before the first token, so that it is not counted."));
    const head = [el("code", {}, visible(this.tokens[i].text)), ` costs ${this.cost(name, i)}`,
      this.other.value && `, and ${this.cost(this.other.value, i)} with ${title({ name: this.other.value })}`];
    show(this.popover.note(...head));
    try {
      const { places, names } = await this.placesOf(name);
      if (this.popover.open) show(this.popover.table(head, places[i], this.tokens[i].id, names, false));
    } catch (error) {
      show(this.popover.note(error.message));
    }
  }

  cost(name, i) {
    return `${this.bits.get(name)[i - 1].toFixed(2)} bits`;
  }
}

function title({ name }) {
  return name === "start" ? "what it started from" : name.replace("iter-", "iteration ");
}

function side(text, kind) {
  const chip = el("span", { class: "token chip", "data-side": kind }, text);
  chip.style.setProperty("--strength", 1);
  return chip;
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
