// The view Rollouts: how a run learned from rewards. The same questions were answered at each evaluation.

import { get, post } from "./api.js";
import { answer } from "./answer.js";
import { chart, plain } from "./chart.js";
import { bars, byId, el, mean } from "./dom.js";
import { derived, effect, state } from "./reactive.js";
import { model, view } from "./store.js";
import { gained } from "./tokens.js";

/** @typedef {{tokens: number[], text: string, reward: number, advantage: number, logprobs: number[],
 * before: number[]}} Rollout */
/** @typedef {{iter: number, task: string, question: string, prompt: number[], answers: Rollout[]}} Group */

const COLOURS = 3;

const seen = state({ rollouts: /** @type {Group[]} */ ([]), names: {} });
const question = state(""), when = state(Infinity); // the place of the evaluation among those of the question
const showRewards = chart(byId("rewards"), { title: "Mean reward of the groups of a task, by iteration" });

/** The groups of each question, in the order of iterations. */
const asked = derived(() => Map.groupBy(seen.value.rollouts, ({ task, question }) => `${task}: ${question}`));

byId("question").addEventListener("change", ({ target }) => { question.value = target.value; });
byId("when").addEventListener("input", ({ target }) => { when.value = target.valueAsNumber; });
effect(() => {
  if (view.value === "rollouts" && model.value) load(); // again when there is a newer checkpoint
});
effect(() => {
  byId("learned").hidden = !asked.value.size;
  byId("question").replaceChildren(...[...asked.value.keys()].map((name) => el("option", { value: name }, name)));
  if (!asked.value.has(question.peek())) question.value = asked.value.keys().next().value ?? "";
  const tasks = Map.groupBy([...asked.value.values()].flat(), ({ task }) => task);
  showRewards([...tasks].map(([name, groups], i) => ({ name, kind: "dots", colour: (i % COLOURS) + 1,
    hollow: i >= COLOURS, points: [...Map.groupBy(groups, ({ iter }) => iter)]
      .map(([iter, groups]) => [iter, mean(groups.map(meanReward))]).sort(([a], [b]) => a - b) })));
});
effect(() => {
  const groups = asked.value.get(question.value) ?? [], i = Math.min(when.value, groups.length - 1);
  byId("question").value = question.value;
  byId("later").hidden = groups.length < 3;
  byId("when").max = groups.length - 1;
  byId("when").value = i;
  byId("when-named").textContent = `iteration ${groups[i]?.iter}`;
  byId("groups").replaceChildren(...[...new Set([groups[0], groups[i]])].filter(Boolean).map(drawn));
});

async function load() {
  try {
    seen.value = await get("inside/rollouts");
    byId("rollouts-note").textContent = seen.value.rollouts.length ? ""
      : "There are no rollouts yet: rl.py writes them at each evaluation of a run that learns from rewards.";
  } catch (error) {
    byId("rollouts-note").textContent = error.message;
  }
}

const meanReward = ({ answers }) => mean(answers.map(({ reward }) => reward));

/** Equal answers are shown once, the best first. @param {Group} group */
function drawn({ iter, prompt, answers }) {
  const most = Math.max(...answers.map(({ advantage }) => Math.abs(advantage))) || 1;
  const different = [...Map.groupBy(answers, ({ tokens, reward }) => `${reward} ${tokens}`).values()];
  const items = different.sort(([a], [b]) => b.reward - a.reward).map(({ length, 0: one }) => {
    const { tokens, reward, advantage, logprobs, before } = one;
    const tints = tokens.map((_, t) => (logprobs[t] - before[t]) / Math.LN2)
      .map((bits) => gained(bits, `${signed(bits)} bits`));
    const whole = async () => ({ tokens: (await post("inside/tokens", { text: [...prompt, ...tokens] })).tokens,
      from: prompt.length });
    const [text, ...tools] = answer(tokens.map((id) => ({ id, text: seen.peek().names[id] })), tints, whole);
    return el("li", { class: "turn" }, text, el("div", { class: "row faint" },
      `reward ${plain(reward)}, advantage ${signed(advantage)}${length > 1 ? `, ${length} times` : ""}`,
      advantage !== 0 && el("span", { "data-side": advantage < 0 ? "bad" : "good", title: "advantage" },
        bars(Math.abs(advantage) / most)),
      ...tools));
  });
  const title = `Iteration ${iter}: mean reward ${plain(meanReward({ answers }))}`;
  return el("div", { class: "card" }, el("h3", {}, title), el("ul", { class: "turns" }, ...items));
}

const signed = (x) => `${x < 0 ? "−" : x > 0 ? "+" : ""}${plain(Math.abs(x))}`;
