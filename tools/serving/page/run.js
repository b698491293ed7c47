// The view Run: how the training of this model goes, live, and what the model is made of.

import { get } from "./api.js";
import { Chart, plain } from "./chart.js";
import { bar, card, el, figures, short } from "./dom.js";
import { effect, state } from "./reactive.js";
import { model, view } from "./store.js";

const EVERY = 2000; // milliseconds between questions for new records
const QUIET = 60; // seconds without a new record, after which the run is said to rest
const SMALL = { tokens_per_second: "Tokens per second", grad_norm: "Norm of the gradient", lr: "Learning rate", ms: "Milliseconds per step" };

export class Run {
  constructor() {
    this.runs = model.peek().runs.map((/** @type {string} */ name) => ({ name, records: [], offset: 0 }));
    this.line = el("p", { class: "message", role: "status" });
    this.figures = el("dl", { class: "figures" });
    const together = { at: state(null), range: state(null) };
    this.loss = new Chart({ title: "Loss, in nats per token, by iteration", tools: true, ...together });
    this.small = Object.entries(SMALL).map(([name, title]) => /** @type {[Chart, string]} */ ([
      new Chart({ title, size: "small", format: name === "tokens_per_second" ? short : plain, ...together }), name]));
    this.charts = el("div", { class: "stack", hidden: true }, el("div", { class: "card" }, this.figures, this.loss.element),
      el("div", { class: "quarters" }, ...this.small.map(([chart]) => el("div", { class: "card" }, chart.element))));
    this.elements = [this.line, this.charts, parameters(model.peek())];
    effect(() => {
      clearTimeout(this.timer);
      if (view.value !== "run") return;
      if (this.runs.length) this.poll();
      else this.line.textContent = "This model was not loaded from a run, so there are no curves. Start serve.py with --out_dir=<folder of a run>.";
    });
  }

  async poll() {
    clearTimeout(this.timer);
    try {
      let grew = false;
      for (const run of this.runs) {
        const answer = await get(`inside/run?offset=${run.offset}&name=${encodeURIComponent(run.name)}`);
        if (answer.fresh) run.records = [];
        run.records.push(...answer.records);
        run.offset = answer.offset;
        grew = grew || answer.records.length > 0;
      }
      if (grew) this.draw();
      this.tellState(grew);
    } catch (error) {
      this.line.textContent = error.message;
    }
    clearTimeout(this.timer);
    if (view.peek() === "run") this.timer = setTimeout(() => this.poll(), EVERY);
  }

  /** @param {boolean} grew */
  tellState(grew) {
    const now = performance.now();
    if (grew) this.grew = this.polled ? now : null; // of the first records it is not known when they came
    this.polled = true;
    const quiet = this.grew == null ? null : (now - this.grew) / 1000;
    this.line.textContent = !this.runs[0].records.length ? "No step is logged yet: the curves appear with the first."
      : quiet == null ? "These are the records so far; new ones appear by themselves."
        : quiet < QUIET ? "It is training: this grows by itself."
          : `No new record for ${Math.round(quiet / 60)} min: the run has ended, or was stopped.`;
  }

  draw() {
    const { records } = this.runs[0];
    this.charts.hidden = !records.length;
    const points = (/** @type {any[]} */ records, /** @type {string} */ name) =>
      records.filter((record) => name in record).map((record) => /** @type {[number, number]} */ ([record.iter, record[name]]));
    const of = (/** @type {string} */ name, /** @type {any} */ props) => this.runs.map(
      (/** @type {any} */ run, /** @type {number} */ i) => ({ ...props, run: i, points: points(run.records, name),
        name: this.runs.length > 1 ? `${run.name}: ${props.name}` : props.name }));
    this.loss.show([...of("loss", { name: "batch", kind: "line", colour: 3 }), ...of("train/loss", { name: "train", kind: "dots", colour: 2 }),
      ...of("val/loss", { name: "validation", kind: "dots", colour: 1 })]);
    for (const [chart, name] of this.small) chart.show(of(name, { name: "", kind: "line", colour: 1 }));
    const last = records.findLast((/** @type {any} */ record) => "loss" in record) ?? {};
    const best = points(records, "val/loss").reduce((a, b) => (b[1] < a[1] ? b : a), [-1, Infinity]);
    this.figures.replaceChildren(...figures([
      ["iteration", records[records.length - 1]?.iter.toLocaleString("en")],
      ["loss of the batch", last.loss?.toFixed(3)],
      ["best validation loss", best[0] < 0 ? null : `${best[1].toFixed(3)} at ${best[0].toLocaleString("en")}`],
      ["tokens per second", last.tokens_per_second && Math.round(last.tokens_per_second).toLocaleString("en")],
      ["memory", last.memory_mb && `${Math.round(last.memory_mb).toLocaleString("en")} MB`],
      ["MFU", last.mfu && `${(100 * last.mfu).toFixed(1)}%`],
    ]));
  }
}

/** What the model is made of: a row for each array, with its share of all, and the devices that hold it.
 * @param {any} model */
function parameters({ config, parameters, tokenizer, vocab_size }) {
  const counted = parameters.map((/** @type {any} */ parameter) => ({ ...parameter, count: size(parameter) }));
  const total = count(parameters), most = Math.max(...counted.map((/** @type {any} */ { count }) => count));
  const rows = counted.map((/** @type {any} */ { name, shape, count, dtype, devices, split }) => {
    const where = split.some(Boolean) ? `divided by ${split.filter(Boolean).join(", ")} over ` : "";
    return el("tr", {}, el("th", { scope: "row" }, el("code", {}, name)), el("td", {}, shape.join(" × ")),
      el("td", { class: "number" }, count.toLocaleString("en")),
      el("td", { class: "share" }, el("span", { class: "bars", title: `${((100 * count) / total).toFixed(1)}% of all` }, bar(count / most))),
      el("td", {}, dtype), el("td", {}, where + (devices.length > 2 ? `${devices.length} devices` : devices.join(", "))));
  });
  const heads = ["array", "shape", "parameters", "share", "type", "where"].map((text) => el("th", { scope: "col" }, text));
  const kv = config.kv_heads === config.n_head ? "" : `, which share ${config.kv_heads} key/value heads`;
  return card("The model",
    el("p", { class: "faint" }, `${total.toLocaleString("en")} parameters: ${config.n_layer} layers of ${config.n_head} heads${kv}, vectors of `
      + `${config.n_embd}, MLPs of ${config.hidden} (${config.mlp}), ${config.norm}, ${config.position} positions. It reads `
      + `${config.block_size} tokens at most, of a vocabulary of ${vocab_size.toLocaleString("en")} (${tokenizer}), and multiplies in ${config.compute.dtype}. `
      + "The arrays of blocks have the layers as their first axis."),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "the model’s arrays; scrolls sideways" },
      el("table", { class: "parameters" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows))));
}

/** @param {{shape: number[]}} array */
function size({ shape }) {
  return shape.reduce((a, b) => a * b, 1);
}

/** @param {{shape: number[]}[]} arrays */
export function count(arrays) {
  return arrays.reduce((sum, array) => sum + size(array), 0);
}
