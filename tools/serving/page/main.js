// Starts the page: the tabs, the URL, the model's name, and the key if the server asks for one. A view is a class,
// made when it is first shown; it has `tints()` if it tints the shared text in its own way.

import { get, onKeyWanted, post, useKey } from "./api.js";
import { byId, short } from "./dom.js";
import * as kept from "./history.js";
import { likelihoods } from "./looked.js";
import { effect, state } from "./reactive.js";
import { change, choose, fromHash, ids, model, text, toHash, view } from "./store.js";
import { Attention } from "./attention.js";
import { Lens } from "./lens.js";
import { Loss } from "./loss.js";
import "./path.js";
import { count, Run } from "./run.js";
import { area, editing, showText } from "./textcard.js";
import { surprise } from "./tokens.js";

const EVERY = 1000; // milliseconds between looks at what is served
const SOON = 150; // milliseconds until the URL follows a change: browsers allow few changes a second

const tabs = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[role=tab]")]);
const views = { attention: Attention, lens: Lens, loss: Loss, run: Run };
const made = state(/** @type {{[view: string]: any}} */ ({}));

effect(() => {
  for (const tab of tabs) {
    const name = tab.getAttribute("aria-controls"), mine = name === view.value;
    tab.setAttribute("aria-selected", String(mine));
    tab.tabIndex = mine ? 0 : -1;
    byId(name).hidden = !mine;
  }
  byId("work").hidden = view.value === "run";
  for (const lead of document.querySelectorAll(".lead")) {
    lead.toggleAttribute("hidden", lead.getAttribute("data-view") !== view.value);
  }
});

effect(() => {
  const name = view.value;
  if (model.value && name in views && !made.peek()[name]) made.value = { ...made.peek(), [name]: new views[name]() };
});

showText(() => made.value[view.value]?.tints?.() ?? likelihoods().map(surprise));

// The URL

let timer = 0, shown = "";

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
  const name = view.value;
  const known = !shown || shown === name || location.hash.startsWith(`#/${name}`);
  if (!known) history.pushState({ ours: true }, "", toHash());
  shown = name;
});

addEventListener("popstate", (event) => {
  if (event.state?.ours) view.value = location.hash.replace(/^#\/?/, "").split("?")[0]; // the text stays as it is now
  else open(fromHash(location.hash));
});

/** Show the text of a URL: its tokens, and the chosen place. */
async function open(wanted) {
  if (!wanted.ids.length || String(wanted.ids) === String(ids.peek())) return;
  try {
    const { tokens } = await post("inside/tokens", { text: wanted.ids });
    change({ tokens, from: Math.min(wanted.from, tokens.length) }, wanted.at ?? tokens.length - 1);
  } catch (error) {
    byId("message").textContent = `The text of this link is not one of this model. ${error.message}`;
  }
}

// The model

async function start() {
  try {
    model.value = await get("inside/model");
  } catch (error) {
    byId("model").textContent = error.message;
    return;
  }
  byId("key").hidden = true;
  const wanted = fromHash(location.hash), before = kept.mine();
  if (area.value) return; // somebody types already
  if (before && (history.state?.ours || !wanted.ids.length)) kept.open(before);
  else if (wanted.ids.length) await open(wanted);
  else await example();
  if (wanted.at !== null) choose(wanted.at);
  editing.value = !text.peek().tokens.length;
}

/** Begin with a part of the validation text; without one with an empty field. */
async function example() {
  try {
    const { tokens } = await get("inside/example");
    if (!area.value) change({ tokens, from: tokens.length, example: true });
  } catch {
    area.focus({ preventScroll: true });
  }
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
    if (!model.peek() && version && byId("key").hidden) await start();
    else if (model.peek() && version !== model.peek().version) model.value = await get("inside/model");
  } catch {
    byId("status").textContent = "· the server does not answer";
  }
  setTimeout(watch, EVERY);
}

for (const tab of tabs) tab.addEventListener("click", () => { view.value = tab.getAttribute("aria-controls"); });
byId("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length];
  view.value = next.getAttribute("aria-controls");
  next.focus();
});

onKeyWanted(() => {
  byId("key").hidden = false;
  byId("key-field").focus();
});
byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key-field").value);
  start();
});
fromHash(location.hash);
watch();
