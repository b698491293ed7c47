// A triangle of attention weights as an image: row t is the token that reads, column s the one it reads.

import { el } from "./dom.js";

export function canvas(props = {}) {
  return el("canvas", props);
}

// `weight(t, s)` is from 0 to 1. The square root of it is shown, so that small weights can be seen.
export function paint(element, T, weight) {
  element.width = element.height = T;
  const context = element.getContext("2d");
  const image = context.createImageData(T, T), [red, green, blue] = colour(element, "--accent");
  for (let t = 0; t < T; t += 1) {
    for (let s = 0; s <= t; s += 1) {
      image.data.set([red, green, blue, Math.round(255 * Math.sqrt(weight(t, s)))], 4 * (t * T + s));
    }
  }
  context.putImageData(image, 0, 0);
}

// A colour of style.css as numbers.
function colour(element, name) {
  const hex = getComputedStyle(element).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

// Which cell of a painted canvas an event is at: [t, s].
export function cell(element, event, T) {
  const box = element.getBoundingClientRect();
  const at = (value, size) => Math.max(0, Math.min(T - 1, Math.floor((value / size) * T)));
  return [at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)];
}
