// A line chart: axes, lines or dots, and a crosshair that tells the values below the pointer.

import { el, svg } from "./dom.js";

const HEIGHT = { large: 300, small: 150 };
const MARGIN = { left: 52, right: 20, top: 10, bottom: 26 };

export class Chart {
  // `format` writes a value of the y axis.
  constructor({ title, size = "large", format = (y) => y.toPrecision(4) }) {
    Object.assign(this, { size, format, series: [] });
    this.picture = svg("svg", { class: "chart", role: "img", "aria-label": title });
    this.told = el("p", { class: "faint told" });
    this.element = el("figure", {}, el("figcaption", {}, title), this.picture, this.told);
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => this.leave());
    new ResizeObserver(() => this.draw()).observe(this.picture);
  }

  // series: [{name, kind: "line" or "dots", points: [[x, y], ...], colour: 1 to 3}], by x.
  show(series) {
    this.series = series.filter(({ points }) => points.length);
    this.draw();
  }

  draw() {
    const width = this.picture.clientWidth, height = HEIGHT[this.size];
    if (!width) return;
    this.width = width;
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.setAttribute("height", height);
    this.picture.replaceChildren();
    if (!this.series.length) return;
    const drawn = this.series.map((series) => ({ ...series, points: thinned(series.points, width) }));
    const xs = this.series.flatMap(({ points }) => [points[0][0], points.at(-1)[0]]);
    const ys = drawn.flatMap(({ points }) => points.map(([, y]) => y));
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)], ticks = steps(Math.min(...ys), Math.max(...ys), this.size === "large" ? 5 : 3);
    const [y0, y1] = [ticks[0], ticks.at(-1)];
    this.x = (x) => MARGIN.left + ((x - x0) / (x1 - x0 || 1)) * (width - MARGIN.left - MARGIN.right);
    this.y = (y) => height - MARGIN.bottom - ((y - y0) / (y1 - y0 || 1)) * (height - MARGIN.top - MARGIN.bottom);
    for (const tick of ticks) {
      const y = this.y(tick);
      this.picture.append(svg("line", { class: "grid-line", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
        svg("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, this.format(tick)));
    }
    for (const tick of steps(x0, x1, width / 110).filter((x) => x >= x0 && x <= x1)) {
      this.picture.append(svg("text", { x: this.x(tick), y: height - 6, "text-anchor": "middle" }, tick.toLocaleString("en")));
    }
    for (const { kind, points, colour } of drawn) {
      const path = points.map(([x, y]) => `${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join("L");
      this.picture.append(svg("path", { class: `series ${kind} c${colour}`, d: `M${path}` }));
      if (kind === "dots") {
        this.picture.append(...points.map(([x, y]) => svg("circle", { class: `c${colour}`, cx: this.x(x), cy: this.y(y), r: 3 })));
      }
    }
    this.cross = svg("line", { class: "cross", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
    this.picture.append(this.cross);
    this.leave();
  }

  // Tell the values at the point that is nearest to the pointer.
  point(event) {
    if (!this.series.length) return;
    const at = event.clientX - this.picture.getBoundingClientRect().left;
    const nearest = this.series.map((series) => ({ ...series, point: closest(series.points, (x) => this.x(x), at) }));
    const distance = ({ point }) => Math.abs(this.x(point[0]) - at);
    const best = nearest.reduce((a, b) => (distance(b) < distance(a) ? b : a)).point[0];
    this.cross.setAttribute("x1", this.x(best));
    this.cross.setAttribute("x2", this.x(best));
    this.cross.setAttribute("visibility", "visible");
    const told = nearest.filter(({ point }) => point[0] === best);
    this.tell([`at ${best.toLocaleString("en")}: `, ...this.values(told)]);
  }

  leave() {
    this.cross?.setAttribute("visibility", "hidden");
    this.tell(this.values(this.series.map((series) => ({ ...series, point: series.points.at(-1) }))));
  }

  values(series) {
    return series.map(({ name, colour, point }) => el("span", { class: `value c${colour}` }, `${name} ${this.format(point[1])}`));
  }

  tell(parts) {
    this.told.replaceChildren(...parts);
  }
}

// Of many points the mean of those that share a pixel.
function thinned(points, width) {
  if (points.length <= 2 * width) return points;
  const per = Math.ceil(points.length / width), made = [];
  for (let i = 0; i < points.length; i += per) {
    const part = points.slice(i, i + per);
    made.push([part[part.length >> 1][0], part.reduce((sum, [, y]) => sum + y, 0) / part.length]);
  }
  return made;
}

// The point whose x is drawn nearest to `at`: by halving, as points are in order.
function closest(points, place, at) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (place(points[middle][0]) < at) low = middle;
    else high = middle;
  }
  return Math.abs(place(points[low][0]) - at) < Math.abs(place(points[high][0]) - at) ? points[low] : points[high];
}

// About n round numbers, of which the first is not above `low` and the last not below `high`.
function steps(low, high, n) {
  const rough = (high - low || Math.abs(high) || 1) / Math.max(1, n), unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.max(first + 1, Math.ceil(high / step - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}
