// The view Logit lens: what the head would predict from the residual stream after each layer, at each place; and
// for one place the sizes of the stream and of what each block adds to it.

import { post } from "./api.js";
import { el, lead, percent, visible } from "./dom.js";
import { TextBox } from "./textbox.js";

const LIKELIEST = 5;

export class Lens {
  constructor(app) {
    this.box = new TextBox(app, {
      label: "the text that the lens is held on", placeholder: "Type or paste a text, then press Look.",
      most: app.model.limits.lens, look: (tokens) => this.load(tokens),
    });
    this.table = el("div", { class: "scroll lens", tabindex: "0", role: "region", "aria-label": "predictions by layer; scrolls sideways" });
    this.detail = el("div", {});
    this.shown = el("div", { class: "stack", hidden: true },
      el("div", { class: "card" }, el("h3", {}, "The likeliest next token after each layer"),
        el("p", { class: "faint" }, "A column for each token of the text, read from the bottom, the embedding, to the top, the "
          + "model’s own prediction. The stronger a cell is tinted, the surer the prediction; one underlined in green is the token that "
          + "does come next. Click a column for its numbers."), this.table),
      el("div", { class: "card" }, this.detail));
    this.elements = [
      lead("Logit lens", "The model’s last step turns a vector into a prediction. Here the same step is applied to the vector, the "
        + "residual stream, after every layer, so that you can watch the prediction form."),
      this.box.element, this.shown];
  }

  show() {
    this.box.show();
  }

  async load(tokens) {
    this.seen = await post("inside/lens", { text: tokens.map((token) => token.id), k: LIKELIEST });
    this.shown.hidden = false;
    this.draw();
    this.choose(this.seen.tokens.length - 1);
    this.table.scrollLeft = this.table.scrollWidth; // to the last token
  }

  get layers() {
    return this.seen.likeliest.length; // the embedding and the blocks
  }

  name(l) {
    return l === 0 ? "embedding" : `layer ${l}`;
  }

  draw() {
    const { tokens, likeliest, probabilities, names } = this.seen;
    const rows = [];
    for (let l = this.layers - 1; l >= 0; l -= 1) {
      const cells = tokens.map((_, t) => {
        const [id] = likeliest[l][t], [p] = probabilities[l][t], right = tokens[t + 1]?.id === id;
        const cell = el("td", { class: right ? "right" : "", title: `${visible(names[id])} ${percent(p)}` }, visible(names[id]));
        cell.style.setProperty("--strength", p.toFixed(3));
        cell.dataset.t = t;
        return cell;
      });
      rows.push(el("tr", {}, el("th", { scope: "row" }, this.name(l)), ...cells));
    }
    const heads = tokens.map((token, t) => el("th", { scope: "col" },
      el("button", { type: "button", "aria-label": `token ${t + 1}, ${visible(token.text)}`, "data-t": t }, visible(token.text))));
    const foot = el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "the text"), ...heads));
    const table = el("table", {}, el("tbody", {}, ...rows), foot);
    table.addEventListener("click", (event) => {
      const t = event.target.dataset.t;
      if (t !== undefined) this.choose(Number(t));
    });
    table.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.choose(Math.max(0, Math.min(tokens.length - 1, this.t + step)));
      foot.querySelector(`[data-t="${this.t}"]`).focus();
    });
    this.table.replaceChildren(table);
  }

  // Show the numbers of one place: a row for each layer.
  choose(t) {
    this.t = t;
    for (const cell of this.table.querySelectorAll("[data-t]")) cell.classList.toggle("chosen", Number(cell.dataset.t) === t);
    for (const button of this.table.querySelectorAll("button")) button.tabIndex = Number(button.dataset.t) === t ? 0 : -1;
    const { tokens, stream_norms, attn_norms, mlp_norms } = this.seen;
    const following = tokens[t + 1];
    const most = Math.max(...[...stream_norms, ...attn_norms, ...mlp_norms].map((row) => row[t]));
    const rows = [];
    for (let l = this.layers - 1; l >= 0; l -= 1) {
      rows.push(el("tr", {}, el("th", { scope: "row" }, this.name(l)), el("td", {}, this.guesses(l, t, following)),
        norm(stream_norms[l][t], most), norm(l ? attn_norms[l - 1][t] : null, most), norm(l ? mlp_norms[l - 1][t] : null, most)));
    }
    const heads = ["after", "the likeliest next tokens", "stream", "attention adds", "MLP adds"];
    this.detail.replaceChildren(
      el("h3", {}, "Behind ", el("code", {}, visible(tokens[t].text)), ` (token ${t + 1})`,
        following ? " comes " : "", following ? el("code", {}, visible(following.text)) : ""),
      el("p", { class: "faint" }, "On the right the Euclidean norms of the residual stream, and of what the layer’s attention and MLP "
        + "have added to it."),
      el("div", { class: "scroll" }, el("table", { class: "norms" },
        el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows))));
  }

  guesses(l, t, following) {
    const { likeliest, probabilities, names } = this.seen;
    return el("span", { class: "guesses" }, ...likeliest[l][t].map((id, n) => {
      const guess = el("span", { class: id === following?.id ? "guess right" : "guess" }, el("code", {}, visible(names[id])),
        ` ${percent(probabilities[l][t][n])}`);
      guess.style.setProperty("--strength", probabilities[l][t][n].toFixed(3));
      return guess;
    }));
  }
}

// A norm as a number and a bar.
function norm(value, most) {
  if (value == null) return el("td", {});
  const bar = el("span", { class: "bar" });
  bar.style.width = `${((100 * value) / most).toFixed(1)}%`;
  return el("td", { class: "norm" }, el("span", { class: "number" }, value.toPrecision(3)), el("span", { class: "bars", "aria-hidden": "true" }, bar));
}
