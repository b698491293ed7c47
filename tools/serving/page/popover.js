// The panel at a token: the ten likeliest there, as the model has them and as they are drawn. One can point into
// it, or go in with Enter or the down arrow; a choice is a button.

import { el, percent, visible } from "./dom.js";

const LINGER = 220; // milliseconds until it goes after the pointer has left

export class Popover {
  // `choose(id, text)` is called with the token that is clicked; without it the panel only tells.
  constructor(choose) {
    this.choose = choose;
    this.element = el("div", { class: "popover", role: "dialog", "aria-label": "what could stand here", hidden: true });
    this.element.addEventListener("pointerenter", () => clearTimeout(this.timer));
    this.element.addEventListener("pointerleave", () => this.leave());
    this.element.addEventListener("keydown", (event) => this.key(event));
    document.body.append(this.element);
    document.addEventListener("pointerdown", (event) => {
      if (!this.element.contains(event.target) && event.target !== this.anchor) this.close();
    });
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    addEventListener("scroll", () => this.place(), { passive: true });
    addEventListener("resize", () => this.place());
  }

  get open() {
    return !this.element.hidden;
  }

  // Show it at a token. `pinned`: it stays when the pointer leaves.
  at(anchor, content, pinned) {
    if (this.returning) return;
    clearTimeout(this.timer);
    if (this.anchor !== anchor) this.anchor?.classList.remove("looked");
    this.anchor = anchor;
    this.pinned = pinned;
    anchor.classList.add("looked");
    const had = this.element.contains(document.activeElement);
    this.element.replaceChildren(content);
    this.element.hidden = false;
    this.place();
    if (had) this.enter();
  }

  leave() {
    clearTimeout(this.timer);
    if (!this.pinned) this.timer = setTimeout(() => this.close(), LINGER);
  }

  enter() {
    this.element.querySelector("button")?.focus();
  }

  close() {
    if (!this.open) return;
    const inside = this.element.contains(document.activeElement);
    this.element.hidden = true;
    this.anchor.classList.remove("looked");
    const { anchor } = this;
    this.anchor = null;
    this.returning = true; // the focus comes back to the token, and the panel stays away
    if (inside) anchor.focus();
    this.returning = false;
  }

  place() {
    if (!this.open) return;
    const at = this.anchor.getClientRects()[0], mine = this.element.getBoundingClientRect();
    if (!at) return;
    const below = at.bottom + mine.height + 8 <= innerHeight || at.top < mine.height + 8;
    const left = Math.max(8, Math.min(at.left - 12, document.documentElement.clientWidth - mine.width - 8));
    this.element.style.left = `${left}px`;
    this.element.style.top = `${below ? at.bottom + 6 : at.top - mine.height - 6}px`;
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const rows = [...this.element.querySelectorAll("button")];
    rows[(rows.indexOf(document.activeElement) + step + rows.length) % rows.length]?.focus();
  }

  // The table of a place, as /inside/places tells it, below a head; `settled`: also as tokens are drawn.
  table(head, place, chosen, names, settled) {
    const most = Math.max(...place.likeliest_before, ...(settled ? place.likeliest_after : []));
    const rows = place.likeliest.map((id, n) => {
      const before = place.likeliest_before[n], after = place.likeliest_after[n];
      const bars = el("span", { class: "bars", "aria-hidden": "true" }, bar(settled ? "before" : "", before / most),
        settled && bar("after", after / most));
      const cells = [el("code", {}, visible(names[id])), bars, el("span", { class: "number" }, percent(before)),
        settled && el("span", { class: "number" }, percent(after))];
      const said = `${visible(names[id])}: ${percent(before)}${settled ? `, ${percent(after)} as drawn` : ""}`;
      const mine = id === chosen ? " mine" : "";
      return this.choose
        ? el("button", { type: "button", class: `choice${mine}`, "aria-label": `go on with ${said}`,
            onclick: () => this.choose(id, names[id]) }, ...cells)
        : el("div", { class: `choice${mine}`, "aria-label": said }, ...cells);
    });
    const titles = el("p", { class: "choice titles", "aria-hidden": "true" }, el("span", {}, "token"), el("span"),
      el("span", { class: "number" }, "model"), settled && el("span", { class: "number" }, "as drawn"));
    const note = this.choose && el("p", { class: "faint" }, "As drawn: after temperature, top-k and top-p. Click one to go on from there instead.");
    return el("div", { class: settled ? "place" : "place plain" }, this.note(...head), titles, ...rows, note);
  }

  note(...parts) {
    return el("p", { class: "what" }, ...parts);
  }
}

function bar(kind, share) {
  const made = el("span", { class: `bar ${kind}` });
  made.style.width = `${(100 * share).toFixed(1)}%`;
  return made;
}
