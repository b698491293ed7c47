// The view Run: how the training of this model goes, live, and what the model is made of.

import { get } from "./api.js";
import { chart, plain } from "./chart.js";
import { bars, byId, el, figures, short, table } from "./dom.js";
import { effect, state } from "./reactive.js";
import { model, view } from "./store.js";

const EVERY = 2000; // milliseconds between questions for new records
const QUIET = 60_000; // milliseconds after a new record in which the run is said to train
const SMALL = { tokens_per_second: "Tokens per second", grad_norm: "Norm of the gradient", lr: "Learning rate",
  ms: "Milliseconds per step" };

/** @type {{name: string, records: any[], offset: number}[]} */
let runs = [];
let polled = false, grew = -Infinity; // whether records were asked for, and when later ones came

export function showRun() {
  runs = model.peek().runs.map((name) => ({ name, records: [], offset: 0 }));
  const together = { at: state(null), range: state(null) };
  const loss = chart({ title: "Loss, in nats per token, by iteration", tools: true, ...together });
  byId("run-chart").append(loss.element);
  const small = Object.entries(SMALL).map(([name, title]) => {
    const format = name === "tokens_per_second" ? short : plain;
    const made = chart({ title, small: true, format, ...together });
    byId("quarters").append(el("div", { class: "card" }, made.element));
    return { name, ...made };
  });
  parameters(model.peek());
  if (!runs.length) byId("run-note").textContent = "This model was not loaded from a run, so there are no curves. "
    + "Start serve.py with --out_dir=<folder of a run>.";
  let timer = 0;
  const poll = async () => {
    try {
      if (await more()) draw(loss, small);
      byId("run-note").textContent = tells();
    } catch (error) {
      byId("run-note").textContent = error.message;
    }
    clearTimeout(timer);
    if (view.peek() === "run") timer = setTimeout(poll, EVERY);
  };
  effect(() => {
    clearTimeout(timer);
    if (view.value === "run" && runs.length) poll();
  });
}

/** Ask for new records. Return whether there are any. */
async function more() {
  let found = false;
  for (const run of runs) {
    const query = `offset=${run.offset}&name=${encodeURIComponent(run.name)}`;
    const { records, offset, fresh } = await get(`inside/run?${query}`);
    run.records = [...(fresh ? [] : run.records), ...records];
    run.offset = offset;
    found ||= records.length > 0;
  }
  if (found && polled) grew = performance.now();
  polled = true;
  return found;
}

/** How the run is, as far as one can see. */
function tells() {
  if (!runs[0].records.length) return "No step is logged yet: the curves appear with the first.";
  if (performance.now() - grew < QUIET) return "It is training: this grows by itself.";
  return "These are the records so far; new ones appear by themselves.";
}

function draw(loss, small) {
  const { records } = runs[0];
  byId("charts").hidden = !records.length;
  const points = (records, name) =>
    records.filter((record) => name in record).map((record) => [record.iter, record[name]]);
  const curve = (field, name, kind, colour) => runs.map((run, i) => ({ kind, colour, run: i,
    points: points(run.records, field), name: runs.length > 1 ? `${run.name}: ${name}` : name }));
  loss.show([...curve("loss", "batch", "line", 3), ...curve("train/loss", "train", "dots", 2),
    ...curve("val/loss", "validation", "dots", 1)]);
  for (const { show, name } of small) show(curve(name, "", "line", 1));
  const last = records.findLast((record) => "loss" in record) ?? {};
  const best = points(records, "val/loss").sort((a, b) => a[1] - b[1])[0];
  const whole = (x) => x && Math.round(x).toLocaleString("en");
  byId("run-figures").replaceChildren(...figures([
    ["iteration", whole(records[records.length - 1]?.iter)],
    ["loss of the batch", last.loss?.toFixed(3)],
    ["best validation loss", best && `${best[1].toFixed(3)} at ${whole(best[0])}`],
    ["tokens per second", whole(last.tokens_per_second)],
    ["memory", last.memory_mb && `${whole(last.memory_mb)} MB`],
    ["MFU", last.mfu && `${(100 * last.mfu).toFixed(1)}%`],
  ]));
}

/** What the model is made of: a row for each array, with its share of all, and the devices that hold it. */
function parameters({ config, parameters, tokenizer, vocab_size }) {
  const total = count(parameters), most = Math.max(...parameters.map((array) => count([array])));
  const rows = parameters.map((array) => {
    const { name, shape, dtype, devices, split } = array, mine = count([array]), axes = split.filter(Boolean);
    const share = bars(mine / most);
    share.title = `${((100 * mine) / total).toFixed(1)}% of all`;
    return el("tr", {}, el("th", { scope: "row" }, el("code", {}, name)), el("td", {}, shape.join(" × ")),
      el("td", { class: "number" }, mine.toLocaleString("en")), el("td", { class: "share" }, share),
      el("td", {}, dtype), el("td", {}, axes.length ? `divided by ${axes.join(", ")} over ` : "",
        devices.length > 2 ? `${devices.length} devices` : devices.join(", ")));
  });
  const { n_layer, n_head, kv_heads, n_embd, hidden, mlp, norm, position, block_size, compute } = config;
  const shown = { parameters: total.toLocaleString("en"), n_layer, n_head, kv_heads, n_embd, hidden, mlp, norm,
    position, block_size, vocab_size, tokenizer, dtype: compute.dtype };
  byId("shape").replaceChildren(...figures(Object.entries(shown)));
  byId("arrays").replaceChildren(table("parameters", ["array", "shape", "parameters", "share", "type", "where"], rows));
}

/** @param {{shape: number[]}[]} arrays */
export const count = (arrays) => arrays.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0);
