// The network, all of its mathematics, as in model.py: token ids in, logits out. It imports nothing of ours.
//     const model = GPT(config, weights), cache = Cache(config);
//     const logits = model.logits(model.features([1, 2, 3], cache)); // (T, V), and the cache holds 3 tokens
//
// A function with the name of one of model.py's classes takes a config and weights, and returns the layer as a
// function. Vectors stand in a Float32Array one after another; their shape is beside the line that makes them:
//
//     T time (new tokens)   D n_embd   H heads   K key/value heads   C head size   F MLP hidden   V vocabulary
//     S tokens in the cache, the new ones included

/** @typedef {{shape: number[], data: Float32Array}} Weight */
/** @typedef {(x: Float32Array) => Float32Array} Layer */
/** @typedef {(weights: Float32Array, query: Float32Array) => void} See gets those of each token and head, in order */
/** @typedef {(q: Float32Array, k: Float32Array, v: Float32Array, see?: See) => Float32Array} Attend */
/** @typedef {{length: number, begun: number, keys: Float32Array[], values: Float32Array[]}} Cache */

/** Keys and values of up to block_size tokens, and where the last one's document begins. @returns {Cache} */
export function Cache({ n_layer, block_size, kv_heads, head_size }) {
  const empty = () => Array.from({ length: n_layer }, () => new Float32Array(block_size * kv_heads * head_size));
  return { length: 0, begun: 0, keys: empty(), values: empty() }; // (S, K, C) for each layer
}

/** x @ weight + bias, with weights (in, out). @param {{weight: Weight, bias?: Weight}} layer @returns {Layer} */
function Linear({ weight: { shape: [size], data: w }, bias }) {
  const out = w.length / size;
  return (x) => {
    const T = x.length / size, y = new Float32Array(T * out);
    for (let t = 0; t < T; t++) {
      const row = y.subarray(t * out, (t + 1) * out);
      if (bias) row.set(bias.data);
      let i = 0;
      for (; i + 8 <= size; i += 8) { // eight at a time take a third of the time
        const [a, b, c, d, e, f, g, h] = x.subarray(t * size + i, t * size + i + 8);
        for (let o = 0, at = i * out; o < out; o++, at++) {
          row[o] += a * w[at] + b * w[at + out] + c * w[at + 2 * out] + d * w[at + 3 * out]
            + e * w[at + 4 * out] + f * w[at + 5 * out] + g * w[at + 6 * out] + h * w[at + 7 * out];
        }
      }
      for (; i < size; i++) for (let o = 0; o < out; o++) row[o] += x[t * size + i] * w[i * out + o];
    }
    return y;
  };
}

/** LayerNorm, or RMSNorm (no mean, no bias), over the last axis. @returns {Layer} */
function Norm({ norm, norm_eps }, { weight, bias }) {
  const size = weight.data.length;
  return (x) => {
    const y = new Float32Array(x.length);
    for (let from = 0; from < x.length; from += size) {
      let mean = 0, square = 0;
      if (norm === "layernorm") for (let i = 0; i < size; i++) mean += x[from + i] / size;
      for (let i = 0; i < size; i++) square += (x[from + i] - mean) ** 2 / size;
      const scale = 1 / Math.sqrt(square + norm_eps);
      for (let i = 0; i < size; i++) {
        y[from + i] = (x[from + i] - mean) * scale * weight.data[i] + (bias ? bias.data[i] : 0);
      }
    }
    return y;
  };
}

/** What rotates the heads of queries or keys by their positions (arXiv:2104.09864), if rope is on. */
function rotation({ position, head_size: C, rope_theta, rope_scaling }, positions) {
  if (position !== "rope") return (x) => x;
  const inv_freq = inverseFrequencies(C, rope_theta, rope_scaling);
  return (x) => { // (T, heads, C)
    const y = new Float32Array(x.length), heads = x.length / (positions.length * C);
    for (let from = 0; from < x.length; from += C) {
      for (let i = 0; i < C / 2; i++) {
        const angle = Math.fround(positions[Math.floor(from / C / heads)] * inv_freq[i]);
        const cos = Math.cos(angle), sin = Math.sin(angle), a = x[from + i], b = x[from + C / 2 + i];
        y[from + i] = a * cos - b * sin;
        y[from + C / 2 + i] = b * cos + a * sin;
      }
    }
    return y;
  };
}

/** Radians per position by which each of the C/2 pairs turns; `scaling` is Llama 3's, for longer contexts. */
function inverseFrequencies(C, theta, scaling) {
  return Float32Array.from({ length: C / 2 }, (_, i) => {
    const inv_freq = theta ** (-2 * i / C), turns = (inv_freq * 8192) / (2 * Math.PI);
    const stays = Math.max(0, Math.min(1, (turns - 1) / (4 - 1)));
    return inv_freq * (stays + (1 - stays) / scaling);
  });
}

/** What appends a layer's keys and values to the cache, and attends to it. Layers call it in order.
 * @param {Cache} cache @param {number[]} positions in their documents @returns {Attend} */
function causalAttention(config, cache, positions) {
  const { n_layer, n_head: H, kv_heads: K, head_size: C, window } = config, before = cache.length;
  const rotate = rotation(config, positions);
  let layer = 0;
  return (q, k, v, see) => {
    const keys = cache.keys[layer % n_layer], values = cache.values[layer++ % n_layer]; // (S, K, C)
    q = rotate(q); // (T, H, C)
    keys.set(rotate(k), before * K * C);
    values.set(v, before * K * C);
    const y = new Float32Array(q.length); // (T, H, C)
    for (let t = 0; t < positions.length; t++) {
      const last = before + t, first = Math.max(last - positions[t], window ? last - window + 1 : 0);
      for (let h = 0; h < H; h++) {
        const shared = Math.floor((h * K) / H), query = q.subarray((t * H + h) * C, (t * H + h + 1) * C);
        const weights = new Float32Array(last + 1); // (S,): 0 for what the token does not attend to
        for (let s = first; s <= last; s++) {
          let score = 0;
          for (let c = 0, at = (s * K + shared) * C; c < C; c++, at++) score += query[c] * keys[at];
          weights[s] = score / Math.sqrt(C);
        }
        weights.set(softmax(weights.subarray(first)), first);
        const sum = y.subarray((t * H + h) * C, (t * H + h + 1) * C);
        for (let s = first; s <= last; s++) {
          for (let c = 0, at = (s * K + shared) * C; c < C; c++, at++) sum[c] += weights[s] * values[at];
        }
        see?.(weights, query);
      }
    }
    return y;
  };
}

export function softmax(x) {
  const most = x.reduce((a, b) => Math.max(a, b), -Infinity), y = x.map((value) => Math.exp(value - most));
  const sum = y.reduce((a, b) => a + b, 0);
  return y.map((value) => value / sum);
}

/** Each token attends to itself and to the tokens before it. */
function Attention(config, weights) {
  const [c_q, c_k, c_v, c_proj] = ["c_q", "c_k", "c_v", "c_proj"].map((name) => Linear(weights[name]));
  const [q_norm, k_norm] = [weights.q_norm, weights.k_norm].map((w) => (w ? Norm(config, w) : (x) => x));
  return (x, attend) => {
    const q = q_norm(c_q(x)), k = k_norm(c_k(x)), v = c_v(x); // (T, H, C), (T, K, C) twice
    return c_proj(attend(q, k, v)); // (T, D)
  };
}

const ACTIVATIONS = {
  gelu: (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  gelu_erf: (x) => (x / 2) * (1 + erf(x / Math.SQRT2)),
  relu2: (x) => Math.max(x, 0) ** 2,
  swiglu: (x, gate) => (gate / (1 + Math.exp(-gate))) * x,
};

/** The error function to 1.5e-7, which Math lacks: Abramowitz and Stegun, formula 7.1.26. */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592].reduce((a, b) => (a + b) * t, 0);
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

/** Linear layers around an activation. */
function MLP({ mlp }, weights) {
  const activation = ACTIVATIONS[mlp];
  const c_gate = weights.c_gate && Linear(weights.c_gate), c_fc = Linear(weights.c_fc), c_proj = Linear(weights.c_proj);
  return (x) => {
    const gate = c_gate?.(x);
    return c_proj(c_fc(x).map((value, i) => activation(value, gate?.[i]))); // (T, F), then (T, D)
  };
}

/** Attention, then an MLP. Each takes a normalised copy of the residual stream x, and is added to x. */
function Block(config, weights) {
  const ln_1 = Norm(config, weights.ln_1), attn = Attention(config, weights.attn);
  const ln_2 = Norm(config, weights.ln_2), mlp = MLP(config, weights.mlp);
  const block = (x, attend) => {
    x = add(x, attn(ln_1(x), attend));
    return add(x, mlp(ln_2(x)));
  };
  return Object.assign(block, { ln_1, attn, ln_2, mlp });
}

export const add = (x, y) => x.map((value, i) => value + y[i]);

/** The language model. The weights of its blocks have a leading axis of layers. */
export function GPT(config, /** @type {any} */ { wte, wpe, blocks, ln_f, lm_head = wte }) {
  const { n_embd: D, n_layer, document_start } = config;
  const layers = Array.from({ length: n_layer }, (_, i) => Block(config, slice(blocks, i)));
  const last = Norm(config, ln_f), logits = Linear({ weight: transposed(lm_head) });

  function embed(tokens, positions) {
    const x = new Float32Array(tokens.length * D); // (T, D)
    for (const [i] of x.entries()) {
      const t = Math.floor(i / D), d = i % D;
      x[i] = wte.data[tokens[t] * D + d] + (wpe ? wpe.data[positions[t] * D + d] : 0);
    }
    return x;
  }

  /** Everything but the head, for tokens that follow those in the cache. `through` passes x through each block.
   * @param {number[]} tokens @param {Cache} cache */
  function features(tokens, cache, through = (block, x, attend) => block(x, attend)) {
    const positions = tokens.map((token, t) => {
      if (token === document_start) cache.begun = cache.length + t;
      return cache.length + t - cache.begun;
    });
    const attend = causalAttention(config, cache, positions);
    let x = embed(tokens, positions);
    for (const block of layers) x = through(block, x, attend);
    cache.length += tokens.length;
    return last(x); // (T, D)
  }

  return { features, ln_f: last, logits }; // logits: (T, D) -> (T, V)
}

/** The weights of layer i. */
function slice(weights, i) {
  if (!weights.data) return Object.fromEntries(Object.entries(weights).map(([name, w]) => [name, slice(w, i)]));
  const { shape: [n, ...shape], data } = weights, size = data.length / n;
  return { shape, data: data.subarray(i * size, (i + 1) * size) };
}

function transposed({ shape: [rows, columns], data }) {
  return { shape: [columns, rows], data: data.map((_, i) => data[(i % rows) * columns + Math.floor(i / rows)]) };
}
