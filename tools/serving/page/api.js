// Talks to the server: JSON questions, and the stream of a text being written. Errors carry what to do.

const BUSY = 429, TRIES = 6; // a busy server is asked again, so often

let key = sessionStorage.getItem("api-key") ?? "";
let askForKey = () => {};

/** @param {() => void} ask */
export function onKeyWanted(ask) {
  askForKey = ask;
}

/** @param {string} value */
export function useKey(value) {
  key = value;
  sessionStorage.setItem("api-key", value); // forgotten when the tab is closed
}

/** @param {string} path */
export async function get(path) {
  return (await send(path, {})).json();
}

/** @param {string} path @param {object} body @param {AbortSignal} [signal] */
export async function post(path, body, signal) {
  return (await send(path, { method: "POST", body: JSON.stringify(body), signal })).json();
}

/** Yield the server's events, until it says that there are no more. Throws an Error for one that is an error.
 * @param {string} path @param {object} body @param {AbortSignal} signal */
export async function* stream(path, body, signal) {
  const answer = await send(path, { method: "POST", body: JSON.stringify({ ...body, stream: true }), signal });
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
      yield parsed;
    }
  }
}

/** @param {string} path @param {RequestInit} options */
async function send(path, options) {
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  /** @type {Response | undefined} */
  let answer;
  for (let tries = 0; !answer || (answer.status === BUSY && tries < TRIES); tries += 1) {
    if (answer) await new Promise((done) => setTimeout(done, 1000 * Number(answer.headers.get("Retry-After") ?? 1)));
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer. See that serve.py still runs, and try again.");
    }
  }
  if (answer.ok) return answer;
  if (answer.status === 401) askForKey();
  const said = await answer.json().catch(() => null);
  const message = said?.error?.message ?? `the server answered ${answer.status}`;
  throw Object.assign(new Error(sentence(message)), { status: answer.status });
}

/** @param {string} text */
function sentence(text) {
  return text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
