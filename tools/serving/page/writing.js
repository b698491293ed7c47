// Writing: the model goes on with the shared text, from its end or from another token at the chosen place.

import { post, stream } from "./api.js";
import { short } from "./dom.js";
import { batch, state } from "./reactive.js";
import { change, idsOf, model, settings, text, writing } from "./store.js";

/** @typedef {import("./store.js").Token} Token */

export const said = state({ text: "", bad: false }); // what goes on

export const say = (text = "", bad = false) => { said.value = { text, bad }; };

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

/** Put another token at a place, and go on from there. @param {number} i @param {Token} token */
export async function branch(i, token) {
  const begun = text.peek().tokens.slice(0, i);
  await goOn({ tokens: [...begun, await picked(token, begun)], from: i + 1 });
}

/** A token of the panel, which spells the bytes of a part of a character: after others it may complete that.
 * @param {Token} token @param {Token[]} begun @returns {Promise<Token>} */
export async function picked(token, begun) {
  if (!token.text.startsWith("bytes:")) return { ...token, picked: true };
  const { tokens } = await post("inside/tokens", { text: idsOf([...begun, token]).slice(-8) });
  return { ...token, text: tokens.at(-1).text.replace("\ufffd", ""), picked: true };
}

async function goOn(begun) {
  if (writing.peek()) return;
  const prompt = idsOf(begun.tokens).slice(-model.peek().config.block_size); // the API takes no more
  say("writing …");
  const made = batch(() => {
    change(begun);
    return streamed(prompt, writing, (more, about) => {
      const { tokens, from } = text.peek();
      text.value = { tokens: [...tokens, ...more], from, ...about };
    });
  });
  say(await made);
}

/** Have the API go on with token ids by the settings. `take` gets the tokens that come, with the checkpoint that wrote
 * them and the settings with their seed; `running` holds what stops it. Return what there is to say.
 * @param {number[] | Promise<number[]>} prompt @param {import("./reactive.js").State<AbortController | null>} running
 * @param {(more: Token[], about: {by: string, drawn: import("./store.js").Settings}) => void} take */
export async function streamed(prompt, running, take) {
  const seed = settings.peek().seed ?? crypto.getRandomValues(new Uint32Array(1))[0], before = performance.now();
  const abort = new AbortController(), drawn = { ...settings.peek(), seed };
  let made = 0;
  running.value = abort;
  try {
    for await (const { more, by } of stream({ prompt: await prompt, ...drawn }, abort.signal)) {
      made += more.length;
      take(more, { by, drawn });
    }
    const seconds = (performance.now() - before) / 1000;
    return made ? `${made} tokens in ${seconds.toFixed(1)} s, ${short(made / seconds)} a second`
      : "The model ended the text here.";
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    return `stopped after ${made} tokens`;
  } finally {
    running.value = null;
  }
}
