// Text to token ids and back: characters, or byte-pair encoding (arXiv:1508.07909), as html_file.py tells it.

/** @typedef {{tokens: string[], special: {[name: string]: number}, added: string[], later: string[],
 * pattern: string, around: number[][], alphabet?: string, merges?: string[], whole?: boolean}} Description
 * added: those of `special` that any text may have; later: those looked for between the others; pattern: of the
 * words of a text; around: what is put before and after it. Of byte pairs, whose tokens are spelled in the characters
 * of 256 bytes, `alphabet`: merges, the first first, or else by the id of what they make; whole: a word that is a
 * token needs none */

const utf8 = new TextEncoder();

/** @param {Description} description */
export function Tokenizer(description) {
  const { tokens, special, added, later, pattern, around: [before, after], alphabet, merges, whole } = description;
  const ids = new Map(tokens.map((token, id) => [token, id])), words = new RegExp(`(${pattern})`, "sv");
  const unspelled = new Set(Object.values(special)), escaped = (name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const longest = (names) => names.toSorted((a, b) => b.length - a.length).map(escaped).join("|") || "(?!)";
  const [any, ordinary] = [Object.keys(special), added].map((names) => [false, true].map((late) =>
    new RegExp(`(${longest(names.filter((name) => later.includes(name) === late))})`)));
  const order = merges && new Map(merges.map((pair, i) => [pair, i]));
  const rank = (a, b) => (order ? order.get(`${a} ${b}`) : ids.get(a + b)) ?? Infinity;

  function idsOf(word) {
    let parts = alphabet ? [...utf8.encode(word)].map((byte) => alphabet[byte]) : [word];
    if (whole && ids.has(parts.join(""))) parts = [parts.join("")];
    for (;;) {
      const ranks = parts.slice(1).map((part, i) => rank(parts[i], part)), least = Math.min(...ranks);
      if (least === Infinity) break;
      const i = ranks.indexOf(least);
      parts.splice(i, 2, parts[i] + parts[i + 1]);
    }
    if (!parts.every((part) => ids.has(part))) throw new Error(`The vocabulary of ${tokens.length} lacks "${word}".`);
    return parts.map((part) => ids.get(part));
  }

  /** The tokens of a part of a text, in which names of special tokens may mean these or be ordinary text. */
  function within(text, [names, ...rest] = any) {
    if (!text.isWellFormed()) throw new Error("The text has half of a character: take it out.");
    if (!names) return text.split(words).filter(Boolean).flatMap(idsOf); // what is between words, too
    return text.split(names).flatMap((part, i) => (i % 2 ? special[part] : within(part, rest))); // the odd ones match
  }

  function bytesOf(id) {
    const token = tokens[id];
    if (!alphabet || token == null || unspelled.has(id)) return utf8.encode(token ?? "\ufffd");
    return Uint8Array.from(token, (letter) => alphabet.indexOf(letter));
  }

  /** What turns the next token's bytes into the text that they complete: "" in the middle of a character. */
  function stream() {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return (id) => decoder.decode(bytesOf(id), { stream: true });
  }

  /** A token's text; for a part of a character its bytes, as OpenAI writes them. */
  function spelling(id) {
    const bytes = bytesOf(id), text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
    return text.includes("\ufffd") ? `bytes:${[...bytes].map((x) => `\\x${x.toString(16).padStart(2, "0")}`).join("")}`
      : text;
  }

  return {
    encode(text) {
      const ids = within(text), begun = before.every((id, i) => id === ids[i]); // the text names these tokens itself
      return [...(begun ? [] : before), ...ids, ...after];
    },
    spellsSpecial: (text) => String(within(text)) !== String(within(text, ordinary)),
    /** The tokens of parts, each with whether a program wrote it: what a person says has no special tokens. */
    join: (parts) => parts.flatMap(([text, ours]) => within(text, ours ? any : ordinary)),
    stream, spelling,
  };
}
