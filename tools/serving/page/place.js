// The panel of the chosen place: how likely its token was, and the ten likeliest there, each a button to go on with.
// On a phone it is a sheet, which a tap on a token opens.

import { arrows, bars, bits, button, byId, code, el, percent } from "./dom.js";
import { looking, placeAt, places, pointed } from "./looked.js";
import { effect } from "./reactive.js";
import { valid } from "./settings.js";
import { at, choose, learned, model, text, writing } from "./store.js";
import { settle } from "./textcard.js";
import { focus } from "./tokens.js";
import { branch } from "./writing.js";

const panel = byId("place");

export const enter = () => panel.querySelector("button.choice")?.focus();

effect(() => {
  const had = panel.contains(document.activeElement);
  panel.replaceChildren(...content(pointed.value ?? at.value));
  if (had) enter();
});

document.addEventListener("click", ({ target }) => {
  const one = /** @type {HTMLElement} */ (target);
  panel.classList.toggle("open", Boolean(one.closest("#tokens .token, #place") && !one.closest(".close, .choice")));
}, true); // before a choice goes

panel.addEventListener("keydown", (event) => event.key === "Escape" && back());
for (const place of [panel, byId("alternatives")]) {
  arrows(place, (_, down, row) => {
    const rows = [...place.querySelectorAll("button.choice")];
    rows[(rows.indexOf(row) + down + rows.length) % rows.length]?.focus();
  });
}

const back = () => focus(at.peek()); // to the text

function content(i) {
  const { tokens } = text.value, token = tokens[i], place = placeAt(i); // no token stands after the last
  const where = token && ` token ${i + 1} of ${tokens.length}`;
  const title = el("h3", {}, token ? code(token.text) : "What comes next", where,
    button({ class: "plain close", "aria-label": "Close" }, "✕"));
  const note = (told) => [title, el("p", { class: "faint" }, told)];
  if (!tokens.length) return note("Once there is a text, you see here what could stand at each of its positions.");
  if (i === 0) return note("Nothing stands before the first token, so the model had nothing to go by.");
  if (writing.value) return note("Looked up when the text is written.");
  if (place === undefined) return note(places.error.value || el("span", { class: "awaited" }, "Looking it up …"));
  const { block_size } = model.value.config;
  if (!place) return note(`The model takes ${block_size} tokens at most, and no longer sees this one.`);
  const by = looking.value === model.value.version ? "" : ` at ${looking.value}`;
  const head = token ? `The model gave it ${percent(place.before)}${by}, ${bits(place.before).toFixed(2)} bits; `
    + `${percent(place.after)} as drawn. ${learned.value[i] ? "" : "It learned to write answers alone."}`
    : "Choose the next token yourself, or press Write.";
  return [title, el("p", { class: "what" }, head), ...choices(place, places.value.names, token, async (chosen) => {
    pointed.value = null;
    back();
    if (!valid() || !await settle()) return;
    choose(i);
    branch(i, chosen);
  })];
}

/** The likeliest tokens at a place, each a button. @param {import("./looked.js").Place} place
 * @param {{[id: string]: string}} names @param {import("./store.js").Token | undefined} mine the token that stands there
 * @param {(token: import("./store.js").Token) => void} pick */
function choices(place, names, mine, pick) {
  const most = Math.max(...place.likeliest_before, ...place.likeliest_after);
  const rows = place.likeliest.map((id, n) => {
    const before = place.likeliest_before[n], after = place.likeliest_after[n], text = names[id];
    const onclick = () => pick({ id, text, probability: before });
    return button({ class: id === mine?.id ? "choice mine" : "choice", title: "go on with it instead", onclick },
      ...row(code(text), bars(before / most, after / most), percent(before), percent(after)));
  });
  return [el("p", { class: "choice titles" }, ...row("token", el("span"), "model", "as drawn")), ...rows,
    el("p", { class: "faint" }, "As drawn: after temperature, top-k and top-p. Click one to go on from it instead.")];
}

/** Show the likeliest tokens beside one that stands elsewhere. @param {HTMLElement} span
 * @param {Parameters<typeof choices>} about */
export function alternatives(span, ...about) {
  const [place, names, token, pick] = about, menu = byId("alternatives");
  document.querySelector(".token.open")?.classList.remove("open");
  span.classList.add("open"); // where style.css puts the menu
  const head = `The model gave it ${percent(place.before)}, ${bits(place.before).toFixed(2)} bits.`;
  menu.replaceChildren(el("h3", {}, code(token.text)), el("p", { class: "what" }, head),
    ...choices(place, names, token, (chosen) => {
      menu.hidePopover();
      pick(chosen);
    }));
  menu.showPopover();
  (menu.querySelector("button.mine") ?? menu.querySelector("button")).focus();
}

function row(name, shares, before, after) {
  return [el("span", {}, name), shares, ...[before, after].map((told) => el("span", { class: "number" }, told))];
}
