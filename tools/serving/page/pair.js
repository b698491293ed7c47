// Two checkpoints, or two runs, write from one beginning with one seed: where they part, and how sure each was.

import { post } from "./api.js";
import { bits, byId, clicks, code, el, mean, tinted } from "./dom.js";
import { current, title } from "./loss.js";
import { effect } from "./reactive.js";
import { at, other, settings, text } from "./store.js";
import { surprise } from "./tokens.js";

const note = byId("pair-note");

export class Pair {
  constructor() {
    clicks(byId("both"), write);
    effect(() => {
      void [current.value, text.value];
      byId("pair").hidden = !other.value;
      byId("pair-texts").replaceChildren();
      note.textContent = "";
    });
  }
}

async function write() {
  const { seed, max_tokens, ...drawing } = settings.peek(), names = [current.peek(), other.peek()];
  const prompt = text.peek().tokens.slice(0, at.peek()).map(({ id }) => id), texts = [];
  note.textContent = prompt.length ? "writing …" : "Choose a token after the first.";
  if (!prompt.length) return;
  try {
    for (const checkpoint of names) {
      const asked = { text: prompt, checkpoint, seed: seed ?? 1, max_tokens, ...drawing };
      const { tokens } = await post("inside/write", asked), whole = tokens.map(({ id }) => id);
      const { places } = await post("inside/places", { text: whole, prompt: prompt.length, checkpoint, ...drawing });
      texts.push(tokens.map((token, i) => ({ ...token, p: places[i]?.before })).slice(prompt.length));
    }
  } catch (error) {
    note.textContent = error.message;
    return;
  }
  const [a, b] = texts, parted = a.findIndex((token, i) => token.id !== b[i]?.id);
  note.replaceChildren(`with the seed ${seed ?? 1}: `, ...(parted < 0 ? ["they write the same"]
    : [`they part at token ${parted + 1}, `, code(a[parted].text), " and ", code(b[parted]?.text)]));
  byId("pair-texts").replaceChildren(...texts.map((tokens, n) => el("div", {}, el("h4", {}, title(names[n])),
    el("p", { class: "text small", dir: "auto" }, ...tokens.map(({ text, p }, i) => {
      const { strength, said } = surprise(p), kind = i === parted ? "token chosen" : "token";
      return tinted(el("span", { class: kind, title: said }, text || "◌"), strength);
    })),
    el("p", { class: "faint" }, `${mean(tokens.map(({ p }) => bits(p))).toFixed(2)} bits per token, to itself`))));
}
