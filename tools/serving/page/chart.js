// A line chart: axes, lines or dots, a crosshair that tells the values of all curves below the pointer, zoom by
// dragging, and where it helps a logarithmic axis and smoothing.

import { button, el, mean, svg } from "./dom.js";
import { derived, effect, state } from "./reactive.js";

/** @typedef {[number, number]} Point x and y */
/** @typedef {{name: string, kind: "line" | "dots", points: Point[], colour: number, hollow?: boolean}} Series
 * points are in the order of x; hollow: its dots are rings */

const MARGIN = { left: 52, right: 20, top: 10, bottom: 26 };
const LEAST = 8; // pixels of a drag that zooms

/** Add a chart to an element. Those with the same `at`, the x below the pointer, and `range` move together. Return what
 * shows other series. @param {Element} into @param {{title: string, [name: string]: any}} look */
export function chart(into, look) {
  const { title, small = false, format = plain, tools = false, at = state(null), range = state(null) } = look;
  const height = small ? 150 : 300, unit = parseFloat(getComputedStyle(document.body).fontSize) / 16; // more at 4K
  const series = state(/** @type {Series[]} */ ([])), width = state(0), log = state(false), smoothing = state(0);
  const picture = svg("svg", { class: "chart", role: "img", "aria-label": title, height: height * unit });
  const told = el("p", { class: "faint told" });
  const reset = button({ onclick: () => { range.value = null; } }, "Whole range");
  into.append(el("figure", {}, el("figcaption", {}, title, el("span", { class: "chart-tools" }, reset,
    tools && el("label", {}, el("input", { type: "checkbox",
      onchange: ({ target }) => { log.value = target.checked; } }), " log"),
    tools && el("label", {}, "smooth ", el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0,
      oninput: ({ target }) => { smoothing.value = target.valueAsNumber; } })))), picture, told));
  const cross = svg("line", { class: "cross", y1: MARGIN.top, y2: height - MARGIN.bottom });
  const plot = derived(() => plotted(series.value, range.value,
    { width: width.value, height, log: log.value, smoothing: smoothing.value, format }));

  const place = (event) => (event.clientX - picture.getBoundingClientRect().left) / unit;
  let from = 0;
  picture.addEventListener("pointerdown", (event) => {
    from = place(event);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => { at.value = plot.peek()?.value(place(event)) ?? null; });
  picture.addEventListener("pointerleave", () => { at.value = null; });
  picture.addEventListener("pointerup", (event) => {
    const ends = [from, place(event)].sort((a, b) => a - b);
    if (plot.peek() && ends[1] - ends[0] >= LEAST) range.value = ends.map(plot.peek().value);
  });
  new ResizeObserver(() => { width.value = picture.clientWidth / unit; }).observe(picture);
  effect(() => picture.setAttribute("viewBox", `0 0 ${width.value || 1} ${height}`));
  effect(() => { reset.hidden = !range.value; });
  effect(() => picture.replaceChildren(...(plot.value?.marks ?? []), cross));
  effect(() => { // the values of all curves at the pointer, or their last
    const found = series.value.map((one) => ({ ...one, point: closest(one.points, at.value ?? Infinity) }));
    told.replaceChildren(...found.map(({ name, colour, hollow, point: [x, y] }) => el("span",
      { class: `value c${colour} ${hollow ? "hollow" : ""}` }, el("i"),
      `${name} ${format(y)}${at.value === null ? "" : ` at ${x.toLocaleString("en")}`}`)));
    cross.setAttribute("visibility", plot.value && at.value !== null ? "visible" : "hidden");
    if (!plot.value) return;
    const x = plot.value.x(closest(found.map(({ point }) => point), at.value ?? Infinity)[0]);
    for (const end of ["x1", "x2"]) cross.setAttribute(end, String(x));
  });
  return (/** @type {any[]} */ all) => { series.value = all.filter(({ points }) => points.length); };
}

/** The marks of a chart, and where what is; null: there is nothing to show. @param {Series[]} series
 * @param {number[] | null} range of x @param {{[name: string]: any}} look */
function plotted(series, range, look) {
  const { width, height, log, smoothing, format } = look;
  const xs = range ?? series.flatMap(({ points }) => [points[0][0], points.at(-1)[0]]);
  const x0 = Math.min(...xs), x1 = Math.max(...xs), inner = width - MARGIN.left - MARGIN.right;
  const inside = (points) => thinned(points.filter(([x]) => x >= x0 && x <= x1), width);
  const drawn = series.map((one) => ({ ...one, points: inside(one.points) })).filter(({ points }) => points.length);
  const ys = drawn.flatMap(({ points }) => points.map(([, y]) => y)).filter((y) => !log || y > 0);
  if (!width || !ys.length) return null;
  const low = Math.min(...ys), high = Math.max(...ys), along = log ? Math.log : Number;
  const levels = log ? decades(low, high) : steps(low, high, height > 200 ? 5 : 3);
  const y0 = levels[0], y1 = levels.at(-1), ends = { x1: MARGIN.left, x2: width - MARGIN.right };
  const share = (y) => (along(Math.max(y, y0)) - along(y0)) / (along(y1) - along(y0) || 1);
  const x = (value) => MARGIN.left + ((value - x0) / (x1 - x0 || 1)) * inner;
  const y = (value) => height - MARGIN.bottom - share(value) * (height - MARGIN.top - MARGIN.bottom);
  const path = (points) => `M${points.map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("L")}`;
  const curve = (/** @type {Series} */ { kind, points, colour, hollow }) => {
    const smooth = kind === "line" && smoothing > 0, look = `c${colour} ${hollow ? "hollow" : ""}`;
    const line = (raw, points) => svg("path", { class: `series ${kind} ${look} ${raw}`, d: path(points) });
    const dots = kind === "dots" ? points : [];
    return [line(smooth ? "raw" : "", points), smooth && line("", smoothed(points, smoothing)),
      ...dots.map(([a, b]) => svg("circle", { class: look, cx: x(a), cy: y(b), r: 3 }))].filter(Boolean);
  };
  const marks = [
    ...levels.flatMap((level) => [svg("line", { class: "grid-line", ...ends, y1: y(level), y2: y(level) }),
      svg("text", { x: MARGIN.left - 8, y: y(level) + 4, "text-anchor": "end" }, format(level))]),
    ...steps(x0, x1, width / 110).filter((time) => time >= x0 && time <= x1 && Number.isInteger(time)).map((time) =>
      svg("text", { x: x(time), y: height - 6, "text-anchor": "middle" }, time.toLocaleString("en"))),
    ...drawn.flatMap(curve),
  ];
  return { marks, x, value: (place) => x0 + ((place - MARGIN.left) / inner) * (x1 - x0) };
}

export function plain(value) {
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1);
  return Number(value.toPrecision(3)).toLocaleString("en");
}

/** A moving average, where `share` of each value is from before. @param {Point[]} points @returns {Point[]} */
export function smoothed(points, share) {
  let sum = 0, weight = 0;
  return points.map(([x, y]) => {
    sum = share * sum + y;
    weight = share * weight + 1;
    return [x, sum / weight];
  });
}

/** Of many points the mean of those that share a pixel. @param {Point[]} points @returns {Point[]} */
export function thinned(points, width) {
  const per = Math.ceil(points.length / width);
  return Array.from({ length: Math.ceil(points.length / per) }, (_, i) => {
    const part = points.slice(i * per, (i + 1) * per);
    return [part[part.length >> 1][0], mean(part.map(([, y]) => y))];
  });
}

/** The point whose x is nearest. @param {Point[]} points @param {number} x */
export function closest(points, x) {
  return x === Infinity ? points.at(-1) : points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
}

/** About n round numbers, of which the first is not above `low` and the last not below `high`. */
export function steps(low, high, n) {
  const rough = (high - low || Math.abs(high) || 1) / Math.max(1, n), unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.max(first + 1, Math.ceil(high / step - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** The same for a logarithmic axis: 1, 2 and 5 times powers of ten. */
export function decades(low, high) {
  const begin = Math.floor(Math.log10(low)), end = Math.ceil(Math.log10(high));
  const made = Array.from({ length: 3 * (end - begin + 1) }, (_, i) => (
    Number(([1, 2, 5][i % 3] * 10 ** (begin + Math.floor(i / 3))).toPrecision(6))));
  return made.slice(made.findLastIndex((tick) => tick <= low), made.findIndex((tick) => tick >= high) + 1);
}
