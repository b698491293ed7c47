// What the server tells about the state: asked again when the question changes, and only the last answer counts.

import { effect, state } from "./reactive.js";

const WAIT = 120; // milliseconds in which a question may change before it is asked

/** `question()` returns what to ask, or null. The state holds the last answer, with the question that it is for
 * as `to`; while the next one is on its way the last stays. `busy` and `error` are states as well.
 * @template Q, A @param {() => Q | null} question @param {(question: Q, signal: AbortSignal) => Promise<A>} ask */
export function asked(question, ask) {
  const answer = state(/** @type {(A & {to: Q}) | null} */ (null));
  const busy = state(false), error = state("");
  let last = "", timer = 0, abort = new AbortController();

  async function send(/** @type {Q} */ wanted) {
    const mine = (abort = new AbortController());
    try {
      const told = { ...(await ask(wanted, mine.signal)), to: wanted };
      if (mine === abort) answer.value = told;
    } catch (problem) {
      if (mine !== abort || problem.name === "AbortError") return;
      error.value = problem.message;
      last = ""; // the same may be asked again
    }
    if (mine === abort) busy.value = false;
  }

  effect(() => {
    const wanted = question(), key = JSON.stringify(wanted);
    if (wanted == null || key === last) return;
    last = key;
    clearTimeout(timer);
    abort.abort();
    busy.value = true;
    error.value = "";
    timer = setTimeout(() => send(wanted), answer.peek() ? WAIT : 0);
  });
  return Object.assign(answer, { busy, error });
}
