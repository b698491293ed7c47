// Saves files: the text with all that is known of it as JSON, and the view as a picture.

import { SVG, el, fill, svg } from "./dom.js";
import { likelihoods } from "./looked.js";
import { model, settings, text, view } from "./store.js";

// What a picture leaves out, and how a chart looks.
const LEFT_OUT = ".tools, .settings, .chart-tools, .field:has(select), textarea, input, #replay";
const LOOK = ["fill", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "font-size"];
const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });

export function saveText() {
  const { name, version } = model.peek(), { tokens, from, by, drawn } = text.peek(), known = likelihoods();
  const content = { model: name, checkpoint: by ?? version, prompt_tokens: from, ...(drawn ?? settings.peek()),
    // Of what is not known the logarithm is NaN, which JSON writes as null.
    tokens: tokens.map(({ id, text, probability }, i) => ({ id, text, logprob: Math.log(probability ?? known[i]) })) };
  save(`${name}.json`, "application/json", JSON.stringify(content, null, 1));
}

/** Save the view as an SVG that needs nothing else: its boxes, words and pictures where they stand on the page. */
export function saveView() {
  const main = document.querySelector("main"), { x, y, width, height } = main.getBoundingClientRect();
  const inert = document.implementation.createDocument(SVG, "svg"); // in which no image is loaded
  const picture = fill(inert.documentElement, { width, height, viewBox: `${x} ${y} ${width} ${height}` },
    [svg("rect", { x, y, width, height, ...paint("fill", getComputedStyle(document.body).backgroundColor) })]);
  for (const part of main.querySelectorAll(":scope > [data-view]")) draw(part, picture);
  save(`${view.peek()}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(picture));
}

/** @param {Node} node @param {Element} into */
function draw(node, into) {
  if (node instanceof Text) into.append(...words(node));
  if (!(node instanceof Element) || !node.checkVisibility() || node.matches(LEFT_OUT)) return;
  const look = getComputedStyle(node), { x, y, width, height } = node.getBoundingClientRect();
  if (node instanceof SVGSVGElement) return into.append(fill(copied(node), { x, y, width, height }, []));
  const [, frame, thickness] = look.boxShadow.match(/^(.+) 0px 0px 0px ([\d.]+)px$/) ?? [];
  const line = frame ?? (look.borderTopStyle === "solid" ? look.borderTopColor : "transparent");
  for (const { x, y, width, height } of node.getClientRects()) {
    into.append(svg("rect", { x, y, width, height, rx: parseFloat(look.borderRadius), "stroke-width": thickness,
      ...paint("fill", look.backgroundColor), ...paint("stroke", line) }));
  }
  if (node instanceof HTMLCanvasElement) {
    const image = svg("image", { x, y, width, height, preserveAspectRatio: "none", "image-rendering": "pixelated" });
    into.append(image);
    image.setAttribute("href", node.toDataURL());
  }
  const inside = look.overflowX === "visible" ? into : svg("svg", { x, y, width, height,
    viewBox: `${x} ${y} ${width} ${height}` }); // which cuts off what is scrolled away
  if (inside !== into) into.append(inside);
  for (const child of node.childNodes) draw(child, inside);
}

/** @param {Text} node */
function words(node) {
  const look = getComputedStyle(node.parentElement), range = document.createRange();
  return [...node.data.matchAll(/\S+/g)].map(({ 0: word, index }) => {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const { x, y, height } = range.getBoundingClientRect();
    return svg("text", { x, y: y + 0.8 * height, ...paint("fill", look.color), "font-family": look.fontFamily,
      "font-size": look.fontSize, "font-weight": look.fontWeight, "text-decoration": look.textDecorationLine }, word);
  });
}

/** A chart, whose look comes from style.css, with that look in it. @param {SVGSVGElement} chart */
function copied(chart) {
  const copy = /** @type {SVGSVGElement} */ (chart.cloneNode(true)), parts = chart.querySelectorAll("*");
  for (const [i, part] of copy.querySelectorAll("*").entries()) {
    for (const name of LOOK) part.setAttribute(name, getComputedStyle(parts[i]).getPropertyValue(name));
  }
  return copy;
}

/** A colour in the form that all programs know. @param {"fill" | "stroke"} name @param {string} colour */
function paint(name, colour) {
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = colour;
  pixel.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = pixel.getImageData(0, 0, 1, 1).data;
  return alpha ? { [name]: `rgb(${red},${green},${blue})`, [`${name}-opacity`]: alpha / 255 } : { [name]: "none" };
}

/** @param {string} name @param {string} type @param {string} content */
function save(name, type, content) {
  const href = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}
