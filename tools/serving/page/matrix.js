// Weights and vectors as images of one pixel for each number, which style.css makes larger.

import { el } from "./dom.js";

/** @param {import("./dom.js").Props} props */
export function canvas(props = {}) {
  return el("canvas", props);
}

/** A triangle: row t is the token that reads, column s the one it reads. `weight(t, s)` is from 0 to 1; its square
 * root is shown, so that small weights can be seen.
 * @param {HTMLCanvasElement} element @param {number} T @param {(t: number, s: number) => number} weight */
export function paint(element, T, weight) {
  const { image, done } = pixels(element, T, T), accent = colour(element, "--accent");
  for (let t = 0; t < T; t += 1) {
    for (let s = 0; s <= t; s += 1) image.set([...accent, Math.round(255 * Math.sqrt(weight(t, s)))], 4 * (t * T + s));
  }
  done();
}

/** A row of numbers, of which `most` has the full colour. @param {HTMLCanvasElement} element @param {number[]} values
 * @param {number} most */
export function strip(element, values, most) {
  const { image, done } = pixels(element, values.length, 1);
  const above = colour(element, "--accent"), below = colour(element, "--bad");
  values.forEach((x, i) => image.set([...(x < 0 ? below : above), Math.round((255 * Math.abs(x)) / (most || 1))], 4 * i));
  done();
}

/** @param {HTMLCanvasElement} element @param {number} width @param {number} height */
function pixels(element, width, height) {
  element.width = width;
  element.height = height;
  const context = element.getContext("2d"), image = context.createImageData(width, height);
  return { image: image.data, done: () => context.putImageData(image, 0, 0) };
}

/** A colour of style.css as numbers. @param {Element} element @param {string} name */
function colour(element, name) {
  const hex = getComputedStyle(element).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

/** Which cell of a painted triangle an event is at: [t, s].
 * @param {HTMLElement} element @param {MouseEvent} event @param {number} T @returns {[number, number]} */
export function cellAt(element, event, T) {
  const box = element.getBoundingClientRect();
  const place = (/** @type {number} */ value, /** @type {number} */ size) => Math.max(0, Math.min(T - 1, Math.floor((value / size) * T)));
  return [place(event.clientY - box.top, box.height), place(event.clientX - box.left, box.width)];
}

/** Lay an element over a cell. @param {HTMLElement} element @param {number} T @param {number} t @param {number} s */
export function plotted(element, T, t, s) {
  Object.assign(element.style, { top: `${(100 * t) / T}%`, left: `${(100 * s) / T}%`, width: `${100 / T}%`, height: `${100 / T}%` });
}
