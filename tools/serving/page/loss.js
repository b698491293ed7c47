// The view Loss: how many bits each token of the text costs the model, how that came about over the checkpoints of
// the run, and where two checkpoints, or two runs, differ.

import { get } from "./api.js";
import { asked } from "./asked.js";
import { chart } from "./chart.js";
import { bits, byId, figures, mean, offer, plays } from "./dom.js";
import { placesOf, question } from "./looked.js";
import { showPair } from "./pair.js";
import { derived, effect, state } from "./reactive.js";
import { at, checkpoint, ids, model, other, text, view } from "./store.js";
import { surprise } from "./tokens.js";

const FULL = 4; // bits of difference between two checkpoints at which the tint is full
const PAUSE = 500; // milliseconds that a replay rests at each checkpoint

/** @typedef {{name: string, iteration: number | null, run: string, val_loss: number | null}} Checkpoint */

const checkpoints = state(/** @type {Checkpoint[]} */ ([])), error = state("");

/** The checkpoint of the slider. */
export const current = derived(() => checkpoint.value ?? model.value?.version);

/** Those of the run that the slider is in. */
const ofRun = derived(() => {
  const mine = checkpoints.value.find(({ name }) => name === current.value);
  return checkpoints.value.filter(({ run }) => run === mine?.run);
});

/** Bits of each token but the first, by checkpoint. Those that are shown are asked first. */
const losses = asked(() => {
  const wanted = view.value === "loss" && ids.value.length > 1 ? question() : null;
  const names = new Set([current.value, other.value, ...checkpoints.value.map(({ name }) => name)]);
  return wanted && { ...wanted, names: [...names].filter(Boolean) };
}, async ({ names, ...wanted }, signal, tell) => {
  const costs = {};
  for (const checkpoint of names) {
    if (signal.aborted) break;
    const { places } = await placesOf({ ...wanted, checkpoint }).catch(async (problem) => {
      if (problem.status === 404) await find(); // a run in training deletes checkpoints
      throw problem;
    });
    costs[checkpoint] = places.slice(1, -1).filter(Boolean).map(({ before }) => bits(before));
    tell({ costs });
  }
  return { costs };
});

/** The bits of each token by the checkpoint of the slider, and by the one that it is compared with. */
function both() {
  const costs = losses.value?.costs ?? {};
  return [costs[current.value], costs[other.value]];
}

export function showLoss() {
  const curves = chart({ title: "Bits per token of this text, and bits of the chosen token, by iteration",
    format: (y) => y.toFixed(2) });
  byId("loss-chart").append(curves.element);
  byId("slider").addEventListener("input", () => { checkpoint.value = ofRun.peek()[byId("slider").value].name; });
  byId("other").addEventListener("change", () => { other.value = byId("other").value || null; });
  plays(byId("replay"), replay, PAUSE);
  showPair();
  effect(() => {
    void model.value.version; // a newer one
    if (view.value === "loss") find();
  });
  effect(() => {
    const found = ofRun.value, all = checkpoints.value;
    byId("slider").max = found.length - 1;
    byId("slider").value = found.findIndex(({ name }) => name === current.value);
    byId("named").textContent = title(current.value);
    byId("slide").hidden = byId("replay").hidden = found.length < 2;
    byId("compare").hidden = all.length < 2;
    offer(byId("other"), [["", "nothing"], ...all.map(({ name }) => [name, title(name)])]);
    byId("other").value = other.value ?? "";
  });
  effect(() => {
    const few = ids.value.length < 2 ? "The loss needs two tokens or more." : "";
    byId("loss-note").textContent = few || error.value || losses.error.value;
  });
  effect(() => draw(curves));
  return tints;
}

function draw(curves) {
  const { tokens } = text.value, [mine, others] = both(), known = losses.value?.costs ?? {};
  const chosen = at.value - tokens.length + (mine?.length ?? 0), one = mine?.[chosen] !== undefined;
  const runs = [...new Set(checkpoints.value.map(({ run }) => run))];
  const series = (name, colour, value) => runs.map((run, i) => ({
    name: runs.length > 1 ? `${run}: ${name}` : name, kind: "dots", colour, run: i,
    points: checkpoints.value.filter((found) => found.run === run && known[found.name])
      .map((found) => [found.iteration ?? 0, value(known[found.name])]),
  }));
  curves.show([...series("text", 1, mean), ...(one ? series("chosen token", 3, (all) => all[chosen]) : [])]);
  byId("sides").hidden = !others;
  const each = (figure) => [mine, others].filter(Boolean).map(figure).join(" / ");
  const bytes = new TextEncoder().encode(tokens.slice(-mine?.length).map(({ text }) => text).join("")).length;
  byId("loss-figures").replaceChildren(...(mine ? figures([
    ["bits per token", each((x) => mean(x).toFixed(3))],
    ["perplexity", each((x) => Number((2 ** mean(x)).toPrecision(4)).toLocaleString("en"))],
    ["bits per byte", each((x) => ((mean(x) * x.length) / bytes).toFixed(3))],
    ["tokens", mine.length.toLocaleString("en")],
    ["bits of the chosen token", one && each((x) => x[chosen].toFixed(2))],
  ]) : []));
}

function tints() {
  const [mine, others] = both(), { tokens } = text.value;
  return tokens.map((_, i) => {
    const n = i - tokens.length + (mine?.length ?? 0);
    if (mine?.[n] === undefined) return null;
    if (!others) return surprise(2 ** -mine[n]);
    const better = others[n] - mine[n], side = better > 0 ? "good" : "bad";
    const said = `${mine[n].toFixed(2)} bits, and ${others[n].toFixed(2)} with the other`;
    return { strength: Math.min(1, Math.abs(better) / FULL), side, said };
  });
}

async function find() {
  try {
    const found = (await get("inside/checkpoints")).checkpoints;
    if (JSON.stringify(found) !== JSON.stringify(checkpoints.peek())) checkpoints.value = found;
  } catch (problem) {
    error.value = problem.message;
  }
}

/** Move the slider to the next checkpoint of its run, from the last to the first. Return whether there are more. */
function replay() {
  const found = ofRun.peek(), next = (found.findIndex(({ name }) => name === current.peek()) + 1) % found.length;
  if (view.peek() !== "loss") return false;
  checkpoint.value = found[next].name;
  return next < found.length - 1;
}

export function title(name = "") {
  return name.replace(/start$/, "what it started from").replace("iter-", "iteration ").replace("/", ": ");
}
