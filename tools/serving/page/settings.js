// How tokens are drawn: temperature, top-k, top-p, how many, and the seed.

import { el, field } from "./dom.js";

const HELP = {
  temperature: "Below 1 the likely tokens become likelier still; above 1 they come closer to the others. At 0 the "
    + "likeliest is always taken.",
  top_k: "Draw from the k likeliest tokens alone. Empty: from all.",
  top_p: "Draw from the fewest tokens whose probabilities add up to p. At 1: from all.",
  length: "How many tokens are written at a time.",
  seed: "The same seed and settings write the same text. Empty: another one each time.",
};

export class Settings {
  constructor(model, changed) {
    const number = (props) => el("input", { type: "number", inputmode: "numeric", ...props, oninput: changed });
    this.temperature = slider({ min: 0, max: 2, step: 0.05, value: 0.8 }, changed);
    this.topP = slider({ min: 0.05, max: 1, step: 0.05, value: 1 }, changed);
    this.topK = number({ min: 1, max: model.vocab_size, placeholder: "all" });
    this.length = number({ min: 1, max: model.limits.max_tokens, value: 100 });
    this.fixed = number({ min: 0, max: 2 ** 32 - 1, placeholder: "random" });
    this.element = el("div", { class: "settings", role: "group", "aria-label": "how tokens are drawn" },
      field("Temperature", HELP.temperature, this.temperature),
      field("Top-p", HELP.top_p, this.topP),
      field("Top-k", HELP.top_k, this.topK),
      field("Tokens", HELP.length, this.length),
      field("Seed", HELP.seed, this.fixed));
  }

  values() {
    const topP = Number(this.topP.firstChild.value);
    return {
      temperature: Number(this.temperature.firstChild.value),
      top_k: whole(this.topK),
      top_p: topP < 1 ? topP : null,
      max_tokens: whole(this.length) ?? 100,
    };
  }

  // The seed for the next text: the reader's, or any.
  seed() {
    return whole(this.fixed) ?? crypto.getRandomValues(new Uint32Array(1))[0];
  }

  // With the same seed a text would be the same again.
  nextSeed() {
    if (whole(this.fixed) != null) this.fixed.value = (whole(this.fixed) + 1) % 2 ** 32;
  }
}

function slider(props, changed) {
  const shown = el("output", {}, Number(props.value).toFixed(2));
  const range = el("input", { type: "range", ...props, oninput: () => {
    shown.textContent = Number(range.value).toFixed(2);
    changed();
  } });
  return el("span", { class: "slider" }, range, shown);
}

// The number in a field, within its limits; null if it is empty.
function whole(input) {
  if (input.value.trim() === "" || !Number.isFinite(input.valueAsNumber)) return null;
  return Math.round(Math.min(Number(input.max), Math.max(Number(input.min), input.valueAsNumber)));
}
