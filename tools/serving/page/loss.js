// The view Loss: how many bits each token of the text costs the model, how that came about over the checkpoints of
// the run, and where two checkpoints, or two runs, differ.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { bits, byId, clicks, figures, mean, offer } from "./dom.js";
import { placesOf, question } from "./looked.js";
import { Pair } from "./pair.js";
import { derived, effect, state } from "./reactive.js";
import { at, checkpoint, ids, model, other, text, view } from "./store.js";
import { surprise } from "./tokens.js";

const FULL = 4; // bits of difference between two checkpoints at which the tint is full
const PAUSE = 500; // milliseconds that a replay rests at each checkpoint

/** @typedef {{name: string, iteration: number | null, run: string, val_loss: number | null}} Checkpoint */

const checkpoints = state(/** @type {Checkpoint[]} */ ([]));
const known = state(/** @type {Map<string, number[]>} */ (new Map())); // bits of each token but the first
const playing = state(false), error = state("");

/** The checkpoint of the slider. */
export const current = derived(() => checkpoint.value ?? model.value?.version);

/** Those of the run that the slider is in. */
function ofRun() {
  const mine = checkpoints.value.find(({ name }) => name === current.value);
  return checkpoints.value.filter(({ run }) => run === mine?.run);
}

export class Loss {
  constructor() {
    this.chart = new Chart({ title: "Bits per token of this text, and bits of the chosen token, by iteration",
      format: (y) => y.toFixed(2) });
    byId("loss-chart").append(this.chart.element);
    byId("slider").addEventListener("input", () => { checkpoint.value = ofRun()[byId("slider").value].name; });
    byId("other").addEventListener("change", () => { other.value = byId("other").value || null; });
    clicks(byId("replay"), replay);
    new Pair();
    effect(() => {
      void model.value.version; // a newer one
      if (view.value === "loss") find();
    });
    effect(() => {
      const found = ofRun(), all = checkpoints.value;
      byId("slider").max = found.length - 1;
      byId("slider").value = found.findIndex(({ name }) => name === current.value);
      byId("named").textContent = title(current.value);
      byId("slide").hidden = byId("replay").hidden = found.length < 2;
      byId("compare").hidden = all.length < 2;
      offer(byId("other"), [["", "nothing"], ...all.map(({ name }) => [name, title(name)])]);
      byId("other").value = other.value ?? "";
      byId("replay").textContent = playing.value ? "Stop" : "Replay";
    });
    effect(() => {
      void ids.value;
      known.value = new Map();
    });
    effect(() => {
      void [checkpoints.value, other.value];
      if (question(current.value) && view.value === "loss" && ids.value.length > 1) gather();
    });
    effect(() => {
      byId("loss-note").textContent = ids.value.length < 2 ? "The loss needs two tokens or more." : error.value;
    });
    effect(() => this.draw());
  }

  draw() {
    const { tokens } = text.value, mine = known.value.get(current.value), others = known.value.get(other.value);
    const chosen = at.value - tokens.length + (mine?.length ?? 0), one = mine?.[chosen] !== undefined;
    const runs = [...new Set(checkpoints.value.map(({ run }) => run))];
    const curves = (name, colour, value) => runs.map((run, i) => /** @type {import("./chart.js").Series} */ ({
      name: runs.length > 1 ? `${run}: ${name}` : name, kind: "dots", colour, run: i,
      points: checkpoints.value.filter((found) => found.run === run && known.value.has(found.name))
        .map((found) => [found.iteration ?? 0, value(known.value.get(found.name))]),
    }));
    this.chart.show([...curves("text", 1, mean), ...(one ? curves("chosen token", 3, (all) => all[chosen]) : [])]);
    byId("sides").hidden = !others;
    const each = (figure) => (others ? `${figure(mine)} / ${figure(others)}` : figure(mine));
    const bytes = new TextEncoder().encode(tokens.slice(-mine?.length).map(({ text }) => text).join("")).length;
    byId("loss-figures").replaceChildren(...(mine ? figures([
      ["bits per token", each((x) => mean(x).toFixed(3))],
      ["perplexity", each((x) => Number((2 ** mean(x)).toPrecision(4)).toLocaleString("en"))],
      ["bits per byte", each((x) => ((mean(x) * x.length) / bytes).toFixed(3))],
      ["tokens", mine.length.toLocaleString("en")],
      ["bits of the chosen token", one && each((x) => x[chosen].toFixed(2))],
    ]) : []));
  }

  tints() {
    const mine = known.value.get(current.value), others = known.value.get(other.value), { tokens } = text.value;
    return tokens.map((_, i) => {
      const n = i - tokens.length + (mine?.length ?? 0);
      if (mine?.[n] === undefined) return null;
      if (!others) return surprise(2 ** -mine[n]);
      const better = others[n] - mine[n], side = better > 0 ? "good" : "bad";
      const said = `${mine[n].toFixed(2)} bits, and ${others[n].toFixed(2)} with the other`;
      return { strength: Math.min(1, Math.abs(better) / FULL), side, said };
    });
  }
}

async function find() {
  try {
    const found = (await get("inside/checkpoints")).checkpoints;
    if (JSON.stringify(found) !== JSON.stringify(checkpoints.peek())) checkpoints.value = found;
  } catch (problem) {
    error.value = problem.message;
  }
}

/** Ask all checkpoints about the text, first those that are shown. */
async function gather() {
  const about = ids.peek(), names = [current.peek(), other.peek(), ...checkpoints.peek().map(({ name }) => name)];
  for (const name of new Set(names)) {
    const wanted = view.peek() === "loss" && about === ids.peek() && name && question(name);
    if (!wanted) continue;
    try {
      const { places } = await placesOf(wanted);
      const costs = places.slice(1, -1).filter(Boolean).map(({ before }) => bits(before));
      if (about === ids.peek()) known.value = new Map([...known.peek(), [name, costs]]);
      error.value = "";
    } catch (problem) {
      error.value = problem.message;
      if (problem.status === 404) await find(); // a run in training deletes checkpoints
    }
  }
}

/** Move the slider over all checkpoints of its run, from the first. */
async function replay() {
  playing.value = !playing.peek();
  for (const { name } of ofRun()) {
    if (!playing.peek() || view.peek() !== "loss") break;
    checkpoint.value = name;
    await new Promise((done) => setTimeout(done, PAUSE));
  }
  playing.value = false;
}

export function title(name = "") {
  return name.replace(/start$/, "what it started from").replace("iter-", "iteration ").replace("/", ": ");
}
