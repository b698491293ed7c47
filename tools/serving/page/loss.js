// The view Loss: how many bits each token of the text costs the model, how that came about over the checkpoints of
// the run, and where two checkpoints, or two runs, differ.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { button, el, field, figures, mean, offer, select } from "./dom.js";
import { placesOf, question } from "./looked.js";
import { Pair } from "./pair.js";
import { derived, effect, state } from "./reactive.js";
import { at, checkpoint, ids, model, other, text, view } from "./store.js";
import { surprise } from "./tokens.js";

const FULL = 4; // bits of difference between two checkpoints at which the tint is full
const PAUSE = 500; // milliseconds that a replay rests at each checkpoint
const NONE = "";

/** @typedef {{name: string, iteration: number | null, run: string, val_loss: number | null}} Checkpoint */

export class Loss {
  constructor() {
    this.checkpoints = state(/** @type {Checkpoint[]} */ ([]));
    this.bits = state(/** @type {Map<string, number[]>} */ (new Map())); // of each token but the first, by checkpoint
    this.playing = state(false);
    this.error = state("");
    this.name = derived(() => checkpoint.value ?? model.value.version);
    const move = () => { checkpoint.value = this.run()[Number(this.slider.value)].name; };
    this.slider = el("input", { type: "range", min: 0, step: 1, oninput: move });
    this.named = el("output", {});
    this.play = button("Replay", "move over all checkpoints, from the first", () => this.replay());
    this.other = select([], (name) => { other.value = name || null; });
    this.figures = el("dl", { class: "figures" });
    this.line = el("p", { class: "faint" });
    this.chart = new Chart({ title: "Bits per token of this text, and bits of the chosen token, by iteration", format: (y) => y.toFixed(2) });
    this.sides = el("p", { class: "legend" }, "The slider’s checkpoint is ", side("better", "good"), side("worse", "bad"),
      ` by ${FULL} bits or more; fainter for less. Of two figures the first is that of the slider.`);
    this.elements = [
      el("div", { class: "card" }, el("div", { class: "row controls" },
        field("Checkpoint", "the model as it was at this iteration of its training", this.slider, this.named), this.play,
        field("Compared with", "tokens are tinted by which of the two knew them better", this.other)),
      this.line, this.figures, this.sides),
      el("div", { class: "card" }, this.chart.element), new Pair(this.name, other).element];
    this.watch();
  }

  watch() {
    effect(() => {
      void model.value.version; // a newer one
      if (view.value === "loss") this.find();
    });
    effect(() => {
      const found = this.run(), one = this.one(this.name.value), alone = found.length < 2;
      this.slider.max = String(found.length - 1);
      this.slider.value = String(found.indexOf(one));
      this.named.textContent = title(this.name.value);
      for (const control of [this.slider, this.play]) control.closest(".field, button").toggleAttribute("hidden", alone);
      offer(this.other, [[NONE, "nothing"], ...this.checkpoints.value.map(({ name }) => /** @type {[string, string]} */ ([name, title(name)]))]);
      this.other.value = other.value ?? NONE;
      this.other.closest(".field").toggleAttribute("hidden", this.checkpoints.value.length < 2);
    });
    effect(() => {
      this.play.textContent = this.playing.value ? "Stop" : "Replay";
    });
    effect(() => {
      void ids.value;
      this.bits.value = new Map();
    });
    effect(() => {
      void [this.checkpoints.value, ids.value];
      if (view.value === "loss" && question(this.name.value) && ids.value.length > 1) this.gather();
    });
    effect(() => {
      this.line.textContent = ids.value.length < 2 ? "The loss needs two tokens or more." : this.error.value;
    });
    effect(() => this.draw());
  }

  /** The checkpoints of the run that the slider is in. */
  run() {
    const mine = this.one(this.name.value)?.run;
    return this.checkpoints.value.filter(({ run }) => run === mine);
  }

  one(name) {
    return this.checkpoints.value.find((found) => found.name === name);
  }

  async find() {
    try {
      const { checkpoints } = await get("inside/checkpoints");
      if (JSON.stringify(checkpoints) !== JSON.stringify(this.checkpoints.peek())) this.checkpoints.value = checkpoints;
    } catch (error) {
      this.error.value = error.message;
    }
  }

  /** Ask all checkpoints about the text, first those that are shown. */
  async gather() {
    const about = ids.peek(), names = [this.name.peek(), other.peek(), ...this.checkpoints.peek().map(({ name }) => name)];
    for (const name of new Set(names)) {
      const wanted = view.peek() === "loss" && about === ids.peek() && name && question(name);
      if (!wanted) continue;
      try {
        const { places } = await placesOf(wanted);
        if (about === ids.peek()) this.bits.value = new Map([...this.bits.peek(), [name, costs(places)]]);
        this.error.value = "";
      } catch (error) {
        this.error.value = error.message;
        if (error.status === 404) await this.find(); // a run in training deletes checkpoints
      }
    }
  }

  draw() {
    const { tokens } = text.value, known = this.bits.value;
    const mine = known.get(this.name.value), others = known.get(other.value);
    this.sides.hidden = !others;
    const chosen = at.value - tokens.length + (mine?.length ?? 0); // index of its bits
    const runs = [...new Set(this.checkpoints.value.map(({ run }) => run))];
    const curves = (name, colour, value) => runs.map((run, i) => /** @type {import("./chart.js").Series} */ ({
      name: runs.length > 1 ? `${run}: ${name}` : name, kind: "dots", colour, run: i,
      points: this.checkpoints.value.filter((found) => found.run === run && known.has(found.name))
        .map((found) => [found.iteration ?? 0, value(known.get(found.name))]),
    }));
    const one = mine?.[chosen] !== undefined;
    this.chart.show([...curves("text", 1, mean), ...(one ? curves("chosen token", 3, (all) => all[chosen]) : [])]);
    if (!mine) return this.figures.replaceChildren();
    const bytes = new TextEncoder().encode(tokens.slice(-mine.length).map((token) => token.text).join("")).length;
    const each = (figure) => (others ? `${figure(mine)} / ${figure(others)}` : figure(mine));
    this.figures.replaceChildren(...figures([
      ["bits per token", each((x) => mean(x).toFixed(3))],
      ["perplexity", each((x) => Number((2 ** mean(x)).toPrecision(4)).toLocaleString("en"))],
      ["bits per byte", each((x) => ((mean(x) * x.length) / bytes).toFixed(3))],
      ["tokens", mine.length.toLocaleString("en")],
      ["bits of the chosen token", one && each((x) => x[chosen].toFixed(2))],
    ]));
  }

  tints() {
    const mine = this.bits.value.get(this.name.value), others = this.bits.value.get(other.value);
    return text.value.tokens.map((_, i) => {
      const n = i - text.value.tokens.length + (mine?.length ?? 0);
      if (mine?.[n] === undefined) return null;
      if (!others) return surprise(2 ** -mine[n]);
      const better = others[n] - mine[n];
      return { strength: Math.min(1, Math.abs(better) / FULL), side: better > 0 ? "good" : "bad",
        said: `${mine[n].toFixed(2)} bits, and ${others[n].toFixed(2)} with the other` };
    });
  }

  /** Move the slider over all checkpoints of its run, from the first. */
  async replay() {
    if (this.playing.peek()) {
      this.playing.value = false;
      return;
    }
    this.playing.value = true;
    for (const { name } of this.run()) {
      if (!this.playing.peek() || view.peek() !== "loss") break;
      checkpoint.value = name;
      await new Promise((done) => setTimeout(done, PAUSE));
    }
    this.playing.value = false;
  }
}

/** The bits of each token but the first. */
function costs(places) {
  return places.slice(1, -1).filter(Boolean).map(({ before }) => -Math.log2(Math.max(before, 2 ** -126)));
}

/** @param {string} name */
export function title(name) {
  return name.replace(/start$/, "what it started from").replace("iter-", "iteration ").replace("/", ": ");
}

function side(text, kind) {
  const chip = el("span", { class: "token chip", "data-side": kind }, text);
  chip.style.setProperty("--strength", "1");
  return chip;
}
