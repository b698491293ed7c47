// How tokens are drawn: temperature, top-p, top-k, how many, and the seed. style.css marks what is out of range.

import { byId } from "./dom.js";
import { effect } from "./reactive.js";
import { DEFAULTS, model, settings, view } from "./store.js";

const inputs = [...byId("settings").querySelectorAll("input")];
const limits = ({ min, max }) => `${min} to ${Number(max).toLocaleString("en")}`;

for (const input of inputs) {
  input.addEventListener("input", () => {
    const value = input.value === "" ? DEFAULTS[input.name] : input.valueAsNumber;
    if (input.checkValidity()) settings.value = { ...settings.peek(), [input.name]: value };
  });
}

effect(() => {
  const most = { top_k: model.value?.vocab_size, max_tokens: model.value?.limits.max_tokens };
  const { max_tokens } = settings.value; // usually 100, and the server may allow fewer
  if (max_tokens > most.max_tokens) settings.value = { ...settings.value, max_tokens: most.max_tokens };
  for (const input of inputs) {
    const value = settings.value[input.name], range = input.type === "range";
    input.max = most[input.name] ?? input.max;
    if (document.activeElement !== input || range) input.value = value ?? "";
    input.nextElementSibling.textContent = range ? value.toFixed(2) : limits(input);
  }
});

effect(() => { byId("settings").open = view.value !== "chat"; });

/** Return whether all fields can be used; if not, show the first that cannot. */
export function valid() {
  if (inputs.every((input) => input.checkValidity())) return true;
  if (view.peek() !== "chat") view.value = "write"; // they are there
  byId("settings").open = true;
  return inputs.every((input) => input.reportValidity());
}
