// Talks to the server: JSON questions, and the stream of a text being written. Errors carry what to do.

const BUSY = 429, TRIES = 6; // a busy server is asked again, so often

let key = sessionStorage.getItem("api-key") ?? ""; // null: the reader gave none

/** How far the server is, whatever it answers with. */
export const health = async () => (await fetch("health")).json();

export const get = async (path) => (await send(path, {})).json();

export async function post(path, body, signal) {
  return (await send(path, { method: "POST", body: JSON.stringify(body), signal })).json();
}

/** Yield the tokens of a completion as they come, and the checkpoint that draws them. Throws an Error for an event that
 * is one. @param {object} body @param {AbortSignal} signal */
export async function* stream(body, signal) {
  const question = { method: "POST", body: JSON.stringify({ ...body, logprobs: 0, stream: true }), signal };
  const answer = await send("v1/completions", question);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new Error(parsed.error.message);
      yield { more: written(parsed.choices[0]), by: parsed.system_fingerprint };
    }
  }
}

/** The tokens of a part of a completion. Its offsets count characters, of which JavaScript may store one as two.
 * @param {any} choice @returns {import("./store.js").Token[]} */
function written({ text, logprobs }) {
  const { token_ids = [], token_logprobs = [], text_offset = [] } = logprobs ?? {}; // without tokens there are none
  const characters = Array.from(text), places = text_offset.map((place) => place - text_offset[0]);
  return token_ids.map((id, i) => ({
    id, text: characters.slice(places[i], places[i + 1]).join(""), probability: Math.exp(token_logprobs[i]),
  }));
}

async function send(path, options, tries = TRIES) {
  if (key === null) throw new Error("This server asks for a key. Reload the page to enter it.");
  const tried = key, headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  const answer = await fetch(path, { ...options, headers }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. See that serve.py still runs, and try again.");
  });
  if (answer.ok) return answer;
  if (answer.status === BUSY && tries > 1) {
    await new Promise((done) => setTimeout(done, 1000 * Number(answer.headers.get("Retry-After") ?? 1)));
    return send(path, options, tries - 1);
  }
  if (answer.status === 401) {
    if (key === tried) key = prompt("This server asks for a key: the one of --api_key.");
    key = key?.replace(/[^!-~]/g, "") ?? null; // a header cannot hold others, as a space of no width
    if (key !== null) sessionStorage.setItem("api-key", key); // forgotten when the tab is closed
    return send(path, options, tries);
  }
  const said = await answer.json().catch(() => null);
  const message = said?.error?.message ?? `the server answered ${answer.status}`;
  const sentence = message[0].toUpperCase() + message.slice(1) + (/[.!?]$/.test(message) ? "" : ".");
  throw Object.assign(new Error(sentence), { status: answer.status });
}
