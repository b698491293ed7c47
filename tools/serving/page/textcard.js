// The text that all views share: read as tokens, or changed in a field at the same place; and what is done with it.

import { post } from "./api.js";
import * as attention from "./attention.js";
import { byId, clicks } from "./dom.js";
import { begin } from "./history.js";
import { likelihoods } from "./looked.js";
import * as loss from "./loss.js";
import { batch, effect, state } from "./reactive.js";
import { valid } from "./settings.js";
import { at, change, choose, draft, future, learned, merged, model, past, spelled, text, undo, view, writing } from "./store.js";
import { UNLEARNED, box, focus, listen, mark, show, surprise } from "./tokens.js";
import { again, said, say, write } from "./writing.js";

export const area = byId("area");
export const editing = state(true);

const FOLLOWS = 250; // milliseconds without a key, after which the panel follows what is typed

const tints = { attention: attention.tints, loss: loss.tints }; // of the tokens; in other views, how likely they were
let typing = 0; // a timer

effect(() => {
  const inside = byId("textcard").contains(document.activeElement);
  area.hidden = !editing.value;
  box.hidden = editing.value;
  if (inside && document.activeElement === document.body) focus(at.peek());
});

effect(() => {
  const busy = Boolean(writing.value), before = box.classList.contains("writing");
  const follows = busy !== before || box.scrollTop + box.clientHeight >= box.scrollHeight - 40;
  show(text.value.tokens, busy);
  if ((busy || before) && follows) box.scrollTop = box.scrollHeight;
  box.classList.toggle("writing", busy);
  const shown = tints[view.value]?.() ?? likelihoods().map((p, i) => (learned.value[i] ? surprise(p) : UNLEARNED));
  mark(at.value, shown);
  byId("unlearned").hidden = !shown.includes(UNLEARNED);
  document.body.classList.toggle("no-text", !text.value.tokens.length);
  byId("legend").hidden = !shown.some((tint) => tint && tint.side === undefined);
});

effect(() => {
  const busy = Boolean(writing.value), { tokens, from, by, drawn, example } = text.value;
  byId("go").textContent = busy ? "Stop" : "Write";
  byId("edit").textContent = editing.value ? "Done" : "Edit";
  byId("again").ariaDisabled = busy || editing.value || from >= tokens.length || Boolean(example);
  byId("undo").ariaDisabled = busy || !(past.value.length || editing.value);
  byId("redo").ariaDisabled = busy || editing.value || !future.value.length;
  byId("edit").ariaDisabled = byId("new").ariaDisabled = busy;
  byId("by").textContent = drawn ? `written by ${by}, with the seed ${drawn.seed}` : example
    ? "An example from the validation text. Press Write to go on with it, or just type a text of your own." : "";
  byId("message").textContent = said.value.text;
  byId("message").classList.toggle("bad", said.value.bad);
});

listen(edit);
clicks(byId("go"), () => (writing.peek() ? writing.peek().abort() : go()));
clicks(byId("again"), () => valid() && again());
clicks(byId("undo"), takeBack);
clicks(byId("redo"), () => undo(future, past));
clicks(byId("edit"), () => (editing.peek() ? settle() : edit()));
area.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(follow, FOLLOWS);
});
clicks(byId("new"), () => { begin(); edit(); });

// Keys that work wherever the focus is
document.addEventListener("keydown", (event) => {
  if (!byId("textcard").offsetParent) return;
  const command = event.ctrlKey || event.metaKey, pressed = event.key.toLowerCase();
  const target = /** @type {HTMLElement} */ (event.target), field = target.matches("input, textarea, select");
  if (command && event.key === "Enter") go();
  else if (event.key === "Escape" && byId("history").matches(":popover-open")) return;
  else if (event.key === "Escape" && writing.peek()) writing.peek().abort();
  else if (event.key === "Escape" && target === area && area.value) settle();
  else if (command && !field && pressed === "z" && !event.shiftKey) takeBack();
  else if (command && !field && (pressed === "y" || pressed === "z")) byId("redo").click();
  else if (target === document.body && event.key.length === 1 && event.key !== " " && !command && !event.altKey) {
    edit(); // and there the key arrives
    if (text.peek().example) area.select();
    return;
  } else return;
  event.preventDefault();
});

function edit(i = text.peek().tokens.length) {
  if (writing.peek()) return;
  if (!editing.peek()) area.value = spelled(text.peek().tokens);
  const caret = spelled(text.peek().tokens.slice(0, i)).length;
  editing.value = true;
  area.focus({ preventScroll: true });
  area.setSelectionRange(caret, caret);
}

/** Show of what is being typed what could come next. It becomes a change of the text when it is settled. */
async function follow() {
  const typed = area.value;
  if (!model.peek() || !editing.peek() || !typed) return;
  const { tokens } = await post("inside/tokens", { text: typed }).catch(() => ({ tokens: null })); // settle() tells why
  if (!tokens || !editing.peek() || area.value !== typed) return;
  const { tokens: had, by, drawn } = (draft.value ??= text.peek());
  let end = 0;
  const caret = tokens.findIndex(({ text }) => (end += text.length) > area.selectionStart);
  batch(() => {
    text.value = { tokens: merged(had, tokens), from: tokens.length, by, drawn };
    choose(caret < 0 ? tokens.length : caret);
  });
}

/** Take the text over from the field. Return whether there is one. */
export async function settle() {
  if (!editing.peek()) return text.peek().tokens.length > 0;
  const typed = area.value, before = draft.peek() ?? text.peek(), { tokens, by, drawn } = before;
  if (!typed) {
    say("Type the beginning of a text first.");
    return false;
  }
  const same = typed === spelled(tokens).replace(/\r\n?/g, "\n"); // as the field has it
  const next = same ? tokens : merged(tokens, (await post("inside/tokens", { text: typed })).tokens);
  if (!editing.peek()) return true; // a second press, as of Undo, finds the first done
  if (area.value !== typed) return settle(); // more was typed meanwhile
  batch(() => {
    editing.value = false;
    if (!same) change({ tokens: next, from: next.length, by, drawn });
    else restore();
  });
  say("");
  return true;
}

/** Show another text instead; the one before can be had again. @param {import("./store.js").Text} next */
export async function present(next, place) {
  writing.peek()?.abort();
  if (area.value) await settle();
  editing.value = false;
  change(next, place);
}

/** Show the text before what was typed. */
function restore() {
  if (draft.peek()) text.value = draft.peek();
  draft.value = null;
}

async function go() {
  if (!writing.peek() && valid() && await settle()) await write();
}

async function takeBack() {
  if (editing.peek() && !area.value) { // emptying the field is what is taken back
    restore();
    editing.value = false;
  } else {
    await settle(); // so that what was typed can be had again
    undo();
  }
  if (!text.peek().tokens.length) edit();
}
