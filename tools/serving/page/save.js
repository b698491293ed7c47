// Saves files: the text with all that is known of it as JSON, and the view as a picture.

import { model, settings, text } from "./store.js";

export function saveText() {
  const { name, version } = model.peek(), { tokens, from, by, seed } = text.peek();
  const content = { model: name, checkpoint: by ?? version, prompt_tokens: from, ...settings.peek(), seed: seed ?? null,
    tokens: tokens.map(({ id, text, probability: p }) => ({ id, text, logprob: p == null ? null : Math.log(p) })) };
  save(`${name}.json`, "application/json", JSON.stringify(content, null, 1));
}

/** @param {string} name @param {string} type @param {string} content */
function save(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
