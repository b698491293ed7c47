// Starts the page: the tabs, the model's name, and the key if the server asks for one. Each view is a class
// with `elements`, and with `show()` and `hide()` if it does something then.

import { get, onKeyWanted, useKey } from "./api.js";
import { short } from "./dom.js";
import { Write } from "./write.js";
import { Attention } from "./attention.js";
import { Lens } from "./lens.js";
import { Loss } from "./loss.js";
import { Run } from "./run.js";

const views = { write: Write, attention: Attention, lens: Lens, loss: Loss, run: Run };
const tabs = [...document.querySelectorAll("[role=tab]")];

// What the views share: the model's description, and the text that the reader works on, as tokens.
const app = { model: null, tokens: [] };
const made = {};
let shown = null;

function show(name) {
  if (!(name in views)) name = "write";
  for (const tab of tabs) {
    const mine = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", mine);
    tab.tabIndex = mine ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !mine;
  }
  if (!app.model || shown === name) return;
  made[shown]?.hide?.();
  shown = name;
  if (!made[name]) {
    made[name] = new views[name](app);
    document.getElementById(name).append(...made[name].elements);
  }
  made[name].show?.();
}

function place() {
  return location.hash.replace(/^#\/?/, "");
}

async function start() {
  const key = document.getElementById("key");
  try {
    app.model = await get("inside/model");
  } catch (error) {
    document.getElementById("model").textContent = error.message;
    return;
  }
  key.hidden = true;
  describe();
  show(place());
}

// A server that follows a run may serve a newer checkpoint by now.
async function refresh() {
  try {
    Object.assign(app.model, await get("inside/model"));
    describe();
  } catch {
    // the view that is shown says what is wrong when it asks for something
  }
}

// Write what is served into the head of the page.
function describe() {
  const { name, version, config, parameters } = app.model;
  const count = parameters.reduce((sum, { shape }) => sum + shape.reduce((a, b) => a * b, 1), 0);
  document.title = `${name} · nanoJAXGPT`;
  document.getElementById("model").textContent =
    `${name}, ${version} · ${short(count)} parameters · ${config.n_layer} layers of ${config.n_head} heads`;
}

// Say how far the server is with compiling, until it is done.
async function watchCompiling() {
  const { status } = await (await fetch("health")).json();
  document.getElementById("status").textContent = status === "ok" ? "" : `· ${status}`;
  if (status !== "ok") setTimeout(watchCompiling, 1000);
}

for (const tab of tabs) {
  tab.addEventListener("click", () => { location.hash = `#/${tab.getAttribute("aria-controls")}`; });
}
document.getElementById("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  location.hash = `#/${next.getAttribute("aria-controls")}`;
  next.focus();
});
window.addEventListener("hashchange", () => {
  show(place());
  if (app.model) refresh();
});

onKeyWanted(() => {
  document.getElementById("key").hidden = false;
  document.getElementById("key-field").focus();
});
document.getElementById("key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(document.getElementById("key-field").value);
  start();
});
show(place());
start();
watchCompiling();
