// The view Run: how the training of this model goes, live, and what the model is made of.

import { get } from "./api.js";
import { chart, plain } from "./chart.js";
import { bars, byId, el, figures, percent, short } from "./dom.js";
import { effect, state } from "./reactive.js";
import { model, view } from "./store.js";

const EVERY = 2000; // milliseconds between questions for new records
const SMALL = { tokens_per_second: "Tokens per second", grad_norm: "Norm of the gradient", lr: "Learning rate",
  ms: "Milliseconds per step" };

// What is drawn and told of a run that learns from texts, or from rewards. Curves: field, name, kind, colour.
const LOSS = { field: "loss", title: "Loss, in nats per token, by iteration", best: "best validation loss", sign: 1,
  curves: [["loss", "batch", "line", 3], ["train/loss", "train", "dots", 2], ["val/loss", "validation", "dots", 1]] };
const REWARD = { field: "reward", title: "Mean reward, 1 for a right answer, by iteration", best: "best held-out reward", sign: -1,
  curves: [["reward", "batch", "line", 3], ["val/reward", "held out", "dots", 1]] };

let records = /** @type {any[]} */ ([]), offset = 0;
let asking = false;

const together = { at: state(null), range: state(null) };
let showScore; // a chart
const small = Object.entries(SMALL).map(([name, title]) => {
  const card = el("div", { class: "card" }), format = name === "tokens_per_second" ? short : plain;
  byId("quarters").append(card);
  return { name, show: chart(card, { title, small: true, format, ...together }) };
});

effect(() => model.value && parameters(model.value));
effect(() => {
  void [view.value, model.value];
  poll();
});
setInterval(poll, EVERY);

async function poll() {
  if (asking || view.peek() !== "run" || !model.peek()) return;
  asking = true;
  try {
    if (model.peek().run && await more()) draw();
    byId("run-note").textContent = tells();
  } catch (error) {
    byId("run-note").textContent = error.message;
  }
  asking = false;
}

/** Ask for the run's new records. Return how many there are. */
async function more() {
  const told = await get(`inside/run?offset=${offset}`);
  records = [...(told.fresh ? [] : records), ...told.records];
  offset = told.offset;
  return told.records.length;
}

/** How the run is, as far as one can see. */
function tells() {
  if (!model.peek().run) return "This model was not loaded from a run, so there are no curves. "
    + "Start serve.py with --out_dir=<folder of a run>.";
  if (!records.length) return "No step is logged yet: the curves appear with the first.";
  return "These are the records so far; new ones appear by themselves.";
}

function draw() {
  byId("charts").hidden = !records.length;
  const points = (name) => records.filter((record) => name in record).map((record) => [record.iter, record[name]]);
  const curve = (field, name, kind, colour) => ({ name, kind, colour, points: points(field) });
  const { field, title, best, sign, curves } = records.some((record) => "val/reward" in record) ? REWARD : LOSS;
  showScore ??= chart(byId("run-chart"), { title, tools: true, ...together });
  showScore(curves.map((each) => curve(...each)));
  byId("of-loss").hidden = field !== "loss";
  for (const { show, name } of small) show([curve(name, "", "line", 1)]);
  const last = records.findLast((record) => "loss" in record) ?? {};
  const found = points(`val/${field}`).sort((a, b) => sign * (a[1] - b[1]))[0];
  const whole = (x) => x && Math.round(x).toLocaleString("en");
  byId("run-figures").replaceChildren(...figures([
    ["iteration", whole(records.at(-1)?.iter)],
    [`${field} of the batch`, last[field]?.toFixed(3)],
    [best, found && `${found[1].toFixed(3)} at ${whole(found[0])}`],
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
    const share = percent(mine / total);
    return el("tr", {}, el("th", { scope: "row" }, el("code", {}, name)), el("td", {}, shape.join(" × ")),
      el("td", { class: "number" }, mine.toLocaleString("en")), el("td", { class: "share" }, bars(mine / most), share),
      el("td", {}, dtype), el("td", {}, axes.length ? `divided by ${axes.join(", ")} over ` : "",
        devices.length > 2 ? `${devices.length} devices` : devices.join(", ")));
  });
  const { n_layer, n_head, kv_heads, n_embd, hidden, mlp, norm, position, block_size, dtype } = config;
  const shown = { parameters: total.toLocaleString("en"), n_layer, n_head, kv_heads, n_embd, hidden, mlp, norm,
    position, block_size, vocab_size, tokenizer, dtype };
  byId("shape").replaceChildren(...figures(Object.entries(shown)));
  byId("arrays").replaceChildren(...rows);
}

export const count = (arrays) => arrays.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0);
