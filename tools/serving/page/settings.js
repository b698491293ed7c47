// How tokens are drawn: temperature, top-p, top-k, how many, and the seed. A value that is out of range is marked.

import { byId } from "./dom.js";
import { effect } from "./reactive.js";
import { DEFAULTS, model, settings } from "./store.js";

const inputs = [...byId("settings").querySelectorAll("input")];

for (const input of inputs) {
  input.addEventListener("input", () => {
    mark(input);
    if (!input.checkValidity()) return;
    const value = input.value === "" ? DEFAULTS[input.name] : input.valueAsNumber;
    settings.value = { ...settings.peek(), [input.name]: value };
  });
}

effect(() => {
  if (!model.value) return;
  const most = { top_k: model.value.vocab_size, max_tokens: model.value.limits.max_tokens };
  for (const input of inputs) {
    if (input.name in most) input.max = most[input.name];
    mark(input);
  }
});

effect(() => {
  for (const input of inputs) {
    const value = settings.value[input.name];
    if (document.activeElement !== input || input.type === "range") input.value = value ?? "";
    if (input.type === "range") input.nextElementSibling.textContent = value.toFixed(2);
    mark(input);
  }
});

function mark(input) {
  const fits = input.checkValidity();
  input.setAttribute("aria-invalid", String(!fits));
  if (input.type === "number") input.nextElementSibling.textContent = fits ? "" : limits(input);
}

function limits({ min, max }) {
  return `${min} to ${Number(max).toLocaleString("en")}`;
}

/** Focus the first field that cannot be used, and return what is wrong with it. */
export function wrong() {
  const found = inputs.find((input) => !input.checkValidity());
  found?.focus();
  return found ? `${found.getAttribute("aria-label")}: expected ${limits(found)}.` : "";
}
