// A line chart: axes, lines or dots, a crosshair that tells the values of all curves below the pointer, zoom by
// dragging, and where it helps a logarithmic axis and smoothing.

import { clicks, el, svg } from "./dom.js";
import { effect, state } from "./reactive.js";

/** @typedef {[number, number]} Point x and y */
/** @typedef {{name: string, kind: "line" | "dots", points: Point[], colour: number, run?: number}} Series
 * points are in the order of x; run: 0, or 1 for the one that is compared, whose curves are dashed */

const MARGIN = { left: 52, right: 20, top: 10, bottom: 26 };
const LEAST = 8; // pixels of a drag that zooms

export class Chart {
  /** Charts with the same `at`, the x below the pointer, and `range` move together. */
  constructor({ title, small = false, format = plain, tools = false, at = state(null), range = state(null) }) {
    this.format = format;
    this.at = at;
    this.range = range;
    this.height = small ? 150 : 300;
    this.series = state([]);
    this.width = state(0);
    this.picture = svg("svg", { class: "chart", role: "img", "aria-label": title });
    this.told = el("p", { class: "faint told" });
    this.reset = el("button", { type: "button", title: "end the zoom (double click)" }, "Whole range");
    clicks(this.reset, () => { range.value = null; });
    this.log = state(false);
    this.smoothing = state(0);
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
    const place = (event) => event.clientX - this.picture.getBoundingClientRect().left;
    let from = 0;
    const on = {
      pointerdown: (event) => {
        from = place(event);
        this.picture.setPointerCapture(event.pointerId);
      },
      pointermove: (event) => { this.at.value = this.scale.value(place(event)); },
      pointerleave: () => { this.at.value = null; },
      pointerup: (event) => {
        const ends = [from, place(event)].sort((a, b) => a - b);
        if (ends[1] - ends[0] >= LEAST) this.range.value = ends.map(this.scale.value);
      },
      dblclick: () => { this.range.value = null; },
    };
    for (const [name, action] of Object.entries(on)) {
      this.picture.addEventListener(name, (event) => this.scale && action(event));
    }
  }

  /** @param {any[]} series of `Series` */
  show(series) {
    this.series.value = series.filter(({ points }) => points.length);
  }

  draw() {
    const width = this.width.value, { height, picture } = this, all = this.series.value, log = this.log.value;
    picture.replaceChildren();
    this.reset.hidden = !this.range.value;
    if (!width || !all.length) return;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", String(height));
    const ends = all.flatMap(({ points }) => [points[0][0], points[points.length - 1][0]]);
    const [x0, x1] = this.range.value ?? [Math.min(...ends), Math.max(...ends)];
    const drawn = all.map((one) => ({ ...one, points: thinned(one.points.filter(([x]) => x >= x0 && x <= x1), width) }))
      .filter(({ points }) => points.length);
    const ys = drawn.flatMap(({ points }) => points.map(([, y]) => y)).filter((y) => !log || y > 0);
    if (!ys.length) return;
    const [least, most] = [Math.min(...ys), Math.max(...ys)];
    const ticks = log ? decades(least, most) : steps(least, most, height > 200 ? 5 : 3);
    const along = log ? Math.log : Number;
    const y0 = ticks[0], y1 = ticks[ticks.length - 1], inner = width - MARGIN.left - MARGIN.right;
    const x = (value) => MARGIN.left + ((value - x0) / (x1 - x0 || 1)) * inner;
    const share = (value) => (along(Math.max(value, y0)) - along(y0)) / (along(y1) - along(y0) || 1);
    const y = (value) => height - MARGIN.bottom - share(value) * (height - MARGIN.top - MARGIN.bottom);
    this.scale = { x, value: (place) => x0 + ((place - MARGIN.left) / inner) * (x1 - x0) };
    for (const tick of ticks) {
      const ends = { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) };
      picture.append(svg("line", { class: "grid-line", ...ends }),
        svg("text", { x: MARGIN.left - 8, y: y(tick) + 4, "text-anchor": "end" }, this.format(tick)));
    }
    for (const tick of steps(x0, x1, width / 110).filter((tick) => tick >= x0 && tick <= x1)) {
      picture.append(svg("text", { x: x(tick), y: height - 6, "text-anchor": "middle" }, tick.toLocaleString("en")));
    }
    const path = (points) => `M${points.map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("L")}`;
    for (const { kind, points, colour, run } of drawn) {
      const smooth = kind === "line" ? this.smoothing.value : 0, look = `c${colour} ${run ? "second" : ""}`;
      picture.append(svg("path", { class: `series ${kind} ${look} ${smooth ? "raw" : ""}`, d: path(points) }));
      if (smooth) picture.append(svg("path", { class: `series ${kind} ${look}`, d: path(smoothed(points, smooth)) }));
      const dots = kind === "dots" ? points : [];
      picture.append(...dots.map(([a, b]) => svg("circle", { class: look, cx: x(a), cy: y(b), r: 3 })));
    }
    this.cross = svg("line", { class: "cross", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
    picture.append(this.cross);
  }

  /** Tell the values of all curves at the crosshair, or their last. */
  tell() {
    const at = this.at.value;
    void [this.width.value, this.range.value];
    const found = this.series.value.map((one) => ({ ...one,
      point: at === null ? one.points[one.points.length - 1] : closest(one.points, at) }));
    this.cross?.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at !== null && found.length) {
      const x = this.scale?.x(closest(found.map(({ point }) => point).sort((a, b) => a[0] - b[0]), at)[0]);
      for (const end of ["x1", "x2"]) this.cross?.setAttribute(end, String(x));
    }
    this.told.replaceChildren(...found.map(({ name, colour, run, point: [x, y] }) => el("span",
      { class: `value c${colour} ${run ? "second" : ""}` },
      `${name} ${this.format(y)}${at === null ? "" : ` at ${x.toLocaleString("en")}`}`)));
  }
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
  if (points.length <= 2 * width) return points;
  const per = Math.ceil(points.length / width);
  return Array.from({ length: Math.ceil(points.length / per) }, (_, i) => {
    const part = points.slice(i * per, (i + 1) * per);
    return [part[part.length >> 1][0], part.reduce((sum, [, y]) => sum + y, 0) / part.length];
  });
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
