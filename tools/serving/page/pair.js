// Two checkpoints, or two runs, write from one beginning with one seed: where they part, and how sure each was.

import { post } from "./api.js";
import { bits, byId, clicks, code, el, mean } from "./dom.js";
import { current, title } from "./loss.js";
import { effect } from "./reactive.js";
import { at, other, settings, text } from "./store.js";
import { surprise } from "./tokens.js";

const note = byId("pair-note");

export function showPair() {
  clicks(byId("both"), write);
  effect(() => {
    void [current.value, text.value];
    byId("pair").hidden = !other.value;
    byId("pair-texts").replaceChildren();
    note.textContent = "";
  });
}

async function write() {
  const prompt = text.peek().tokens.slice(0, at.peek()).map(({ id }) => id), names = [current.peek(), other.peek()];
  note.textContent = prompt.length ? "writing …" : "Choose a token after the first.";
  if (!prompt.length) return;
  try {
    const [a, b] = [await written(prompt, names[0]), await written(prompt, names[1])];
    const parted = a.findIndex((token, i) => token.id !== b[i]?.id);
    note.replaceChildren(...(parted < 0 ? ["they write the same"]
      : [`they part at token ${parted + 1}, `, code(a[parted].text), " and ", code(b[parted]?.text)]));
    byId("pair-texts").replaceChildren(draw(names[0], a, parted), draw(names[1], b, parted));
  } catch (error) {
    note.textContent = error.message;
  }
}

/** What a checkpoint writes, with the probability that it gave each token.
 * @param {number[]} prompt @param {string} checkpoint */
async function written(prompt, checkpoint) {
  const { seed, max_tokens, ...drawing } = settings.peek();
  const asked = { text: prompt, checkpoint, seed: seed ?? 1, max_tokens, ...drawing };
  const { tokens } = await post("inside/write", asked), text = tokens.map(({ id }) => id);
  const { places } = await post("inside/places", { text, prompt: prompt.length, checkpoint, ...drawing });
  return tokens.map((token, i) => ({ ...token, p: places[i]?.before })).slice(prompt.length);
}

function draw(name, tokens, parted) {
  return el("div", {}, el("h4", {}, title(name)), el("p", { class: "text small", dir: "auto" },
    ...tokens.map(({ text, p }, i) => {
      const { strength, said } = surprise(p), kind = i === parted ? "token chosen" : "token";
      return el("span", { class: kind, title: said, style: { "--strength": strength } }, text || "◌");
    })), el("p", { class: "faint" }, `${mean(tokens.map(({ p }) => bits(p))).toFixed(2)} bits per token, to itself`));
}
