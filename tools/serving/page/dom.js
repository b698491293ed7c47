// Elements, and how tokens and numbers are written. Text reaches the page as text nodes alone, never as HTML.

/** @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}

/** `el("p", {class: "faint", onclick: f}, "text", child)`: props are attributes, but on… are listeners.
 * @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {{[name: string]: any}} props */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** @template {keyof SVGElementTagNameMap} K @param {K} tag @param {{[name: string]: any}} props */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

/** @template {Element} E @param {E} element */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

/** A button is off by `able`, which unlike `disabled` leaves the focus where it is. */
export function clicks(button, action) {
  button.addEventListener("click", () => button.getAttribute("aria-disabled") !== "true" && action());
}

export function able(button, yes) {
  button.setAttribute("aria-disabled", String(!yes));
}

/** @param {any[][]} options value and text of each */
export function offer(select, options) {
  select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
}

/** @param {string[]} heads @param {any[]} rows */
export function table(kind, heads, rows) {
  return el("table", { class: kind },
    el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows));
}

/** @param {[string, any][]} pairs those without a value are left out */
export function figures(pairs) {
  const known = pairs.filter(([, value]) => value);
  return known.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

/** @param {number} share of the whole width, from 0 to 1 */
export function bar(share, kind = "") {
  const made = el("span", { class: `bar ${kind}` });
  made.style.width = `${(100 * share).toFixed(1)}%`;
  return made;
}

export function bars(...shares) {
  return el("span", { class: "bars", "aria-hidden": "true" }, ...shares);
}

/** An element that is tinted, as tokens are. @template {HTMLElement} E @param {E} element @param {number} strength */
export function tinted(element, strength) {
  element.style.setProperty("--strength", strength.toFixed(3));
  return element;
}

/** A token whose spaces and line ends can be seen; one in the middle of a character has no text. */
export function visible(text) {
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "◌";
}

export function code(text = "") {
  return el("code", { dir: "auto" }, visible(text));
}

export function percent(p) {
  if (p == null) return "";
  if (p === 0) return "0";
  const value = 100 * p;
  if (value < 0.01) return "<0.01%";
  return `${value >= 99.95 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)}%`;
}

export function bits(p) {
  return -Math.log2(Math.max(p, 2 ** -126));
}

export function short(number) {
  const units = [[1e9, "B"], [1e6, "M"], [1e3, "k"]];
  const [size, unit] = units.find(([size]) => Math.abs(number) >= Number(size)) ?? [1, ""];
  const value = number / Number(size);
  return unit && Math.abs(value) < 100 ? `${value.toFixed(1)}${unit}` : `${Math.round(value)}${unit}`;
}

/** @param {number[]} values */
export function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
