// Elements, and how tokens and numbers are written. Text reaches the page as text nodes alone, never as HTML.

/** @typedef {{[name: string]: any}} Props names are attributes, but on… are listeners */

/** `el("p", {class: "faint", onclick: f}, "text", child)`
 * @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {Props} props @param {any[]} children */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** @template {keyof SVGElementTagNameMap} K @param {K} tag @param {Props} props @param {any[]} children */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

/** @template {Element} E @param {E} element @param {Props} props @param {any[]} children */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

/** @param {string} text @param {string} title @param {() => void} onclick @param {Props} props */
export function button(text, title, onclick, props = {}) {
  const made = el("button", { type: "button", title, ...props }, text);
  made.addEventListener("click", () => made.getAttribute("aria-disabled") !== "true" && onclick());
  return made;
}

/** Unlike `disabled`, this leaves the focus where it is. @param {Element} element @param {boolean} yes */
export function able(element, yes) {
  element.setAttribute("aria-disabled", String(!yes));
}

/** A control with its label, and what it does as a tooltip.
 * @param {string} label @param {string} help @param {Element} control @param {any[]} more */
export function field(label, help, control, ...more) {
  control.setAttribute("aria-label", label);
  return el("label", { class: "field", title: help }, el("span", {}, label), el("span", { class: "control" }, control, ...more));
}

/** @param {[any, string][]} options @param {(value: string) => void} onchange @param {Props} props */
export function select(options, onchange, props = {}) {
  const made = el("select", { ...props, onchange: () => onchange(made.value) });
  offer(made, options);
  return made;
}

/** @param {HTMLSelectElement} element @param {[any, string][]} options */
export function offer(element, options) {
  const { value } = element;
  element.replaceChildren(...options.map(([name, text]) => el("option", { value: name }, text)));
  if (options.some(([name]) => String(name) === value)) element.value = value;
}

/** @param {string} title @param {any[]} children */
export function card(title, ...children) {
  return el("div", { class: "card" }, el("h3", {}, title), ...children);
}

/** @param {[string, any][]} pairs those without a value are left out */
export function figures(pairs) {
  return pairs.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

/** @param {number} share of the whole width, from 0 to 1 */
export function bar(share, kind = "") {
  const made = el("span", { class: `bar ${kind}` });
  made.style.width = `${(100 * share).toFixed(1)}%`;
  return made;
}

/** A token whose spaces and line ends can be seen; one in the middle of a character has no text.
 * @param {string} text */
export function visible(text) {
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "◌";
}

/** @param {string} text */
export function code(text) {
  return el("code", { dir: "auto" }, visible(text));
}

/** @param {number | null | undefined} p */
export function percent(p) {
  if (p == null) return "";
  if (p === 0) return "0";
  const value = 100 * p;
  if (value < 0.01) return "<0.01%";
  return `${value >= 99.95 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)}%`;
}

/** @param {number | null | undefined} p */
export function bits(p) {
  return p == null ? "" : `${(-Math.log2(Math.max(p, 2 ** -126))).toFixed(2)} bits`;
}

/** @param {number} number */
export function short(number) {
  const [size, unit] = [[1e9, "B"], [1e6, "M"], [1e3, "k"]].find(([size]) => Math.abs(number) >= Number(size)) ?? [1, ""];
  const value = number / Number(size);
  return unit && Math.abs(value) < 100 ? `${value.toFixed(1)}${unit}` : `${Math.round(value)}${unit}`;
}

/** @param {number[]} values */
export function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Save a file that the page made. @param {string} name @param {BlobPart} content @param {string} type */
export function download(name, content, type) {
  const link = el("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
