// How tokens are drawn: temperature, top-p, top-k, how many, and the seed. A value that is out of range is marked.

import { el, field } from "./dom.js";
import { effect } from "./reactive.js";
import { model, settings } from "./store.js";

const HELP = {
  temperature: "Below 1 the likely tokens become likelier still; above 1 they come closer to the others. At 0 the "
    + "likeliest is always taken.",
  top_k: "Draw from the k likeliest tokens alone. Empty: from all.",
  top_p: "Draw from the fewest tokens whose probabilities add up to p. At 1: from all.",
  max_tokens: "How many tokens are written at a time.",
  seed: "The same seed and settings write the same text. Empty: another one each time.",
};

export class Settings {
  constructor() {
    const most = () => ({ top_k: model.value?.vocab_size, max_tokens: model.value?.limits.max_tokens, seed: 2 ** 32 - 1 });
    this.numbers = {
      top_k: number("top_k", 1, "all"), max_tokens: number("max_tokens", 1, "100"), seed: number("seed", 0, "random"),
    };
    this.element = el("div", { class: "card settings", role: "group", "aria-label": "how tokens are drawn" },
      slider("temperature", "Temperature", { min: 0, max: 2, step: 0.05 }),
      slider("top_p", "Top-p", { min: 0.05, max: 1, step: 0.05 }),
      ...[["top_k", "Top-k"], ["max_tokens", "Tokens"], ["seed", "Seed"]].map(([name, label]) => {
        const { input, wrong } = this.numbers[name];
        return field(label, HELP[name], input, wrong);
      }));
    effect(() => {
      const limits = most();
      for (const [name, { input }] of Object.entries(this.numbers)) {
        if (limits[name] != null) input.max = String(limits[name]);
        mark(this.numbers[name]);
      }
    });
  }

  /** Focus the first field that cannot be used, and return what is wrong with it. */
  wrong() {
    const found = Object.values(this.numbers).find(({ input }) => !input.checkValidity());
    found?.input.focus();
    return found ? `${found.input.getAttribute("aria-label")}: expected ${limits(found.input)}.` : "";
  }
}

/** @param {string} name @param {number} min @param {string} placeholder */
function number(name, min, placeholder) {
  const id = `wrong-${name}`, wrong = el("span", { class: "wrong", id });
  const input = el("input", { type: "number", inputmode: "numeric", min, step: 1, placeholder, "aria-describedby": id });
  const made = { input, wrong };
  input.addEventListener("input", () => {
    mark(made);
    if (!input.checkValidity()) return;
    const usual = name === "max_tokens" ? Number(placeholder) : null;
    settings.value = { ...settings.peek(), [name]: input.value === "" ? usual : input.valueAsNumber };
  });
  effect(() => {
    const value = settings.value[name];
    if (document.activeElement !== input) input.value = value ?? "";
    mark(made);
  });
  return made;
}

/** @param {{input: HTMLInputElement, wrong: HTMLElement}} field */
function mark({ input, wrong }) {
  const fits = input.checkValidity();
  input.setAttribute("aria-invalid", String(!fits));
  wrong.textContent = fits ? "" : limits(input);
}

/** @param {HTMLInputElement} input */
function limits({ min, max }) {
  return `${min} to ${Number(max).toLocaleString("en")}`;
}

/** @param {"temperature" | "top_p"} name @param {string} label @param {object} props */
function slider(name, label, props) {
  const range = el("input", { type: "range", ...props }), shown = el("output", {});
  range.addEventListener("input", () => { settings.value = { ...settings.peek(), [name]: Number(range.value) }; });
  effect(() => {
    range.value = String(settings.value[name]);
    shown.textContent = settings.value[name].toFixed(2);
  });
  return field(label, HELP[name], range, shown);
}
