// The server's answers (api.js) in a page that is one file, which html_file.py writes.

import { Cache, GPT, add, softmax } from "./model.js";
import { Tokenizer } from "./tokenizer.js";

const LIKELIEST = 10; // tokens of a place
const ROOM = 256; // tokens of a long context that stay free for an answer
const AT_ONCE = 4; // tokens, after which the page may draw
const PAUSE = 40; // milliseconds of work, after which it does
const BETWEEN = 150; // milliseconds between the parts of a text, for each of which the page draws all of it

// How numbers are kept; `row` is the last axis. `take` returns the next ones.
const KEPT = {
  float32: (take, n) => take(Float32Array, n),
  bfloat16: (take, n) => new Float32Array(new Uint32Array(take(Uint16Array, n)).map((x) => x << 16).buffer),
  int8: (take, n, row) => {
    const scales = take(Float32Array, n / row);
    return new Float32Array(take(Int8Array, n)).map((x, i) => x * scales[Math.floor(i / row)]);
  },
};

export const loaded = load();
loaded.catch(() => {}); // each question tells it

/** Read the model. The file may be somebody else's, and is data alone. */
async function load() {
  const [told, kept] = ["served", "weights"].map((id) => document.getElementById(id)?.textContent), weights = {};
  try {
    const { sha256, ...served } = JSON.parse(told), { config, parameters } = served.shown;
    const letters = atob(kept), bytes = new Uint8Array(letters.length).map((_, i) => letters.charCodeAt(i));
    const digest = await crypto.subtle?.digest("SHA-256", bytes); // lacking on a page that came by http
    let at = 0;
    const take = (Numbers, n) => new Numbers(bytes.buffer.slice(at, at += n * Numbers.BYTES_PER_ELEMENT));
    for (const { name, shape, dtype } of parameters) {
      const path = name.split("."), last = path.pop();
      if (path[0] === "blocks" && shape[0] !== config.n_layer) throw new Error("it has other layers");
      const module = path.reduce((tree, part) => (tree[part] ??= {}), weights);
      module[last] = { shape, data: KEPT[dtype](take, shape.reduce((a, b) => a * b, 1), shape.at(-1)) };
    }
    const fits = at === bytes.length && String(weights.wte.shape) === String([config.vocab_size, config.n_embd]);
    const changed = digest && String(new Uint8Array(digest)) !== String(sha256);
    if (!fits || changed) throw new Error("it has other weights");
    return { ...served, model: GPT(config, weights), tokenizer: Tokenizer(served.tokenizer) };
  } catch (error) {
    throw new Error(`This file is damaged (${error.message}): get it again.`);
  }
}

let rested = 0;
let writer = /** @type {AbortSignal | null} */ (null); // that of the text being written, for which all else waits

/** Let the page answer its reader, if it could not for a while. @param {AbortSignal} signal */
async function rest(signal) {
  const waits = () => writer && signal !== writer;
  while (waits() || performance.now() - rested > PAUSE) {
    await new Promise((done) => setTimeout(done, waits() ? PAUSE : 0));
    signal?.throwIfAborted();
    rested = performance.now();
  }
}

/** @param {Float32Array} x (T, size) @returns {Float32Array[]} */
const rows = (x, size) => Array.from({ length: x.length / size }, (_, t) => x.subarray(t * size, (t + 1) * size));

/** The indices of the n largest values. @param {Float32Array} x */
const largest = (x, n) => [...x.keys()].sort((a, b) => x[b] - x[a]).slice(0, n);

/** Probabilities after temperature, top-k and top-p, as generation/sampling.py has them; ties are kept.
 * @param {Float32Array} logits @param {number | null} top_k */
function drawnFrom(logits, temperature, top_k, top_p) {
  const most = logits.reduce((a, b) => Math.max(a, b)), first = logits.indexOf(most);
  if (temperature === 0) return logits.map((_, id) => (id === first ? 1 : 0));
  let kept = logits.map((x) => (x - most) / temperature);
  const order = top_k || top_p < 1 ? largest(kept, kept.length) : [];
  const keep = (least) => { kept = kept.map((x) => (x < least ? -Infinity : x)); };
  if (top_k) keep(kept[order[Math.min(top_k, order.length) - 1]]);
  if (top_p < 1) {
    const probabilities = softmax(kept);
    let sum = 0;
    keep(kept[order.find((id) => (sum += probabilities[id]) >= top_p) ?? order.at(-1)]);
  }
  return softmax(kept);
}

/** Numbers from 0 to 1 by a seed: splitmix32, of which the server knows nothing. @param {number} seed */
function generator(seed) {
  return () => {
    seed = (seed + 0x9e3779b9) | 0;
    let z = Math.imul(seed ^ (seed >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return ((z ^ (z >>> 15)) >>> 0) / 2 ** 32;
  };
}

/** What the server would answer, by its path. @param {any} served what is in the file */
function answers(served) {
  const { shown, model, tokenizer, template, ends } = served, { config, vocab_size, version } = shown;
  const { n_layer: L, n_head: H, kv_heads: K, head_size: C, n_embd: D, block_size } = config;
  const half = Math.max(1, block_size >> 1); // what is kept of a text that grows past block_size

  function read(text) {
    const ids = typeof text === "string" ? tokenizer.encode(text) : text;
    if (ids.length && ids.every((id) => id < vocab_size)) return ids;
    throw new Error("These are no tokens of this model.");
  }

  function told(ids, more = {}) {
    const spell = tokenizer.stream();
    return { tokens: ids.map((id) => ({ id, text: spell(id) })), ...more };
  }

  const names = (ids) => Object.fromEntries([...new Set(ids)].map((id) => [id, tokenizer.spelling(id)]));

  /** The tokens of a conversation, and of the answer's beginning, as data/conversations.py encodes them. */
  function prompt(messages) {
    const parts = [[template.between[`>${messages[0].role}`], true]];
    for (const [i, { role, content }] of messages.entries()) {
      const after = template.between[`${role}>${messages[i + 1]?.role ?? ""}`];
      if (after == null) throw new Error("The chat template has no such order of messages: begin anew.");
      if (tokenizer.spellsSpecial(content)) parts.push([content, false], [after, true]);
      else if (template.apart && role === "assistant") parts.push([content + after, true]);
      else parts.at(-1)[0] += content + after;
    }
    const ids = tokenizer.join(parts);
    return template.start === null || ids[0] === template.start ? ids : [template.start, ...ids];
  }

  /** The prompt of the last exchanges that fit, and how many messages it leaves out, as data/conversations.py does. */
  function newest({ messages }) {
    const system = messages[0].role === "system" ? 1 : 0, longest = block_size - Math.min(ROOM, Math.floor(block_size / 3));
    const starts = messages.flatMap(({ role }, i) => (role === "user" ? [i] : [])).slice(1);
    let ids = prompt(messages), leftOut = 0;
    while (ids.length > longest && starts.length) {
      leftOut = starts.shift() - system;
      ids = prompt([...messages.slice(0, system), ...messages.slice(system + leftOut)]);
    }
    return told(ids, { messages_left_out: leftOut });
  }

  /** Pass tokens through the model, some at a time. Return the features, (T, D). */
  async function features(ids, signal, cache = Cache(config), through = undefined) {
    const found = new Float32Array(ids.length * D);
    for (let i = 0; i < ids.length; i += AT_ONCE) {
      await rest(signal);
      found.set(model.features(ids.slice(i, i + AT_ONCE), cache, through), i * D);
    }
    return found;
  }

  /** Look into the model: for each layer the residual stream before it, what attention and MLP add, and all heads. */
  async function inside(text, signal) {
    const ids = read(text), cache = Cache(config);
    const seen = Array.from({ length: L }, () => ({ stream: [], attn: [], mlp: [], queries: [], weights: [] }));
    const last = []; // the stream after the last layer
    let calls = 0;
    await features(ids, signal, cache, (block, x, attend) => {
      const layer = seen[calls++ % L];
      const attn = block.attn(block.ln_1(x), (q, k, v) => attend(q, k, v, (weights, query) => {
        layer.queries.push([...query]); // of token t and head h at t * H + h
        layer.weights.push([...weights]);
      }));
      const mlp = block.mlp(block.ln_2(add(x, attn))), y = add(add(x, attn), mlp);
      for (const [name, z] of Object.entries({ stream: x, attn, mlp })) layer[name].push(...rows(z, D));
      if (layer === seen[L - 1]) last.push(...rows(y, D));
      return y;
    });
    return { ids, seen, cache, streams: [...seen.map(({ stream }) => stream), last] };
  }

  /** All heads' weights: the rows up to the diagonal, in 65535ths. */
  async function attention({ text }, signal) {
    const { ids, seen } = await inside(text, signal), T = ids.length;
    const shares = seen.flatMap(({ weights }) => Array.from({ length: H }, (_, h) =>
      ids.map((_, t) => weights[t * H + h].map((x) => Math.round(65535 * x))))).flat(2);
    const letters = [...new Uint8Array(Uint16Array.from(shares).buffer)].map((byte) => String.fromCharCode(byte));
    return told(ids, { shape: [L, H, T], weights: btoa(letters.join("")) });
  }

  /** How a head comes to the weight with which a token attends to another. */
  async function cell({ text, layer, head, reader, read: column }, signal) {
    const { seen, cache } = await inside(text, signal), shared = Math.floor((head * K) / H);
    const [keys, values] = [cache.keys, cache.values].map((all) =>
      rows(all[layer], C).filter((_, i) => i % K === shared).slice(0, reader + 1).map((x) => [...x]));
    const query = seen[layer].queries[reader * H + head], weights = seen[layer].weights[reader * H + head];
    const scores = keys.map((key) => key.reduce((sum, x, c) => sum + x * query[c], 0) / Math.sqrt(C));
    const output = query.map((_, c) => values.reduce((sum, value, s) => sum + weights[s] * value[c], 0));
    return { query, key: keys[column], value: values[column], scores, weights, output };
  }

  /** What the head predicts after each layer, and the norms of the residual stream and of what is added to it. */
  async function lens({ text, k }, signal) {
    const { ids, seen, streams } = await inside(text, signal), likeliest = [], probabilities = [];
    for (const stream of streams) {
      const after = [];
      for (const x of stream) {
        const p = softmax(model.logits(model.ln_f(x))), best = largest(p, k);
        after.push({ best, shares: best.map((id) => p[id]) });
        await rest(signal);
      }
      likeliest.push(after.map(({ best }) => best));
      probabilities.push(after.map(({ shares }) => shares));
    }
    const norms = (vectors) => vectors.map((x) => Math.hypot(...x));
    return told(ids, { likeliest, probabilities, names: names(likeliest.flat(2)), stream_norms: streams.map(norms),
      attn_norms: seen.map(({ attn }) => norms(attn)), mlp_norms: seen.map(({ mlp }) => norms(mlp)) });
  }

  /** What could stand at each place of a text, in the windows in which the model writes. */
  async function places({ text, prompt, temperature, top_k, top_p }, signal) {
    const ids = read(text), found = [];
    for (let start = Math.max(0, prompt - block_size), first = start + 1; first <= ids.length;) {
      const last = Math.min(ids.length, start + block_size), x = await features(ids.slice(start, last), signal);
      for (let i = first; i <= last; i++) {
        const logits = model.logits(rows(x, D)[i - 1 - start]);
        const before = softmax(logits), after = drawnFrom(logits, temperature, top_k, top_p);
        const likeliest = largest(before, LIKELIEST), of = (p) => likeliest.map((id) => p[id]);
        found.push({ likeliest, likeliest_before: of(before), likeliest_after: of(after), before: before[ids[i]],
          after: after[ids[i]] });
        await rest(signal);
      }
      [first, start] = [last + 1, last + 1 - half];
    }
    const unseen = Array.from({ length: ids.length + 1 - found.length }, () => null);
    return told(ids, { places: [...unseen, ...found], names: names([...ids, ...found.flatMap((x) => x.likeliest)]) });
  }

  /** Draw tokens, and yield what came since the last time. */
  async function* write({ prompt, max_tokens, seed, temperature, top_k, top_p }, signal) {
    const random = generator(seed), spell = tokenizer.stream();
    let context = read(prompt), cache = Cache(config), drawn = [];
    if (context.length > block_size) throw new Error(`The model takes ${block_size} tokens, not ${context.length}.`);
    context.slice(-8).forEach(spell); // a character may begin there
    let shown = 0;
    for (let made = 0; made < max_tokens; made++) {
      const x = await features(context.slice(cache.length), signal, cache), logits = model.logits(x.subarray(-D));
      const id = chosen(drawnFrom(logits, temperature, top_k, top_p), random());
      if (ends.includes(id)) break;
      drawn.push({ id, text: spell(id), probability: softmax(logits)[id] });
      context = [...context, id];
      if (context.length > block_size) [context, cache] = [context.slice(-half), Cache(config)];
      if (performance.now() - shown < BETWEEN) continue;
      yield { more: drawn, by: version };
      [drawn, shown] = [[], performance.now()];
    }
    if (drawn.length) yield { more: drawn, by: version };
  }

  return { write, "inside/model": () => shown, "inside/checkpoints": () => ({ checkpoints: [] }),
    "inside/example": () => told(read(shown.example)), "inside/tokens": ({ text }) => told(read(text)),
    "inside/chat": newest, "inside/places": places, "inside/attention": attention,
    "inside/cell": cell, "inside/lens": lens, "inside/questions": () => ({ questions: shown.questions ?? [] }) };
}

/** The token below which a share of the probabilities lies. @param {Float32Array} probabilities */
function chosen(probabilities, share) {
  let left = share;
  const found = probabilities.findIndex((p) => (left -= p) < 0);
  return found >= 0 ? found : probabilities.findLastIndex((p) => p > 0); // the sum is not exactly 1
}

export const get = (path) => post(path, {});

/** @type {typeof import("./api.js").post} */
export async function post(path, body, signal) {
  return answers(await loaded)[path](body, signal);
}

/** @type {typeof import("./api.js").stream} */
export async function* stream(body, signal) {
  writer = signal;
  try {
    yield* answers(await loaded).write(/** @type {any} */ (body), signal);
  } finally {
    if (writer === signal) writer = null;
  }
}

/** Whatever else is asked tells of a damaged file. */
export const health = () => loaded.then(({ shown: { version } }) => ({ status: "ok", version }),
  () => ({ status: "ok", version: "damaged" }));
