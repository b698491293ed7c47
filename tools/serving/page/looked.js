// What the server tells about the shared text: what could stand at each place, attention, and the logit lens.

import { post } from "./api.js";
import { asked } from "./asked.js";
import { derived, state } from "./reactive.js";
import { at, checkpoint, ids, model, part, settings, text, view, writing } from "./store.js";

/** @typedef {{likeliest: number[], likeliest_before: number[], likeliest_after: number[], before?: number,
 * after?: number}} Place */
/** @typedef {{places: (Place | null)[], names: {[id: string]: string}}} Places */

export const LIKELIEST = 5; // tokens of the lens

export const pointed = state(/** @type {number | null} */ (null)); // the token below the pointer

/** The checkpoint that is looked at: in Loss that of its slider. */
export const looking = derived(() => (view.value === "loss" && checkpoint.value) || model.value?.version);

/** What to ask of a checkpoint about all places; null: nothing. @param {string} name */
export function question(name) {
  if (!model.value || writing.value || !ids.value.length || view.value === "run") return null;
  const skipped = Math.max(0, ids.value.length - model.value.limits.tokens);
  const { temperature, top_k, top_p } = settings.value;
  const prompt = view.value === "loss" ? 0 : Math.max(0, text.value.from - skipped); // in Loss every token counts
  return { text: ids.value.slice(skipped), prompt, temperature, top_k, top_p, checkpoint: name };
}

/** @type {Map<string, Promise<Places>>} */
const known = new Map(); // answers about the text that is shown
let about = ids.peek();

/** @param {ReturnType<typeof question>} wanted @returns {Promise<Places>} */
export function placesOf(wanted) {
  if (about !== ids.peek()) known.clear();
  about = ids.peek();
  const key = JSON.stringify(wanted);
  if (!known.has(key)) {
    const answer = post("inside/places", wanted);
    answer.catch(() => known.delete(key));
    known.set(key, answer);
  }
  return known.get(key);
}

export const places = asked(() => question(looking.value), placesOf);

/** The answer, if it is about the text that is shown. */
const fresh = derived(() => {
  const told = places.value, all = ids.value, skipped = all.length - (told?.to.text.length ?? Infinity);
  return told && skipped >= 0 && told.to.text.every((id, i) => id === all[skipped + i]) ? told : null;
});

/** What could stand at place i: undefined while that is not known, null if the model could not know. */
export function placeAt(i) {
  if (!fresh.value) return undefined;
  return fresh.value.places[i - (ids.value.length + 1 - fresh.value.places.length)] ?? null;
}

/** How likely each token of the text was. */
export function likelihoods() {
  return text.value.tokens.map((token, i) => placeAt(i)?.before ?? token.probability);
}

/** The question of a view that takes `most` tokens. @param {"attention" | "lens"} name */
function partOf(name) {
  if (!model.value || writing.value || !ids.value.length || !["write", name].includes(view.value)) return null;
  const [start, end] = part(ids.value.length, at.value, model.value.limits[name]);
  return { text: ids.value.slice(start, end), start, version: model.value.version };
}

export const lens = asked(() => partOf("lens"),
  ({ text }, signal) => post("inside/lens", { text, k: LIKELIEST }, signal));

export const attention = asked(() => partOf("attention"), async ({ text }, signal) => {
  const answer = await post("inside/attention", { text }, signal);
  const [L, H, T] = answer.shape, triangle = (T * (T + 1)) / 2;
  const bytes = Uint8Array.from(atob(answer.weights), (letter) => letter.charCodeAt(0));
  const parts = new DataView(bytes.buffer);
  /** How much token t reads of token s in a head. */
  const weight = (l, h, t, s) =>
    parts.getUint16(2 * ((l * H + h) * triangle + (t * (t + 1)) / 2 + s), true) / 65535;
  return { tokens: answer.tokens, L, H, T, weight, sharpest: sharpest(L, H, T, weight) };
});

/** The head whose tokens read one other most of all; the first token can read none but itself.
 * @param {(l: number, h: number, t: number, s: number) => number} weight */
function sharpest(L, H, T, weight) {
  let best = { layer: 0, head: 0, value: -1 };
  for (let layer = 0; layer < L; layer += 1) {
    for (let head = 0; head < H; head += 1) {
      let value = 0;
      for (let t = 1; t < T; t += 1) {
        value += Math.max(...Array.from({ length: t + 1 }, (_, s) => weight(layer, head, t, s)));
      }
      if (value > best.value) best = { layer, head, value };
    }
  }
  return { layer: best.layer, head: best.head };
}
