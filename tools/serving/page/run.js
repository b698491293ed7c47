// The view Run: how the training of this model goes, live, and what the model is made of.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { el, lead, messages, short } from "./dom.js";

const EVERY = 2000; // milliseconds between questions for new records
const QUIET = 60; // seconds without a new record, after which the run is said to rest

export class Run {
  constructor(app) {
    this.app = app;
    this.records = [];
    const [line, say] = messages();
    this.say = say;
    this.figures = el("dl", { class: "figures" });
    this.loss = new Chart({ title: "Loss, in nats per token, by iteration", format: plain });
    this.small = [
      [new Chart({ title: "Tokens per second", size: "small", format: short }), "tokens_per_second"],
      [new Chart({ title: "Norm of the gradient", size: "small", format: plain }), "grad_norm"],
      [new Chart({ title: "Learning rate", size: "small", format: plain }), "lr"],
      [new Chart({ title: "Milliseconds per step", size: "small", format: plain }), "ms"],
    ];
    this.charts = el("div", { class: "stack" }, el("div", { class: "card" }, this.figures, this.loss.element),
      el("div", { class: "quarters" }, ...this.small.map(([chart]) => el("div", { class: "card" }, chart.element))));
    this.charts.hidden = true;
    this.elements = [
      lead("Run", "How the training of this model goes: the curves grow while it runs. The loss is how surprised the model is by the "
        + "next token, on the batch of a step, and on parts of the training and of the validation text."),
      line, this.charts, model(app.model)];
  }

  show() {
    if (!this.app.model.run) {
      this.say("This model was not loaded from a run, so that there are no curves. Start serve.py with --out_dir=<folder of a run>.");
      return;
    }
    this.shown = true;
    this.offset = 0; // meanwhile it may have begun anew
    this.poll();
  }

  hide() {
    this.shown = false;
    clearTimeout(this.timer);
  }

  async poll() {
    clearTimeout(this.timer);
    try {
      const answer = await get(`inside/run?offset=${this.offset}`);
      if (answer.fresh) this.records = [];
      this.records.push(...answer.records);
      this.offset = answer.offset;
      if (answer.records.length || answer.fresh) this.draw();
      this.tellState(answer.records.length > 0);
    } catch (error) {
      this.say(error.message, "bad");
    }
    if (this.shown) this.timer = setTimeout(() => this.poll(), EVERY);
  }

  tellState(grew) {
    const now = performance.now();
    if (grew) this.grew = this.polled ? now : null; // of the first records it is not known when they came
    this.polled = true;
    const quiet = this.grew == null ? null : (now - this.grew) / 1000;
    this.say(!this.records.length ? "No step is logged yet: the curves appear with the first."
      : quiet == null ? "These are the records so far; new ones appear by themselves."
        : quiet < QUIET ? "It is training: this grows by itself."
          : `No new record for ${Math.round(quiet / 60)} min: the run has ended, or was stopped.`);
  }

  draw() {
    this.charts.hidden = !this.records.length;
    const points = (name) => this.records.filter((record) => name in record).map((record) => [record.iter, record[name]]);
    this.loss.show([
      { name: "batch", kind: "line", colour: 3, points: points("loss") },
      { name: "train", kind: "dots", colour: 2, points: points("train/loss") },
      { name: "validation", kind: "dots", colour: 1, points: points("val/loss") },
    ]);
    for (const [chart, name] of this.small) chart.show([{ name: "", kind: "line", colour: 1, points: points(name) }]);
    const last = this.records.findLast((record) => "loss" in record) ?? {};
    const best = points("val/loss").reduce((a, b) => (b[1] < a[1] ? b : a), [null, Infinity]);
    const figures = [
      ["iteration", this.records.at(-1)?.iter.toLocaleString("en")],
      ["loss of the batch", last.loss?.toFixed(3)],
      ["best validation loss", best[0] == null ? null : `${best[1].toFixed(3)} at ${best[0].toLocaleString("en")}`],
      ["tokens per second", last.tokens_per_second && Math.round(last.tokens_per_second).toLocaleString("en")],
      ["memory", last.memory_mb && `${Math.round(last.memory_mb).toLocaleString("en")} MB`],
      ["MFU", last.mfu && `${(100 * last.mfu).toFixed(1)}%`],
    ];
    this.figures.replaceChildren(...figures.filter(([, value]) => value)
      .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }
}

function plain(value) {
  return value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : Number(value.toPrecision(3)).toLocaleString("en");
}

// What the model is made of: a row for each parameter, with its share of all, and the devices that hold it.
function model({ config, parameters, tokenizer, vocab_size }) {
  const counted = parameters.map((parameter) => ({ ...parameter, count: parameter.shape.reduce((a, b) => a * b, 1) }));
  const total = counted.reduce((sum, { count }) => sum + count, 0), most = Math.max(...counted.map(({ count }) => count));
  const rows = counted.map(({ name, shape, count, dtype, devices, split }) => {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${((100 * count) / most).toFixed(1)}%`;
    const where = split.some(Boolean) ? `divided by ${split.filter(Boolean).join(", ")} over ` : "";
    return el("tr", {}, el("th", { scope: "row" }, el("code", {}, name)), el("td", {}, shape.join(" × ")),
      el("td", { class: "number" }, count.toLocaleString("en")),
      el("td", { class: "share" }, el("span", { class: "bars", title: `${((100 * count) / total).toFixed(1)}% of all` }, bar)),
      el("td", {}, dtype), el("td", {}, where + (devices.length > 2 ? `${devices.length} devices` : devices.join(", "))));
  });
  const heads = ["parameter", "shape", "numbers", "", "type", "where"].map((text) => el("th", { scope: "col" }, text));
  const kv = config.kv_heads === config.n_head ? "" : `, which share ${config.kv_heads} key/value heads`;
  return el("div", { class: "card" }, el("h3", {}, "The model"),
    el("p", { class: "faint" }, `${total.toLocaleString("en")} parameters: ${config.n_layer} layers of ${config.n_head} heads${kv}, vectors of `
      + `${config.n_embd}, MLPs of ${config.hidden} (${config.mlp}), ${config.norm}, ${config.position} positions. It reads `
      + `${config.block_size} tokens at most, of a vocabulary of ${vocab_size.toLocaleString("en")} (${tokenizer}), and multiplies in ${config.compute.dtype}. `
      + "The arrays of blocks have the layers as their first axis."),
    el("div", { class: "scroll" }, el("table", { class: "parameters" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows))));
}
