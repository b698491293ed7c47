// Writing: the model goes on with the shared text, from its end or from another token at the chosen place.

import { stream } from "./api.js";
import { batch, state } from "./reactive.js";
import { change, model, settings, text, writing } from "./store.js";

export const said = state({ text: "", bad: false }); // what goes on

/** @param {string} text */
export function say(text, bad = false) {
  said.value = { text, bad };
}

addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  say(event.reason.message, true);
});

export async function write() {
  const { tokens, by, drawn } = text.peek();
  await goOn({ tokens, from: tokens.length, by, drawn });
}

/** Write the last continuation anew. */
export async function again() {
  const { tokens, from } = text.peek();
  nextSeed();
  await goOn({ tokens: tokens.slice(0, from), from });
}

/** With the same seed the model would write the same again. */
export function nextSeed() {
  const { seed } = settings.peek();
  if (seed != null) settings.value = { ...settings.peek(), seed: (seed + 1) % 2 ** 32 };
}

/** Put another token at a place, and go on from there. @param {number} i @param {import("./store.js").Token} token */
export async function branch(i, token) {
  await goOn({ tokens: [...text.peek().tokens.slice(0, i), { ...token, picked: true }], from: i + 1 });
}

/** @param {import("./store.js").Text} begun */
async function goOn(begun) {
  if (writing.peek()) return;
  const prompt = begun.tokens.slice(-model.peek().config.block_size).map(({ id }) => id); // the API takes no more
  say("writing …");
  const made = batch(() => {
    change(begun);
    return streamed("v1/completions", { prompt, logprobs: 0 }, writing, (event, drawn) => {
      const { tokens, from } = text.peek(), more = written(event.choices[0]);
      text.value = { tokens: [...tokens, ...more], from, by: event.system_fingerprint, drawn };
      return more.length;
    });
  });
  say(await made);
}

/** Have the API draw tokens by the settings. `take` gets each event, and the settings with their seed, and returns how
 * many tokens are in it; `running` holds what stops it. Return what there is to say.
 * @param {string} path @param {object} question @param {import("./reactive.js").State<AbortController | null>} running
 * @param {(event: any, drawn: import("./store.js").Settings) => number} take */
export async function streamed(path, question, running, take) {
  const seed = settings.peek().seed ?? crypto.getRandomValues(new Uint32Array(1))[0], before = performance.now();
  const abort = new AbortController(), drawn = { ...settings.peek(), seed };
  let made = 0;
  running.value = abort;
  try {
    for await (const event of stream(path, { ...question, ...drawn }, abort.signal)) made += take(event, drawn);
    const seconds = (performance.now() - before) / 1000;
    return made ? `${made} tokens in ${seconds.toFixed(1)} s, ${Math.round(made / seconds)} a second`
      : "The model ended the text here.";
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    return `stopped after ${made} tokens`;
  } finally {
    running.value = null;
  }
}

/** The tokens of a part of a completion. Its offsets count characters, of which JavaScript may store one as two.
 * @param {any} choice @returns {import("./store.js").Token[]} */
export function written({ text, logprobs }) {
  const { token_ids = [], token_logprobs = [], text_offset = [] } = logprobs ?? {}; // without tokens there are none
  const characters = Array.from(text), places = text_offset.map((place) => place - text_offset[0]);
  return token_ids.map((id, i) => ({
    id, text: characters.slice(places[i], places[i + 1]).join(""), probability: Math.exp(token_logprobs[i]),
  }));
}
