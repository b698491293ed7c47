// The view Chat: a conversation with the model. An answer is streamed, and any turn can be changed.

import { get, post } from "./api.js";
import { answer } from "./answer.js";
import { button, byId, clicks, el } from "./dom.js";
import { checkpoints, title } from "./loss.js";
import { alternatives } from "./place.js";
import { effect, state } from "./reactive.js";
import { valid } from "./settings.js";
import { idsOf, model, spelled, view } from "./store.js";
import { surprise } from "./tokens.js";
import { nextSeed, picked, streamed } from "./writing.js";

/** @typedef {{role: "system" | "user" | "assistant", content: string, tokens?: import("./store.js").Token[],
 * by?: string, drawn?: import("./store.js").Settings, beside?: {name: string, tokens: import("./store.js").Token[]}}} Turn
 * tokens: of an answer, as it was drawn; beside: what another checkpoint answered */

const FIRST = ["Hello! Who are you?", "What can you do?"]; // asked where no conversation that was learned is known
const NAMES = { system: "System prompt", user: "You", assistant: "Model" };

const turns = state(/** @type {Turn[]} */ ([]));
const edited = state(/** @type {number | null} */ (null)); // the turn in the field; null: the next one
const answering = state(/** @type {AbortController | null} */ (null));
const log = byId("turns"), field = byId("said"), system = byId("system"), another = byId("another");
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
  system.hidden = turns.value.length > 0 || !model.value?.system;
  byId("questions").hidden = turns.value.length > 0;
  legend.hidden = !turns.value.some(({ tokens }) => tokens);
  log.classList.toggle("writing", busy);
});

effect(async () => { // what one may ask first
  if (!model.value || model.value.chat || byId("questions").children.length) return;
  const { questions } = await get("inside/questions");
  byId("questions").replaceChildren(...(questions.length ? questions : FIRST).map((text) => button({ onclick: () => {
    field.value = text;
    send();
  } }, text)));
});
effect(() => {
  const others = checkpoints.value.filter(({ name }) => name !== model.value?.version);
  byId("beside").hidden = !others.length;
  const before = another.value;
  another.replaceChildren(el("option", { value: "" }, "no other checkpoint"),
    ...others.map(({ name }) => el("option", { value: name }, title(name))));
  another.value = others.some(({ name }) => name === before) ? before : "";
});
another.addEventListener("change", () => compare().then(() => tell("")));
addEventListener("unhandledrejection", ({ reason }) => view.peek() === "chat" && tell(reason.message, true));

clicks(byId("send"), () => (answering.peek() ? answering.peek().abort() : send()));
clicks(byId("reanswer"), () => {
  if (!valid()) return;
  nextSeed();
  reply(turns.peek().slice(0, turns.peek().findLastIndex(({ role }) => role === "user") + 1));
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
  if (!turns.peek().length && model.peek().system && system.value.trim()) before.push({ role: "system", content: system.value.trim() });
  const { role } = turns.peek()[edited.peek()] ?? { role: "user" };
  fill(null);
  turns.value = [...before, { role, content }];
  if (role === "user") await reply(turns.peek());
}

/** What turn i was, or is, answered after: its tokens, and how many messages no longer fit. */
const promptOf = (i) => post("inside/chat",
  { messages: turns.peek().slice(0, i).map(({ role, content }) => ({ role, content })) });

/** Have the model answer some turns, or go on with an answer. @param {Turn[]} before @param {Turn} said */
async function reply(before, said = { role: "assistant", content: "", tokens: [] }) {
  const asked = promptOf(before.length);
  tell("answering …");
  const kept = () => turns.peek().slice(0, before.length); // compare() may have added to one meanwhile
  const longest = said.tokens.length ? model.peek().config.block_size : Infinity; // an answer may have become longer
  const prompt = asked.then(({ tokens }) => idsOf([...tokens, ...said.tokens]).slice(-longest));
  const told = await streamed(prompt, answering, (more, about) => {
    const tokens = [...said.tokens, ...more];
    said = { ...said, ...about, tokens, content: spelled(tokens) };
    turns.value = [...kept(), said]; // until now a former answer is there
  });
  if (said.tokens.length) turns.value = [...kept(), said]; // also where a picked token was the last
  const { messages_left_out: leftOut } = await asked;
  await compare();
  tell(leftOut ? `${told}. The first ${leftOut} messages no longer fit: the model has not read them.` : told);
}

/** Have the other checkpoint answer what was answered last, by the same settings. */
async function compare() {
  const i = turns.peek().length - 1, said = turns.peek()[i], name = another.value;
  if (!name || !said?.tokens || answering.peek() || said.beside?.name === name) return;
  tell(`${title(name)}: answering …`);
  const text = idsOf((await promptOf(i)).tokens);
  const { tokens, probabilities } = await post("inside/continuation", { text, checkpoint: name, ...said.drawn });
  if (another.value !== name) return; // the reader has chosen another one meanwhile
  const answered = tokens.map((token, n) => ({ ...token, probability: probabilities[n] }));
  turns.value = turns.peek().map((turn) => (turn === said ? { ...said, beside: { name, tokens: answered } } : turn));
}

/** Show what else could have stood as token n of turn i, to answer from there on. */
async function look(i, n, span) {
  const { tokens, drawn: { temperature, top_k, top_p } } = turns.peek()[i];
  const { tokens: prompt } = await promptOf(i);
  const all = idsOf([...prompt, ...tokens]), start = Math.max(0, all.length - model.peek().limits.tokens);
  const asked = { text: all.slice(start), prompt: Math.max(0, prompt.length - start), temperature, top_k, top_p };
  const { places, names } = await post("inside/places", asked);
  const place = places[prompt.length - start + n];
  if (place) alternatives(span, place, names, tokens[n], (token) => branch(i, n, token));
}

/** Answer turn i with another token n, and go on from there unless that ends it. */
async function branch(i, n, token) {
  if (answering.peek() || !valid()) return;
  byId("send").focus(); // the token that had the focus goes; here Escape stops the answer
  const before = turns.peek().slice(0, i), turn = turns.peek()[i], begun = turn.tokens.slice(0, n);
  const ends = model.peek().marks.ends.includes(token.id);
  const tokens = ends ? begun : [...begun, await picked(token, begun)];
  const said = { ...turn, beside: undefined, tokens, content: spelled(tokens) };
  if (ends) turns.value = [...before, said];
  else await reply(before, said);
}

/** @param {Turn} turn */
function drawn({ role, content, tokens, by, drawn, beside }, i) {
  const whole = async () => {
    const { tokens: prompt } = await promptOf(i);
    return { tokens: [...prompt, ...tokens], from: prompt.length, by, drawn };
  };
  const tints = (/** @type {import("./store.js").Token[]} */ all) => all.map(({ probability }) => surprise(probability));
  const [text, ...tools] = tokens ? answer(tokens, tints(tokens), whole, (n, span) => look(i, n, span))
    : [el("p", { class: "text small", dir: "auto" }, content)];
  const name = beside ? `${NAMES[role]}, ${title(by)}` : NAMES[role];
  const own = [el("h3", {}, name), text,
    el("div", { class: "row" }, ...tools, button({ class: "plain faint", onclick: () => fill(i) }, "Edit"))];
  if (!beside) return el("li", { class: `turn ${role}` }, ...own);
  const other = answer(beside.tokens, tints(beside.tokens), whole)[0];
  return el("li", { class: `turn ${role} pair` }, el("div", {}, el("h3", {}, title(beside.name)), other),
    el("div", {}, ...own));
}
