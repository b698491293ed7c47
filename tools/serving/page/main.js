// Starts the page: the tabs, the URL, and the model's name. A view is a function, called when it is first shown; it
// returns the tints of the shared text, if it has its own.

import { get, post } from "./api.js";
import { arrows, byId, short } from "./dom.js";
import * as kept from "./history.js";
import { likelihoods } from "./looked.js";
import { effect, state } from "./reactive.js";
import { change, choose, fromHash, ids, model, text, toHash, view } from "./store.js";
import { showAttention } from "./attention.js";
import { showLens } from "./lens.js";
import { showLoss } from "./loss.js";
import "./path.js";
import { count, showRun } from "./run.js";
import { area, editing, showText } from "./textcard.js";
import { surprise } from "./tokens.js";

const EVERY = 1000; // milliseconds between looks at what is served
const SOON = 150; // milliseconds until the URL follows a change: browsers allow few changes a second

const tabs = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[role=tab]")]);
const views = { attention: showAttention, lens: showLens, loss: showLoss, run: showRun };
const tints = state(/** @type {{[view: string]: any}} */ ({})); // of the views that were shown

effect(() => {
  const name = view.value;
  for (const tab of tabs) {
    const mine = tab.getAttribute("aria-controls") === name;
    tab.ariaSelected = String(mine);
    tab.tabIndex = mine ? 0 : -1;
  }
  for (const part of document.querySelectorAll("[data-view]")) {
    part.toggleAttribute("hidden", !part.getAttribute("data-view").split(" ").includes(name));
  }
  if (model.value && name in views && !(name in tints.peek())) tints.value = { ...tints.peek(), [name]: views[name]() };
});

showText(() => tints.value[view.value]?.() ?? likelihoods().map(surprise));

// The URL

let timer = 0;

function keepUrl() {
  clearTimeout(timer);
  timer = 0;
  if (model.peek()) history.replaceState({ ours: true }, "", toHash());
}

effect(() => {
  void toHash();
  timer ||= setTimeout(keepUrl, SOON);
});
addEventListener("pagehide", keepUrl);

effect(() => {
  const here = `#/${view.value}`;
  if (model.peek() && !location.hash.startsWith(here)) history.pushState({ ours: true }, "", toHash());
});

addEventListener("popstate", (event) => {
  if (event.state?.ours) view.value = location.hash.replace(/^#\/?/, "").split("?")[0]; // the text stays as it is now
  else open(fromHash(location.hash));
});

/** Show the text of a URL: its tokens, and the chosen place. */
async function open(wanted) {
  if (!wanted.ids.length || String(wanted.ids) === String(ids.peek())) return;
  const { tokens } = await post("inside/tokens", { text: wanted.ids });
  change({ tokens, from: Math.min(wanted.from, tokens.length) }, wanted.at ?? tokens.length - 1);
}

// The model

async function start() {
  model.value = await get("inside/model").catch((error) => { byId("model").textContent = error.message; });
  if (!model.value) return;
  const wanted = fromHash(location.hash), before = kept.mine();
  if (area.value) return; // somebody types already
  if (before && (history.state?.ours || !wanted.ids.length)) kept.open(before);
  else if (wanted.ids.length) await open(wanted);
  else { // a part of the validation text; without one an empty field
    await get("inside/example").then(({ tokens }) => {
      if (!area.value) change({ tokens, from: tokens.length, example: true });
    }, () => area.focus({ preventScroll: true }));
  }
  if (wanted.at !== null) choose(wanted.at);
  editing.value = !text.peek().tokens.length;
}

effect(() => {
  if (!model.value) return;
  const { name, version, config, parameters } = model.value;
  document.title = `${name} · nanoJAXGPT`;
  byId("model").textContent =
    `${name}, ${version} · ${short(count(parameters))} parameters · ${config.n_layer} layers of ${config.n_head} heads`;
});

/** Say how far the server is, and notice a newer checkpoint. */
async function watch() {
  try {
    const { status, version } = await (await fetch("health")).json();
    byId("status").textContent = status === "ok" ? "" : `· ${status}`;
    if (!model.peek() && version) await start();
    else if (model.peek() && version !== model.peek().version) model.value = await get("inside/model");
  } catch {
    byId("status").textContent = "· the server does not answer";
  }
  setTimeout(watch, EVERY);
}

for (const tab of tabs) tab.addEventListener("click", () => { view.value = tab.getAttribute("aria-controls"); });
arrows(byId("tabs"), (right, _, tab) => {
  const next = tabs[(tabs.indexOf(tab) + right + tabs.length) % tabs.length];
  next.click();
  next.focus();
});

fromHash(location.hash);
watch();
