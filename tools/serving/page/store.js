// What the views share: the text and the chosen place in it, how tokens are drawn, and what is looked at. All of
// it is in the URL. Whatever changes the text goes through `change`, so that it can be undone.

import { batch, derived, state } from "./reactive.js";

/** @typedef {{id: number, text: string, mine?: boolean, picked?: boolean, probability?: number}} Token
 * mine: typed by the reader; picked: chosen in the panel; probability: the model's as it was written */
/** @typedef {{tokens: Token[], from: number, by?: string, drawn?: Settings, example?: boolean}} Text
 * from: where the last continuation began; by: the checkpoint that wrote it; drawn: the settings of that */
/** @typedef {{temperature: number, top_p: number, top_k: number | null, max_tokens: number,
 * seed: number | null}} Settings */

const VIEWS = ["chat", "write", "attention", "lens", "loss", "run", "rollouts"];
export const DEFAULTS = { temperature: 0.8, top_p: 1, top_k: null, max_tokens: 100, seed: null };
const STEPS = 100; // that can be undone

export const view = state("write");
export const model = state(/** @type {any} */ (null)); // as /inside/model tells it; null until it does
export const text = state(/** @type {Text} */ ({ tokens: [], from: 0 }));
export const at = state(0); // the chosen place: that of token `at`, or after the last, of what comes next
export const settings = state(/** @type {Settings} */ (DEFAULTS));
export const head = state(/** @type {{layer: number, head: number} | null} */ (null)); // null: the sharpest
export const read = state(/** @type {number | null} */ (null)); // the token of the chosen cell
export const checkpoint = state(/** @type {string | null} */ (null)); // of the view Loss; null: the one that is served
export const other = state(/** @type {string | null} */ (null)); // the one that it is compared with
export const writing = state(/** @type {AbortController | null} */ (null));
export const past = state(/** @type {Text[]} */ ([]));
export const future = state(/** @type {Text[]} */ ([]));

export const draft = state(/** @type {Text | null} */ (null)); // the text before what is being typed; null: nothing is

export const idsOf = (/** @type {Token[]} */ tokens) => tokens.map(({ id }) => id);
export const spelled = (/** @type {Token[]} */ tokens) => tokens.map(({ text }) => text).join("");
export const ids = derived(() => idsOf(text.value.tokens));

/** Whether each token is one that the model learned to write: in a conversation, those of answers alone. */
export const learned = derived(() => {
  const { special = [], answer = [], ends = [] } = model.value?.marks ?? {}, all = ids.value;
  if (!answer.length || !all.some((id) => special.includes(id))) return all.map(() => true);
  let answers = false;
  return all.map((id, i) => {
    const written = answers;
    answers = (answers && !ends.includes(id)) || answer.every((one, n) => one === all[i + 1 - answer.length + n]);
    return written;
  });
});

/** Show another text; `place` is then the chosen one. @param {Text} next @param {number} [place] */
export function change(next, place = next.tokens.length - 1) {
  batch(() => {
    const before = draft.peek() ?? text.peek();
    if (before.tokens.length) past.value = [...past.peek(), before].slice(-STEPS);
    future.value = [];
    draft.value = null;
    text.value = next;
    choose(place);
  });
}

/** Take back the last change, or with the two lists exchanged make it again.
 * @param {import("./reactive.js").State<Text[]>} from @param {import("./reactive.js").State<Text[]>} to */
export function undo(from = past, to = future) {
  if (!from.peek().length || writing.peek()) return;
  batch(() => {
    to.value = [...to.peek(), text.peek()];
    text.value = from.peek()[from.peek().length - 1];
    from.value = from.peek().slice(0, -1);
    choose(at.peek());
  });
}

export function choose(place) {
  batch(() => {
    at.value = Math.max(0, Math.min(text.peek().tokens.length, place));
    if (read.peek() !== null && read.peek() >= at.peek()) read.value = null;
  });
}

/** The part of a text that a view may ask about, with the chosen place in it: as late a part as that allows.
 * @param {number} total @param {number} place @param {number} most @returns {[number, number]} */
export function part(total, place, most) {
  const end = place > total - most ? total : Math.max(place, most);
  return [Math.max(0, end - most), end];
}

/** The tokens of an edited text, where those that are as before keep what is known of them.
 * @param {Token[]} before @param {Token[]} after @returns {Token[]} */
export function merged(before, after) {
  const parted = after.findIndex((token, i) => token.id !== before[i]?.id);
  return after.map((token, i) => (parted < 0 || i < parted ? before[i] : { ...token, mine: true }));
}

// The URL

const RADIX = 36; // of tokens, which would be longer in decimals

/** What follows the #. Defaults are left out. */
export function toHash() {
  const { tokens, from } = text.value, t = ids.value.map((id) => id.toString(RADIX)).join(".");
  const told = Object.entries({ ...(tokens.length && { t, from, at: at.value }), ...settings.value, ...head.value,
    read: read.value, checkpoint: checkpoint.value, other: other.value });
  const kept = told.filter(([name, value]) => value != null && value !== DEFAULTS[name]);
  const query = new URLSearchParams(kept.map(([name, value]) => [name, String(value)]));
  return `#/${view.value}${query.size ? `?${query}` : ""}`;
}

/** Take over all of a URL but its text, and return that: token ids, and where the last continuation began.
 * @param {string} hash */
export function fromHash(hash) {
  const [path, search] = hash.replace(/^#\/?/, "").split("?"), query = new URLSearchParams(search);
  const number = (/** @type {string} */ name) =>
    (/^\d+(\.\d+)?$/.test(query.get(name)) ? Number(query.get(name)) : null);
  batch(() => {
    const given = Object.entries(DEFAULTS).map(([name, usual]) => [name, number(name) ?? usual]);
    const layer = number("layer"), one = number("head");
    settings.value = Object.fromEntries(given);
    view.value = VIEWS.includes(path) ? path : model.value?.chat_first ? "chat" : "write";
    head.value = layer === null || one === null ? null : { layer, head: one };
    read.value = number("read");
    checkpoint.value = query.get("checkpoint");
    other.value = query.get("other");
  });
  const tokens = (query.get("t") ?? "").split(".").map((id) => parseInt(id, RADIX)).filter((id) => id >= 0);
  return { ids: tokens, from: number("from") ?? 0, at: number("at") };
}
