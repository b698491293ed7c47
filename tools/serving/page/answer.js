// An answer of the model, token by token. One of them is chosen, and from there one goes into other views.

import { arrows, button, el } from "./dom.js";
import { view } from "./store.js";
import { present } from "./textcard.js";
import { look, span } from "./tokens.js";

/** Return the tokens, and the buttons. `whole` tells the text that the answer ends, which the views then share.
 * @param {import("./store.js").Token[]} tokens @param {import("./tokens.js").Tint[]} tints
 * @param {() => Promise<import("./store.js").Text>} whole
 * @param {(i: number, span: HTMLElement) => void} [pressed] what a press does
 * @returns {[HTMLElement, ...HTMLElement[]]} */
export function answer(tokens, tints, whole, pressed) {
  const spans = tokens.map(span);
  const box = el("p", { class: "text small", dir: "auto", role: "group", "aria-label": "answer" }, ...spans);
  let chosen = 0;
  spans.forEach((one, i) => look(one, tokens[i], tints[i], false));
  if (spans.length) spans[0].tabIndex = 0; // where Tab leads
  box.addEventListener("focusin", (event) => {
    for (const i of [chosen, chosen = spans.indexOf(/** @type {HTMLElement} */ (event.target))]) {
      look(spans[i], tokens[i], tints[i], i === chosen);
      spans[i].tabIndex = i === chosen ? 0 : -1;
    }
  });
  const press = ({ target }) => spans.includes(target) && pressed?.(spans.indexOf(target), target);
  box.addEventListener("click", press);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault(); // a space would scroll
    press(event);
  });
  arrows(box, (right, _, target) => right !== 0 && spans[spans.indexOf(target) + right]?.focus());
  const into = (name, label) => button({ class: "plain faint", title: "from the chosen token", onclick: async () => {
    view.value = name; // where it is told if that fails
    const text = await whole();
    await present(text, text.from + chosen);
  } }, label);
  return [box, into("attention", "Attention"), into("lens", "Logit lens")];
}
