// The view Loss: how many bits each token of the text costs the model, how that came about over the checkpoints of
// the run, and where two checkpoints differ.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { bits, byId, el, figures, mean, plays } from "./dom.js";
import { asked, placesOf, question } from "./looked.js";
import { derived, effect, state } from "./reactive.js";
import { at, checkpoint, ids, learned, model, other, spelled, text, view } from "./store.js";
import { UNLEARNED, gained, surprise } from "./tokens.js";

const PAUSE = 500; // milliseconds that a replay rests at each checkpoint

/** @typedef {{name: string, iteration: number | null, val_loss: number | null, of?: string}} Checkpoint */

export const checkpoints = state(/** @type {Checkpoint[]} */ ([]));

/** The checkpoint of the slider. */
const current = derived(() => checkpoint.value ?? model.value?.version);

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
const both = derived(() => [current, other].map(({ value }) => losses.value?.costs[value]));

const showCurves = chart(byId("loss-chart"), { format: (y) => y.toFixed(2),
  title: "Bits per token of this text, and bits of the chosen token, by iteration" });
byId("slider").addEventListener("input", () => { checkpoint.value = checkpoints.peek()[byId("slider").value].name; });
byId("other").addEventListener("change", () => { other.value = byId("other").value || null; });
plays(byId("replay"), replay, PAUSE);

effect(() => {
  if (["loss", "chat"].includes(view.value) && model.value) find(); // again when there is a newer one
});
effect(() => {
  const found = checkpoints.value;
  byId("slider").max = found.length - 1;
  byId("slider").value = found.findIndex(({ name }) => name === current.value);
  byId("named").textContent = title(current.value);
  for (const id of ["slide", "replay", "replayed", "compare"]) byId(id).hidden = found.length < 2;
  byId("loss-chart").hidden = !found.length;
  byId("other").replaceChildren(el("option", { value: "" }, "nothing"),
    ...found.map(({ name }) => el("option", { value: name }, title(name))));
  byId("other").value = other.value ?? "";
});
effect(() => {
  byId("loss-note").textContent = ids.value.length < 2 ? "The loss needs two tokens or more." : losses.error.value;
});
effect(draw);

function draw() {
  const { tokens } = text.value, [mine, others] = both.value, known = losses.value?.costs ?? {};
  const chosen = at.value - tokens.length + (mine?.length ?? 0), one = mine?.[chosen] !== undefined;
  const n = tokens.length - (mine?.length ?? 0);
  /** @template T @param {T[]} all */
  const counted = (all) => all.filter((_, i) => learned.value[n + i]), average = (all) => mean(counted(all));
  const some = counted(mine ?? []).length; // of a text that has just changed, `learned` may be the former's
  const series = (name, colour, value) => ({ name, kind: "dots", colour,
    points: checkpoints.value.filter((found) => known[found.name])
      .map((found) => [found.iteration ?? 0, value(known[found.name])]) });
  showCurves([...(some ? [series("text", 1, average)] : []), ...(one ? [series("chosen token", 3, (all) => all[chosen])] : [])]);
  byId("sides").hidden = !others;
  const each = (figure) => [mine, others].filter(Boolean).map(figure).join(" / ");
  const { special = [], ends = [] } = model.value?.marks ?? {}, marks = new Set([...special, ...ends]); // no text
  const written = counted(tokens.slice(n)).filter(({ id }) => !marks.has(id));
  const bytes = new TextEncoder().encode(spelled(written)).length;
  byId("loss-figures").replaceChildren(...(mine ? figures([
    ["bits per token", some && each((x) => average(x).toFixed(3))],
    ["perplexity", some && each((x) => Number((2 ** average(x)).toPrecision(4)).toLocaleString("en"))],
    ["bits per byte", bytes && each((x) => ((average(x) * some) / bytes).toFixed(3))],
    [some < mine.length ? "tokens of answers" : "tokens", some.toLocaleString("en")],
    ["bits of the chosen token", one && each((x) => x[chosen].toFixed(2))],
  ]) : []));
}

export function tints() {
  const [mine, others] = both.value, { tokens } = text.value;
  return tokens.map((_, i) => {
    const n = i - tokens.length + (mine?.length ?? 0);
    if (!learned.value[i]) return UNLEARNED;
    if (mine?.[n] === undefined) return null;
    if (!others) return surprise(2 ** -mine[n]);
    return gained(others[n] - mine[n], `${mine[n].toFixed(2)} bits, and ${others[n].toFixed(2)} with the other`);
  });
}

async function find() {
  const found = (await get("inside/checkpoints")).checkpoints;
  if (JSON.stringify(found) !== JSON.stringify(checkpoints.peek())) checkpoints.value = found;
  const there = (name) => (found.some((one) => one.name === name) ? name : null);
  [checkpoint.value, other.value] = [there(checkpoint.peek()), there(other.peek())];
}

/** Move the slider to the next checkpoint, from the last to the first. Return whether there are more. */
function replay() {
  const found = checkpoints.peek(), next = (found.findIndex(({ name }) => name === current.peek()) + 1) % found.length;
  if (view.peek() !== "loss") return false;
  checkpoint.value = found[next].name;
  return next < found.length - 1;
}

export function title(name = "") {
  const { of } = checkpoints.value.find((one) => one.name === name) ?? {};
  return of ? `before: ${of}` : name.replace("iter-", "iteration ");
}
