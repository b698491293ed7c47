// Starts the page: the tabs, the URL, and the model's name.

import { get, health, post } from "./api.js";
import { arrows, byId, short } from "./dom.js";
import * as kept from "./history.js";
import { effect } from "./reactive.js";
import { at, change, choose, fromHash, ids, model, toHash, view } from "./store.js";
import "./chat.js";
import "./lens.js";
import "./path.js";
import "./rollouts.js";
import { count } from "./run.js";
import { area, editing, present } from "./textcard.js";
import { say } from "./writing.js";

const EVERY = 1000; // milliseconds between looks at what is served
let served = ""; // the checkpoint, and since when

const tabs = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[role=tab]")]);

effect(() => {
  const name = view.value, lacks = model.value?.lacks.concat(model.value.chat && "chat") ?? ["chat", "rollouts"];
  for (const tab of tabs) {
    const mine = tab.getAttribute("aria-controls") === name;
    tab.ariaSelected = String(mine);
    tab.tabIndex = mine ? 0 : -1;
    tab.hidden = !mine && lacks.includes(tab.getAttribute("aria-controls"));
  }
  document.body.dataset.view = name;
  for (const part of document.querySelectorAll("[data-view]")) {
    part.toggleAttribute("hidden", !part.getAttribute("data-view").split(" ").includes(name));
  }
});

// The URL, which history.js keeps

effect(() => {
  if (location.hash.startsWith(`#/${view.value}`) || !model.peek()) return;
  history[location.hash ? "pushState" : "replaceState"]({ ours: true }, "", toHash());
});

addEventListener("popstate", (event) => {
  if (event.state?.ours) view.value = location.hash.replace(/^#\/?/, "").split("?")[0]; // the text stays as it is now
  else open(fromHash(location.hash));
});

/** Show the text of a URL: its tokens, and the chosen place. */
async function open(wanted) {
  if (!wanted.ids.length || String(wanted.ids) === String(ids.peek())) return choose(wanted.at ?? at.peek());
  const { tokens } = await post("inside/tokens", { text: wanted.ids });
  await present({ tokens, from: Math.min(wanted.from, tokens.length) }, wanted.at ?? tokens.length - 1);
}

// The model

async function start() {
  model.value = await get("inside/model").catch((error) => { byId("model").textContent = error.message; });
  if (!model.value) return;
  const wanted = fromHash(location.hash), found = kept.mine();
  if (area.value) return; // somebody types already
  const before = found?.model === model.value.name ? found : null;
  if (found && !before && history.state?.ours) wanted.ids = []; // of another model, served here before
  if (before && (history.state?.ours || !wanted.ids.length)) kept.open(before);
  else if (wanted.ids.length) await open(wanted);
  else { // a part of the validation text; without one an empty field
    await get("inside/example").then(({ tokens }) => {
      if (area.value) return;
      change({ tokens, from: tokens.length, example: true });
      editing.value = false;
    }, () => area.focus({ preventScroll: true }));
  }
  if (wanted.at !== null) choose(wanted.at);
}

effect(() => {
  if (!model.value) return;
  const { name, version, config, parameters } = model.value;
  document.title = `${name} · nanoJAXGPT`;
  byId("model").textContent =
    `${name}, ${version} · ${short(count(parameters))} parameters · ${config.n_layer} layers of ${config.n_head} heads`;
});

/** Say how far the server is, and notice a newer checkpoint, or another model after a new start. */
async function watch() {
  try {
    const { status, version, loaded } = await health(), now = `${version} ${loaded}`;
    byId("status").textContent = status === "ok" ? "" : `· ${status}`;
    if (version && !model.peek()) await start().catch((error) => say(error.message, true));
    else if (version && now !== served) {
      const found = await get("inside/model");
      if (found.name !== model.peek().name) return location.reload(); // its tokens are other texts
      model.value = found;
    }
    if (version) served = now;
  } catch {
    byId("status").textContent = "· the server does not answer";
  }
  setTimeout(watch, EVERY);
}

for (const tab of tabs) tab.addEventListener("click", () => { view.value = tab.getAttribute("aria-controls"); });
arrows(byId("tabs"), (right, _, tab) => {
  const there = tabs.filter((one) => !one.hidden), next = there.at((there.indexOf(tab) + right) % there.length);
  next.click();
  next.focus();
});

fromHash(location.hash);
watch();
