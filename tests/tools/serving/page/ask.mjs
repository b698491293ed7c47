// Asks what the page asks of the file that stands in argv, without a browser: a JSON line of [path, body] is answered
// by one of answers; "write" by the tokens that are drawn, "logits" by those of all positions.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const html = readFileSync(process.argv[2], "utf8");
const parts = Object.fromEntries([...html.matchAll(/<script type="text\/plain" id="(\w+)">([^<]*)<\/script>/g)]
  .map(([, id, text]) => [id, { textContent: text }]));
globalThis.document = { getElementById: (id) => parts[id] };
const page = new URL("../../../../tools/serving/page/", import.meta.url);
const { post, stream, loaded } = await import(new URL("offline.js", page));
const { Cache } = await import(new URL("model.js", page));

async function logits({ text }) {
  const { model, shown: { config } } = await loaded;
  return [...model.logits(model.features(text, Cache(config)))];
}

async function write(body) {
  const drawn = [];
  for await (const { more } of stream(body)) drawn.push(...more.map(({ id }) => id));
  return drawn;
}

for await (const line of createInterface({ input: process.stdin })) {
  const [path, body] = JSON.parse(line), own = { logits, write };
  const answer = await (own[path] ?? ((body) => post(path, body)))(body).catch((error) => ({ error: error.message }));
  console.log(JSON.stringify(answer));
}
