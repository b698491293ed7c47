// The logic of the page that needs no browser: `node --test tests/tools/serving/page`.

import assert from "node:assert/strict";
import { test } from "node:test";
import { closest, decades, smoothed, steps, thinned } from "../../../../tools/serving/page/chart.js";
import { batch, derived, effect, state } from "../../../../tools/serving/page/reactive.js";
import * as store from "../../../../tools/serving/page/store.js";

const token = (id, text = String(id)) => ({ id, text });

test("an effect runs after each change of what it read last, and of nothing else", () => {
  const which = state("a"), a = state(1), b = state(10), seen = [];
  effect(() => seen.push(which.value === "a" ? a.value : b.value));
  b.value = 11;
  a.value = 2;
  a.value = 2; // the same
  which.value = "b";
  a.value = 3;
  b.value = 12;
  assert.deepEqual(seen, [1, 2, 11, 12]);
});

test("what is derived follows, and several changes are one", () => {
  const a = state(1), b = state(2), sum = derived(() => a.value + b.value), seen = [];
  effect(() => seen.push(sum.value));
  batch(() => {
    a.value = 10;
    b.value = 20;
  });
  assert.deepEqual(seen, [3, 30]);
  assert.equal(sum.peek(), 30);
});

test("effects that set each other off are an error, not a page that hangs", () => {
  const a = state(0);
  assert.throws(() => effect(() => { a.value = a.value + 1; }), /without end/);
});

test("undo and redo lose nothing, and a change ends what could be made again", () => {
  const texts = [[token(1)], [token(1), token(2)], [token(3)]].map((tokens) => ({ tokens, from: 0 }));
  for (const text of texts) store.change(text);
  store.undo();
  store.undo();
  assert.equal(store.text.peek(), texts[0]);
  store.undo(store.future, store.past);
  assert.equal(store.text.peek(), texts[1]);
  assert.equal(store.at.peek(), 0); // the chosen place stays where it can
  store.change(texts[2]);
  store.undo(store.future, store.past);
  assert.equal(store.text.peek(), texts[2]);
});

test("a URL has the text, the place, the settings and the view", () => {
  store.change({ tokens: [token(7), token(50256), token(0)], from: 2 }, 1);
  store.settings.value = { ...store.DEFAULTS, temperature: 0, seed: 5 };
  store.head.value = { layer: 3, head: 1 };
  store.checkpoint.value = "iter-5";
  store.view.value = "loss";
  const hash = store.toHash();
  store.settings.value = store.DEFAULTS;
  store.view.value = "write";
  const { ids, from, at } = store.fromHash(hash);
  assert.deepEqual([ids, from, at], [[7, 50256, 0], 2, 1]);
  assert.equal(store.view.peek(), "loss");
  assert.deepEqual(store.settings.peek(), { ...store.DEFAULTS, temperature: 0, seed: 5 });
  assert.deepEqual(store.head.peek(), { layer: 3, head: 1 });
  assert.equal(store.checkpoint.peek(), "iter-5");
  assert.deepEqual(store.fromHash("#/nonsense?t=!&temperature=x&layer=-1").ids, []);
  assert.deepEqual([store.view.peek(), store.settings.peek().temperature], ["write", 0.8]);
});

test("of a conversation only answers were learned, each with the token that ends it", () => {
  const [start, user, model, end] = [0, 1, 2, 3];
  store.model.value = { marks: { special: [start, end], answer: [start, model], ends: [end] } };
  const learned = (ids) => {
    store.change({ tokens: ids.map((id) => token(id)), from: 0 });
    return ids.filter((_, i) => store.learned.peek()[i]);
  };
  assert.deepEqual(learned([start, user, 7, end, start, model, 8, 9, end, start, user, 7, end, start, model, 6]), [8, 9, end, 6]);
  assert.deepEqual(learned([start, user, 7, end]), []);
  assert.deepEqual(learned([7, 8]), [7, 8]); // no conversation
  store.model.value = null;
});

test("a part of a text has the chosen place, and is as late as it can be", () => {
  for (const [total, place, most] of [[10, 9, 4], [10, 2, 4], [10, 7, 4], [3, 1, 4], [10, 10, 4], [10, 0, 4]]) {
    const [start, end] = store.part(total, place, most);
    assert.ok(end - start === Math.min(total, most) && end <= total);
    assert.ok(place === 0 || (start < place && place <= end)); // the token before it is there
  }
});

test("an edited text keeps what is known of its beginning", () => {
  const before = [{ ...token(1), probability: 0.5 }, token(2)], after = store.merged(before, [token(1), token(3)]);
  assert.equal(after[0], before[0]);
  assert.deepEqual(after[1], { ...token(3), mine: true });
});

test("axes have round numbers around the values", () => {
  assert.deepEqual(steps(0.12, 0.88, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(steps(5, 5, 3), [4, 6]);
  assert.deepEqual(decades(0.03, 7), [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]);
});

test("curves are thinned and smoothed by means, and found by their nearest point", () => {
  const line = Array.from({ length: 1000 }, (_, i) => [i, i]);
  const thin = thinned(line, 100);
  assert.equal(thin.length, 100);
  assert.deepEqual(thin[0], [5, 4.5]);
  assert.deepEqual(smoothed([[0, 2], [1, 2], [2, 2]], 0.9).map(([, y]) => Number(y.toFixed(9))), [2, 2, 2]);
  assert.deepEqual(closest(line, 41.6), [42, 42]);
  assert.deepEqual(closest([[3, 1]], 100), [3, 1]);
});
