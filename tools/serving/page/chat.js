// The view Chat: a conversation with the model. An answer is streamed, and any turn can be changed.

import { post } from "./api.js";
import { answer } from "./answer.js";
import { button, byId, clicks, el } from "./dom.js";
import { effect, state } from "./reactive.js";
import { valid } from "./settings.js";
import { model } from "./store.js";
import { surprise } from "./tokens.js";
import { nextSeed, streamed } from "./writing.js";

/** @typedef {{role: "system" | "user" | "assistant", content: string, tokens?: import("./store.js").Token[],
 * by?: string, drawn?: import("./store.js").Settings}} Turn tokens: of an answer, as it was drawn */

const NAMES = { system: "System prompt", user: "You", assistant: "Model" };

const turns = state(/** @type {Turn[]} */ ([]));
const edited = state(/** @type {number | null} */ (null)); // the turn in the field; null: the next one
const answering = state(/** @type {AbortController | null} */ (null));
const log = byId("turns"), field = byId("said"), system = byId("system");
let shown = /** @type {Turn[]} */ ([]), key = ""; // of what the browser keeps

const legend = byId("legend").cloneNode(true);
legend.removeAttribute("id");
byId("conversation").append(legend);

effect(() => { // what this tab had before a reload
  if (key || !model.value) return;
  key = `chat-${model.value.name}`;
  const kept = JSON.parse(sessionStorage.getItem(key) ?? "null");
  if (kept) [turns.value, field.value, system.value] = kept;
});
const keep = () => {
  const kept = JSON.stringify([turns.value, field.value, system.value]);
  if (key) sessionStorage.setItem(key, kept);
};
effect(keep);
byId("composer").addEventListener("input", keep);

effect(() => { // turns that are the same keep their elements
  const follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
  const parted = shown.findIndex((turn, i) => turn !== turns.value[i]), same = parted < 0 ? shown.length : parted;
  while (log.children.length > same) log.lastElementChild.remove();
  log.append(...turns.value.slice(same).map((turn, i) => drawn(turn, same + i)));
  shown = turns.value;
  if (follows) log.scrollTop = log.scrollHeight;
  const kept = edited.value ?? turns.value.length;
  for (const [i, turn] of [...log.children].entries()) turn.classList.toggle("going", i >= kept);
});

effect(() => {
  const busy = Boolean(answering.value), lacks = model.value?.chat, changed = turns.value[edited.value];
  byId("chat-lacks").textContent = lacks ? `${lacks[0].toUpperCase()}${lacks.slice(1)}.` : "";
  byId("conversation").hidden = !model.value || lacks;
  byId("send").textContent = busy ? "Stop" : "Send";
  byId("reanswer").ariaDisabled = busy || Boolean(changed) || !turns.value.some(({ role }) => role === "user");
  byId("anew").ariaDisabled = busy || !turns.value.length;
  byId("cancel").hidden = !changed;
  field.ariaLabel = changed ? `Edit: ${NAMES[changed.role]}` : "Message";
  system.hidden = turns.value.length > 0;
  legend.hidden = !turns.value.some(({ tokens }) => tokens);
  log.classList.toggle("writing", busy);
});

clicks(byId("send"), () => (answering.peek() ? answering.peek().abort() : send()));
clicks(byId("reanswer"), () => {
  nextSeed();
  turns.value = turns.peek().slice(0, turns.peek().findLastIndex(({ role }) => role === "user") + 1);
  reply();
});
clicks(byId("anew"), () => {
  fill(null);
  turns.value = [];
});
clicks(byId("cancel"), () => fill(null));
byId("composer").addEventListener("keydown", (event) => {
  if (event.key === "Escape" && answering.peek()) answering.peek().abort();
  else if (event.key === "Escape" && edited.peek() !== null) fill(null);
  else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target !== system) send();
  else return;
  event.preventDefault();
});

/** Put a turn into the field; null: begin the next. @param {number | null} i */
function fill(i) {
  if (answering.peek()) return;
  edited.value = i;
  field.value = turns.peek()[i]?.content ?? "";
  tell("");
  field.focus();
}

function tell(told, bad = false) {
  byId("chat-told").textContent = told;
  byId("chat-told").classList.toggle("bad", bad);
}

/** Take the field's turn over, and with it what follows goes; the model answers one of the user. */
async function send() {
  const content = field.value.trim(), before = turns.peek().slice(0, edited.peek() ?? undefined);
  if (answering.peek() || !content || !valid()) return;
  if (!turns.peek().length && system.value.trim()) before.push({ role: "system", content: system.value.trim() });
  const { role } = turns.peek()[edited.peek()] ?? { role: "user" };
  fill(null);
  turns.value = [...before, { role, content }];
  if (role === "user") await reply();
}

const messages = (n) => turns.peek().slice(0, n).map(({ role, content }) => ({ role, content }));

async function reply() {
  const asked = turns.peek(), decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  /** @type {Turn} */
  let said = { role: "assistant", content: "", tokens: [] };
  tell("answering …");
  try {
    tell(await streamed("v1/chat/completions", { messages: messages(), logprobs: true }, answering, (event, drawn) => {
      const { delta, logprobs } = event.choices[0]; // without logprobs where there are no tokens
      const { content = [], token_ids = [] } = logprobs ?? {};
      const more = content.map(({ bytes, logprob }, i) => ({ id: token_ids[i], probability: Math.exp(logprob),
        text: decoder.decode(Uint8Array.from(bytes), { stream: true }) })); // "" in the middle of a character
      said = { ...said, content: said.content + (delta.content ?? ""), tokens: [...said.tokens, ...more],
        by: event.system_fingerprint, drawn };
      turns.value = [...asked, said];
      return more.length;
    }));
  } catch (error) {
    tell(error.message, true);
  }
}

/** @param {Turn} turn @param {number} i */
function drawn({ role, content, tokens, by, drawn }, i) {
  const whole = async () => {
    const prompt = (await post("inside/chat", { messages: messages(i) })).tokens;
    return { tokens: [...prompt, ...tokens], from: prompt.length, by, drawn };
  };
  const [text, ...tools] = tokens ? answer(tokens, tokens.map(({ probability }) => surprise(probability)), whole)
    : [el("p", { class: "text small", dir: "auto" }, content)];
  return el("li", { class: `turn ${role}` }, el("h3", {}, NAMES[role]), text,
    el("div", { class: "row" }, ...tools, button({ class: "plain faint", onclick: () => fill(i) }, "Edit")));
}
