// State in, view out: an effect runs again whenever a state that it has read changes.

/** @typedef {{action: () => void, sources: Set<Set<Effect>>}} Effect */
/** @template T @typedef {{value: T, peek: () => T}} State */

/** @type {Effect | null} */
let running = null;
/** @type {Set<Effect>} */
const due = new Set();
let held = 0; // effects wait while it is above 0

/** A value. Effects that read `value` run again when it is set to another; `peek()` reads it without that.
 * @template T @param {T} value @returns {State<T>} */
export function state(value) {
  /** @type {Set<Effect>} */
  const readers = new Set();
  return {
    get value() {
      if (running) {
        readers.add(running);
        running.sources.add(readers);
      }
      return value;
    },
    set value(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const reader of readers) due.add(reader);
      flush();
    },
    peek: () => value,
  };
}

/** A state that is computed from others. @template T @param {() => T} compute @returns {State<T>} */
export function derived(compute) {
  const made = state(/** @type {T} */ (undefined));
  effect(() => { made.value = compute(); });
  return made;
}

/** Run an action now, and again after each change of what it has read. @param {() => void} action */
export function effect(action) {
  due.add({ action, sources: new Set() });
  flush();
}

/** Change several states; effects run once, afterwards. @template T @param {() => T} action @returns {T} */
export function batch(action) {
  held += 1;
  try {
    return action();
  } finally {
    held -= 1;
    flush();
  }
}

function flush() {
  if (held) return;
  held += 1;
  let runs = 0;
  try {
    for (const one of due) {
      due.delete(one);
      if ((runs += 1) > 1000) throw new Error("effects set each other off without end");
      for (const readers of one.sources) readers.delete(one);
      one.sources.clear();
      running = one;
      one.action();
    }
  } finally {
    running = null;
    held -= 1;
  }
}
