// Elements, and how tokens and numbers are written. Text reaches the page as text nodes alone, never as HTML.

// el("p", {class: "faint", onclick: f}, "text", child): names in props are attributes, but on… are listeners.
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

// A control with its label and, on hovering over it, what it does.
export function field(label, help, control) {
  (control.matches("span") ? control.firstChild : control).setAttribute("aria-label", label);
  return el("label", { class: "field", title: help }, el("span", {}, label), control);
}

export function select(options, onchange, props = {}) {
  const made = el("select", { ...props, onchange: () => onchange(made.value) });
  made.append(...options.map(([value, text]) => el("option", { value }, text)));
  return made;
}

// A sentence on what one sees, at the head of each view.
export function lead(title, text) {
  return el("div", { class: "lead" }, el("h2", {}, title), el("p", {}, text));
}

// A line for what is going on: `say(text)`, `say(text, "bad")`; `say("")` takes it away.
export function messages() {
  const line = el("p", { class: "message", role: "status", hidden: true });
  const say = (text, kind = "") => {
    line.textContent = text;
    line.className = `message ${kind}`;
    line.hidden = !text;
  };
  return [line, say];
}

// A token whose spaces and line ends can be seen; one in the middle of a character has no text.
export function visible(text) {
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "◌";
}

export function percent(p) {
  if (p == null) return "";
  if (p === 0) return "0";
  const value = 100 * p;
  if (value < 0.01) return "<0.01%";
  return `${value >= 99.95 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)}%`;
}

export function short(number) {
  const units = [[1e9, "B"], [1e6, "M"], [1e3, "k"]];
  const [size, unit] = units.find(([size]) => Math.abs(number) >= size) ?? [1, ""];
  const value = number / size;
  return unit && Math.abs(value) < 100 ? `${value.toFixed(1)}${unit}` : `${Math.round(value)}${unit}`;
}

export function debounced(action, wait) {
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...args), wait);
  };
}

// Make a textarea as high as its text.
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}
