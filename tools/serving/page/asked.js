// What the server tells about the shared text: asked again when the question changes, and only the last answer counts.

import { derived, effect, state } from "./reactive.js";
import { ids } from "./store.js";

const WAIT = 120; // milliseconds in which a question may change before it is asked

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
      error.value = problem.message;
      last = ""; // the same may be asked again
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
