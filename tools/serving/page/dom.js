// Elements, and how tokens and numbers are written. Text reaches the page as text nodes alone, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** @returns {any} */
export const byId = (id) => document.getElementById(id);

/** `el("p", {class: "faint", onclick: f}, "text", child)`: props are attributes, but on… are listeners, and `style`
 * has properties. @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {{[name: string]: any}} props */
export const el = (tag, props = {}, ...children) => fill(document.createElement(tag), props, children);

/** @template {keyof SVGElementTagNameMap} K @param {K} tag @param {{[name: string]: any}} props */
export const svg = (tag, props = {}, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** @template {Element} E @param {E} element @param {{[name: string]: any}} props */
export function fill(element, { style = {}, ...props }, children) {
  for (const [name, value] of Object.entries(style)) /** @type {any} */ (element).style.setProperty(name, value);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

export const button = (props, ...children) => el("button", { type: "button", ...props }, ...children);

/** A button is off by `ariaDisabled`, which unlike `disabled` leaves the focus where it is. */
export function clicks(button, action) {
  button.addEventListener("click", () => button.ariaDisabled !== "true" && action());
}

/** Have a button play: call `next` at intervals, until that returns false or the button is pressed again.
 * @param {() => boolean} next @param {number} pause milliseconds @returns what stops it */
export function plays(button, next, pause) {
  const name = button.textContent;
  let timer = 0;
  function stop() {
    clearInterval(timer);
    timer = 0;
    button.textContent = name;
  }
  button.addEventListener("click", () => {
    if (timer) return stop();
    button.textContent = "Pause";
    timer = setInterval(() => next() || stop(), pause);
  });
  return stop;
}

/** What arrow keys do in an element: `move` gets the steps to the right and down. It may return false: nothing. */
export function arrows(element, move) {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  element.addEventListener("keydown", (event) => {
    if (event.key in steps && move(...steps[event.key], event.target) !== false) event.preventDefault();
  });
}

/** @param {[string, any][]} pairs those without a value are left out */
export function figures(pairs) {
  const known = pairs.filter(([, value]) => value);
  return known.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

/** Bars below each other. @param {number[]} shares of the whole width, from 0 to 1 */
export function bars(...shares) {
  return el("span", { class: "bars", "aria-hidden": "true" }, ...shares.map((share) =>
    el("span", { class: "bar", style: { width: `${(100 * share).toFixed(1)}%` } })));
}

/** A token whose spaces and line ends can be seen; one in the middle of a character has no text. */
export const visible = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "◌";

export const code = (text = "") => el("code", { dir: "auto" }, visible(text));

export function percent(p) {
  if (p == null) return "";
  if (p === 0) return "0";
  const value = 100 * p;
  if (value < 0.01) return "<0.01%";
  return `${value >= 99.95 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)}%`;
}

export const bits = (p) => -Math.log2(Math.max(p, 2 ** -126));

export const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format;

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** The n largest values, each with its index. @param {number[]} values @returns {[number, number][]} */
export const ranked = (values, n) => [...values.entries()].sort(([, a], [, b]) => b - a).slice(0, n);
