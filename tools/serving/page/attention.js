// The view Attention: what a token reads, in one head or averaged over several, over the text and as a matrix;
// and all heads next to each other.

import { post } from "./api.js";
import { el, field, lead, percent, select, visible } from "./dom.js";
import { canvas, cell, paint } from "./matrix.js";
import { TextBox } from "./textbox.js";
import { Tokens } from "./tokens.js";

const MEAN = "mean";

export class Attention {
  constructor(app) {
    const { n_layer, n_head } = app.model.config;
    this.box = new TextBox(app, {
      label: "the text whose attention is shown", placeholder: "Type or paste a text, then press Look.",
      most: app.model.limits.attention, look: (tokens) => this.load(tokens),
    });
    this.text = new Tokens("choose the token that reads", {
      look: (i, span, how) => how === "focus" && this.choose(i),
      open: (i) => this.choose(i),
    });
    const numbers = (n, name) => [[MEAN, "all, averaged"], ...Array.from({ length: n }, (_, i) => [i, `${name} ${i + 1}`])];
    this.layer = select(numbers(n_layer, "layer"), () => this.draw());
    this.head = select(numbers(n_head, "head"), () => this.draw());
    this.matrix = canvas({ class: "matrix", role: "img", "aria-label": "the matrix of weights: a row for each token that reads" });
    this.matrix.addEventListener("click", (event) => this.choose(cell(this.matrix, event, this.T)[0]));
    this.matrix.addEventListener("pointermove", (event) => this.point(event));
    this.matrix.addEventListener("pointerleave", () => this.tell());
    this.told = el("p", { class: "faint told" });
    this.most = el("ol", { class: "most" });
    this.grid = el("div", { class: "grid", role: "group", "aria-label": "all heads" });
    this.grid.style.setProperty("--heads", n_head + 1);
    this.shown = el("div", { class: "stack", hidden: true },
      el("div", { class: "card" },
        el("div", { class: "row controls" }, field("Layer", "the block whose attention is shown", this.layer),
          field("Head", "one of the block's heads", this.head),
          el("p", { class: "faint grow" }, "Click a token, or move through them with the arrow keys: the stronger another is shaded, the more it is read.")),
        this.text.element, this.most),
      el("div", { class: "columns" },
        el("div", { class: "card" }, el("h3", {}, "All heads"),
          el("p", { class: "faint" }, "A row for each layer, from the first; on the right the average of its heads. Click one."), this.grid),
        el("div", { class: "card" }, el("h3", {}, "The matrix of this head"),
          el("p", { class: "faint" }, "A row for each token that reads, a column for each that is read."), this.matrix, this.told)));
    this.elements = [
      lead("Attention", "To predict what comes next, each token reads from those before it and from itself. Here you see which "
        + "ones, in every head of every layer: each head divides its whole attention, 100%, among them."),
      this.box.element, this.shown];
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.weights && this.drawAll());
  }

  show() {
    this.box.show();
  }

  async load(tokens) {
    const answer = await post("inside/attention", { text: tokens.map((token) => token.id) });
    const [L, H, T] = answer.shape;
    Object.assign(this, { L, H, T, tokens: answer.tokens });
    const bytes = Uint8Array.from(atob(answer.weights), (letter) => letter.charCodeAt(0));
    this.weights = new DataView(bytes.buffer);
    this.reader = T - 1;
    this.shown.hidden = false;
    this.text.show(this.tokens);
    this.drawAll();
  }

  // How much token t reads of token s in a head, or on average.
  weight(layer, head, t, s) {
    if (layer === MEAN) return mean(this.L, (l) => this.weight(l, head, t, s));
    if (head === MEAN) return mean(this.H, (h) => this.weight(layer, h, t, s));
    const triangle = (this.T * (this.T + 1)) / 2;
    const place = (layer * this.H + head) * triangle + (t * (t + 1)) / 2 + s;
    return this.weights.getUint16(2 * place, true) / 65535;
  }

  chosen(t, s) {
    const number = (control) => (control.value === MEAN ? MEAN : Number(control.value));
    return this.weight(number(this.layer), number(this.head), t, s);
  }

  drawAll() {
    this.grid.replaceChildren();
    for (let l = 0; l < this.L; l += 1) {
      for (const h of [...Array(this.H).keys(), MEAN]) this.grid.append(this.small(l, h));
    }
    this.draw();
  }

  small(l, h) {
    const name = `layer ${l + 1}, ${h === MEAN ? "average" : `head ${h + 1}`}`;
    const picture = canvas();
    const button = el("button", { type: "button", title: name, "aria-label": name, class: h === MEAN ? "mean" : "",
      onclick: () => { this.layer.value = l; this.head.value = h; this.draw(); } }, picture);
    button.dataset.head = `${l} ${h}`;
    requestAnimationFrame(() => paint(picture, this.T, (t, s) => this.weight(l, h, t, s)));
    return button;
  }

  draw() {
    const name = `${this.layer.value} ${this.head.value}`;
    for (const button of this.grid.children) button.setAttribute("aria-pressed", button.dataset.head === name);
    paint(this.matrix, this.T, (t, s) => this.chosen(t, s));
    this.choose(this.reader);
  }

  // Shade what token t reads.
  choose(t) {
    this.reader = t;
    const weights = Array.from({ length: t + 1 }, (_, s) => this.chosen(t, s));
    const most = Math.max(...weights);
    this.text.spans.forEach((span, s) => {
      span.classList.toggle("reader", s === t);
      span.classList.toggle("unseen", s > t);
      this.text.strength(s, s <= t ? Math.sqrt(weights[s] / most) * Math.min(1, 0.35 + most) : 0, "read");
      span.title = s <= t ? percent(weights[s]) : "";
    });
    const first = weights.map((weight, s) => [weight, s]).sort(([a], [b]) => b - a).slice(0, 5);
    this.most.replaceChildren(el("li", { class: "faint" }, "token ", el("code", {}, visible(this.tokens[t].text)), " reads most of"),
      ...first.map(([weight, s]) => el("li", {}, el("code", {}, visible(this.tokens[s].text)),
        ` ${percent(weight)}`, el("span", { class: "faint" }, s === t ? " itself" : ` ${t - s} back`))));
    this.tell();
  }

  point(event) {
    const [t, s] = cell(this.matrix, event, this.T);
    this.tell(t, s <= t ? s : undefined);
  }

  tell(t = this.reader, s) {
    const code = (i) => el("code", {}, visible(this.tokens[i].text));
    this.told.replaceChildren(...(s === undefined ? ["Point at a cell; a click chooses the token of its row."]
      : [code(t), ` (${t}) reads ${percent(this.chosen(t, s))} of `, code(s), ` (${s})`]));
  }
}

function mean(n, value) {
  let sum = 0;
  for (let i = 0; i < n; i += 1) sum += value(i);
  return sum / n;
}
