// A line chart: axes, lines or dots, a crosshair that tells the values of all curves below the pointer, zoom by
// dragging, and where it helps a logarithmic axis and smoothing.

import { button, el, svg } from "./dom.js";
import { effect, state } from "./reactive.js";

/** @typedef {[number, number]} Point x and y */
/** @typedef {{name: string, kind: "line" | "dots", points: Point[], colour: number, run?: number}} Series
 * points are in the order of x; run: 0, or 1 for the one that is compared, whose curves are dashed */

const HEIGHT = { large: 300, small: 150 };
const MARGIN = { left: 52, right: 20, top: 10, bottom: 26 };
const LEAST = 8; // pixels of a drag that zooms

export class Chart {
  /** Charts with the same `at`, the x below the pointer, and `range` move together.
   * @param {{title: string, size?: "large" | "small", format?: (y: number) => string, tools?: boolean,
   * at?: import("./reactive.js").State<number | null>, range?: import("./reactive.js").State<Point | null>}} props */
  constructor({ title, size = "large", format = plain, tools = false, at = state(null), range = state(null) }) {
    this.height = HEIGHT[size];
    this.format = format;
    this.at = at;
    this.range = range;
    this.series = state(/** @type {Series[]} */ ([]));
    this.log = state(false);
    this.smoothing = state(0);
    this.width = state(0);
    this.picture = svg("svg", { class: "chart", role: "img", "aria-label": title });
    this.told = el("p", { class: "faint told" });
    this.reset = button("Whole range", "end the zoom (double click)", () => { this.range.value = null; });
    const log = el("input", { type: "checkbox", onchange: () => { this.log.value = log.checked; } });
    const smooth = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0,
      oninput: () => { this.smoothing.value = Number(smooth.value); } });
    this.element = el("figure", {}, el("figcaption", {}, title, el("span", { class: "chart-tools" }, this.reset,
      tools && el("label", {}, log, " log"), tools && el("label", {}, "smooth ", smooth))), this.picture, this.told);
    this.listen();
    effect(() => this.draw());
    effect(() => this.tell());
    new ResizeObserver(() => { this.width.value = this.picture.clientWidth; }).observe(this.picture);
  }

  listen() {
    const place = (/** @type {PointerEvent} */ event) => event.clientX - this.picture.getBoundingClientRect().left;
    this.picture.addEventListener("pointerdown", (event) => {
      this.from = place(event);
      this.picture.setPointerCapture(event.pointerId);
    });
    this.picture.addEventListener("pointermove", (event) => {
      if (this.scale) this.at.value = this.scale.value(place(event));
    });
    this.picture.addEventListener("pointerleave", () => { this.at.value = null; });
    this.picture.addEventListener("pointerup", (event) => {
      const ends = [this.from, place(event)].sort((a, b) => a - b);
      if (this.scale && ends[1] - ends[0] >= LEAST) this.range.value = /** @type {Point} */ (ends.map(this.scale.value));
    });
    this.picture.addEventListener("dblclick", () => { this.range.value = null; });
  }

  /** @param {Series[]} series */
  show(series) {
    this.series.value = series.filter(({ points }) => points.length);
  }

  draw() {
    const width = this.width.value, { height, format } = this, all = this.series.value, log = this.log.value;
    this.picture.replaceChildren();
    this.reset.hidden = !this.range.value;
    if (!width || !all.length) return;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.setAttribute("height", String(height));
    const ends = all.flatMap(({ points }) => [points[0][0], points[points.length - 1][0]]);
    const [x0, x1] = this.range.value ?? [Math.min(...ends), Math.max(...ends)];
    const drawn = all.map((one) => ({ ...one, points: thinned(within(one.points, x0, x1), width) }))
      .filter(({ points }) => points.length);
    const ys = drawn.flatMap(({ points }) => points.map(([, y]) => y)).filter((y) => !log || y > 0);
    const [least, most] = [Math.min(...ys), Math.max(...ys)], count = height > 200 ? 5 : 3;
    const ticks = log ? decades(least, most) : steps(least, most, count), y0 = ticks[0], y1 = ticks[ticks.length - 1];
    const along = log ? (/** @type {number} */ y) => Math.log(Math.max(y, y0)) : (/** @type {number} */ y) => y;
    const inner = width - MARGIN.left - MARGIN.right;
    const x = (/** @type {number} */ value) => MARGIN.left + ((value - x0) / (x1 - x0 || 1)) * inner;
    const y = (/** @type {number} */ value) => height - MARGIN.bottom
      - ((along(value) - along(y0)) / (along(y1) - along(y0) || 1)) * (height - MARGIN.top - MARGIN.bottom);
    this.scale = { x, value: (/** @type {number} */ place) => x0 + ((place - MARGIN.left) / inner) * (x1 - x0) };
    for (const tick of ticks) {
      this.picture.append(svg("line", { class: "grid-line", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
        svg("text", { x: MARGIN.left - 8, y: y(tick) + 4, "text-anchor": "end" }, format(tick)));
    }
    for (const tick of steps(x0, x1, width / 110).filter((tick) => tick >= x0 && tick <= x1)) {
      this.picture.append(svg("text", { x: x(tick), y: height - 6, "text-anchor": "middle" }, tick.toLocaleString("en")));
    }
    const path = (/** @type {Point[]} */ points) => `M${points.map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("L")}`;
    for (const { kind, points, colour, run } of drawn) {
      const smooth = kind === "line" && this.smoothing.value > 0, look = `c${colour} ${run ? "second" : ""}`;
      this.picture.append(svg("path", { class: `series ${kind} ${look} ${smooth ? "raw" : ""}`, d: path(points) }));
      if (smooth) this.picture.append(svg("path", { class: `series ${kind} ${look}`, d: path(smoothed(points, this.smoothing.value)) }));
      if (kind === "dots") this.picture.append(...points.map(([a, b]) => svg("circle", { class: look, cx: x(a), cy: y(b), r: 3 })));
    }
    this.cross = svg("line", { class: "cross", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
    this.picture.append(this.cross);
  }

  /** Tell the values of all curves at the crosshair, or their last. */
  tell() {
    const at = this.at.value, all = this.series.value;
    void [this.width.value, this.range.value];
    this.cross?.setAttribute("visibility", at === null ? "hidden" : "visible");
    const found = all.map((one) => ({ ...one, point: at === null ? one.points[one.points.length - 1] : closest(one.points, at) }));
    if (at !== null && found.length && this.scale) {
      const best = found.reduce((a, b) => (Math.abs(b.point[0] - at) < Math.abs(a.point[0] - at) ? b : a)).point[0];
      for (const end of ["x1", "x2"]) this.cross.setAttribute(end, String(this.scale.x(best)));
    }
    this.told.replaceChildren(...found.map(({ name, colour, run, point }) => el("span", { class: `value c${colour} ${run ? "second" : ""}` },
      `${name} ${this.format(point[1])}${at === null ? "" : ` at ${point[0].toLocaleString("en")}`}`)));
  }
}

/** @param {number} value */
export function plain(value) {
  return value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : Number(value.toPrecision(3)).toLocaleString("en");
}

/** @param {Point[]} points @param {number} x0 @param {number} x1 */
function within(points, x0, x1) {
  return points.filter(([x]) => x >= x0 && x <= x1);
}

/** A moving average, where `share` of each value is from before. @param {Point[]} points @param {number} share */
export function smoothed(points, share) {
  let sum = 0, weight = 0;
  return points.map(([x, y]) => {
    sum = share * sum + y;
    weight = share * weight + 1;
    return /** @type {Point} */ ([x, sum / weight]);
  });
}

/** Of many points the mean of those that share a pixel. @param {Point[]} points @param {number} width */
export function thinned(points, width) {
  if (points.length <= 2 * width) return points;
  const per = Math.ceil(points.length / width), made = [];
  for (let i = 0; i < points.length; i += per) {
    const part = points.slice(i, i + per);
    made.push(/** @type {Point} */ ([part[part.length >> 1][0], part.reduce((sum, [, y]) => sum + y, 0) / part.length]));
  }
  return made;
}

/** The point whose x is nearest: by halving, as points are in order. @param {Point[]} points @param {number} x */
export function closest(points, x) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle;
    else high = middle;
  }
  return Math.abs(points[low][0] - x) < Math.abs(points[high][0] - x) ? points[low] : points[high];
}

/** About n round numbers, of which the first is not above `low` and the last not below `high`.
 * @param {number} low @param {number} high @param {number} n */
export function steps(low, high, n) {
  const rough = (high - low || Math.abs(high) || 1) / Math.max(1, n), unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.max(first + 1, Math.ceil(high / step - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Round numbers for a logarithmic axis: 1, 2 and 5 times powers of ten. @param {number} low @param {number} high */
export function decades(low, high) {
  const made = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of [1, 2, 5]) made.push(Number((factor * 10 ** power).toPrecision(6)));
  }
  const first = made.findLastIndex((tick) => tick <= low), last = made.findIndex((tick) => tick >= high);
  return made.slice(Math.max(0, first), last < 0 ? undefined : last + 1);
}
