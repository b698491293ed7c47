// What the server tells about the shared text: what could stand at each place, attention, and the logit lens.

import { post } from "./api.js";
import { mean, ranked } from "./dom.js";
import { derived, effect, state } from "./reactive.js";
import { at, checkpoint, ids, model, part, settings, text, view, writing } from "./store.js";

/** @typedef {{likeliest: number[], likeliest_before: number[], likeliest_after: number[], before?: number,
 * after?: number}} Place */
/** @typedef {{places: (Place | null)[], names: {[id: string]: string}}} Places */

const WAIT = 120; // milliseconds in which a question may change before it is asked

export const pointed = state(/** @type {number | null} */ (null)); // the token below the pointer

/** The checkpoint that is looked at: in Loss that of its slider. */
export const looking = derived(() => (view.value === "loss" && checkpoint.value) || model.value?.version);

/** `question()` returns what to ask, or null: about a part of the text, from its token `start` on. The state holds the
 * last answer while it is about the text that is shown, with the question that it is for as `to`. `ask` may `tell`
 * parts of an answer before it returns all. The state `error` says what goes wrong.
 * @template {{text: number[], start: number}} Q, A @param {() => Q | null} question
 * @param {(question: Q, signal: AbortSignal, tell: (part: A) => void) => Promise<A>} ask */
export function asked(question, ask) {
  const answer = state(/** @type {(A & {to: Q}) | null} */ (null)), error = state("");
  let last = "", timer = 0, abort = new AbortController();

  async function send(/** @type {Q} */ wanted, /** @type {AbortSignal} */ signal) {
    const tell = (/** @type {A} */ told) => {
      if (!signal.aborted) answer.value = { ...told, to: wanted };
    };
    try {
      tell(await ask(wanted, signal, tell));
    } catch (problem) {
      if (signal.aborted) return;
      last = ""; // the same may be asked again
      if (problem.name !== "AbortError") error.value = problem.message;
    }
  }

  effect(() => {
    const wanted = question(), key = JSON.stringify(wanted);
    if (wanted == null || key === last) return;
    last = key;
    clearTimeout(timer);
    abort.abort();
    abort = new AbortController();
    error.value = "";
    timer = setTimeout(send, answer.peek() ? WAIT : 0, wanted, abort.signal);
  });
  const isShown = ({ to: { text, start } }) => text.every((id, i) => id === ids.value[start + i]);
  return Object.assign(derived(() => (answer.value && isShown(answer.value) ? answer.value : null)), { error });
}

/** What to ask of a checkpoint about all places; null: nothing. @param {string} [name] */
export function question(name) {
  if (!model.value || writing.value || !ids.value.length || view.value === "run") return null;
  const start = Math.max(0, ids.value.length - model.value.limits.tokens);
  const { temperature, top_k, top_p } = settings.value;
  const prompt = view.value === "loss" ? 0 : Math.max(0, text.value.from - start); // in Loss every token counts
  return { text: ids.value.slice(start), start, prompt, temperature, top_k, top_p, checkpoint: name };
}

/** Answers about the text that is shown. */
const known = derived(() => /** @type {Map<string, Promise<Places>>} */ (ids.value && new Map()));

/** @param {ReturnType<typeof question>} wanted @param {AbortSignal} [signal] @returns {Promise<Places>} */
export function placesOf({ start, ...wanted }, signal) {
  const answers = known.peek(), key = JSON.stringify(wanted);
  const answer = answers.get(key) ?? post("inside/places", wanted, signal);
  answers.set(key, answer);
  answer.catch(() => answers.delete(key));
  return answer;
}

export const places = asked(() => question(looking.value), placesOf);

/** What could stand at place i: undefined while that is not known, null if the model could not know. */
export function placeAt(i) {
  const seen = places.value;
  if (!seen || seen.to.start + seen.to.text.length < ids.value.length) return undefined;
  return seen.places[i - seen.to.start] ?? null;
}

/** How likely each token of the text was. */
export const likelihoods = () => text.value.tokens.map((token, i) => placeAt(i)?.before ?? token.probability);

/** The question of a view that takes `most` tokens. @param {"attention" | "lens"} name */
function partOf(name) {
  if (!model.value || writing.value || !ids.value.length || !["write", name].includes(view.value)) return null;
  const [start, end] = part(ids.value.length, at.value, model.value.limits[name]);
  return { text: ids.value.slice(start, end), start, version: model.value.version };
}

export const lens = asked(() => partOf("lens"), ({ text }, signal) =>
  post("inside/lens", { text, k: 5 }, signal));

export const attention = asked(() => partOf("attention"), async ({ text }, signal) => {
  const { tokens, weights, shape: [L, H, T] } = await post("inside/attention", { text }, signal);
  const bytes = Uint8Array.from(atob(weights), (letter) => letter.charCodeAt(0));
  const shares = Float32Array.from(new Uint16Array(bytes.buffer), (share) => share / 65535);
  /** How much token t reads of each up to itself. @returns {number[]} */
  const reads = (layer, head, t) => {
    const begin = ((layer * H + head) * T * (T + 1) + t * (t + 1)) / 2;
    return [...shares.subarray(begin, begin + t + 1)];
  };
  const range = (n) => Array.from({ length: n }, (_, i) => i);
  const heads = range(L).flatMap((layer) => range(H).map((head) => ({ layer, head })));
  // The first token can read none but itself.
  const sharpness = ({ layer, head }) => mean(range(T).slice(1).map((t) => Math.max(...reads(layer, head, t))));
  return { tokens, L, H, T, reads, heads, sharpest: heads[ranked(heads.map(sharpness), 1)[0][0]] };
});
