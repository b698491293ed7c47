"""Questions with answers that a program can check, for learning to answer and for testing it.

    python data/tasks.py --n=20000 --to=data/tasks.jsonl        conversations for data/prepare.py --chat=True
    python data/tasks.py --n=20000 --to=data/tasks.jsonl --talk=0.4     with small talk, of data/talk.toml

A task draws a subject, such as two numbers, one of several phrasings, and knows the answer. The subject's
hash decides whether it is for training or for testing: no subject of the one occurs in the other.
"""

import csv
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.command_line import Count, Fraction, Name, Seed, given
from common.errors import UserError, command
from common.files import write_whole
from data.documents import in_validation

Split = Literal["train", "val", "test"]  # val chooses among a run's checkpoints, and test reports
Draw = Callable[[np.random.Generator], tuple[str, str, str]]  # of a subject, a question and its answer
# In English, whatever the user's language.
MONTHS = "January February March April May June July August September October November December".split()
DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
LETTERS = list("abcdefghijklmnopqrstuvwxyz" + 3 * "aeio" + 2 * "lnrst")  # about as often as in English
NUMBERS = {"number": (2, 100), "other": (2, 20), "large": (100, 1000)}  # slots of data/talk.toml
# Functions of Python's library: first lines of docstrings, as 3.11.7 has them.
LIBRARY = [*csv.DictReader(Path(__file__).with_name("library.csv").read_text("utf-8").splitlines())]
TESTED = 0.1  # of the subjects


@dataclass(frozen=True)
class Question:
    task: str
    subject: str  # what it asks about, however it is asked
    text: str
    answer: str


def one_of(random: np.random.Generator, *phrasings: str) -> str:
    return phrasings[random.integers(len(phrasings))]


def word(random: np.random.Generator) -> str:
    """Make up a word of three to ten letters, some of which repeat: real words do not surprise then."""
    letters = random.choice(LETTERS, random.integers(3, 11))
    text = "".join(random.choice(letters, len(letters)) if random.random() < 0.5 else letters)
    return text.capitalize() if random.random() < 0.1 else text


def add(random):
    a, b = random.integers(0, random.choice([10, 50]), 2)
    question = one_of(
        random,
        f"What is {a} + {b}?",
        f"Add {a} and {b}.",
        f"{a} + {b} = ?",
        f"How much is {a} plus {b}?",
        f"What's {a} plus {b}?",
        f"Calculate {a} + {b}.",
        f"What is the sum of {a} and {b}?",
        f"How much is {a} and {b}?",
        f"{a} plus {b}?",
        f"{a} + {b}",
        f"{a}+{b}",
        f"{a}+{b}=?",
    )
    return f"{min(a, b)} {max(a, b)}", question, str(a + b)


def subtract(random):
    a, b = sorted(random.integers(0, 100, 2))
    question = one_of(
        random,
        f"What is {b} - {a}?",
        f"Subtract {a} from {b}.",
        f"{b} - {a} = ?",
        f"How much is {b} minus {a}?",
    )
    return f"{a} {b}", question, str(b - a)


def count(random):
    letter, text = random.choice(list("aeiou")), "".join(word(random).lower() for _ in range(2))
    question = one_of(
        random,
        f"How many times does {letter} occur in {text}?",
        f"Count the letter {letter} in {text}.",
        f"How often is {letter} in the word {text}?",
    )
    return f"{letter} {text}", question, str(text.count(letter))


def order(random):
    n = random.integers(2, 6)
    sizes = random.choice([10, 100], 1 if random.random() < 0.5 else n)  # half of the lists are of one size
    numbers = random.integers(0, sizes, n)
    ordered = ", ".join(map(str, sorted(numbers)))
    between = one_of(random, ", ", ", ", " ", ",")
    last = one_of(random, between, between, between, " and ")
    listed = f"{between.join(map(str, numbers[:-1]))}{last}{numbers[-1]}"
    question = one_of(
        random,
        f"Sort {listed}.",
        f"Sort the numbers {listed}.",
        f"Sort these numbers: {listed}",
        f"Put these in order: {listed}",
        f"Put {listed} in order.",
        f"Put {listed} in order from small to big.",
        f"Put {listed} in ascending order.",
        f"Put the numbers {listed} in order.",
        f"Order {listed}.",
        f"Write {listed} from small to large.",
        f"Sort {listed} from smallest to largest.",
        f"Sort {listed} from lowest to highest.",
        f"{listed} sorted",
    )
    return ordered, question, ordered


def quoted(random: np.random.Generator, text: str) -> str:
    return one_of(random, text, text, text, f"the word {text}", f'"{text}"', f"'{text}'")


def reverse(random):
    text = word(random)
    said = quoted(random, text)
    question = one_of(
        random,
        f"Write {said} backwards.",
        f"Reverse {said}.",
        f"Spell {said} backwards.",
        f"What is {said} backwards?",
        f"What is {said} in reverse?",
        f"What is {said} from its end to its start?",
        f"Turn {said} around.",
        f"How do you write {said} backwards?",
        f"Say {said} backwards.",
        f"Reverse the letters of {said}.",
        f"Reverse this word: {text}",
        f"Reverse my name, {text}.",
        f"Spell my name backwards: {text}",
        f"{said} backwards",
    )
    return min(text.lower(), text[::-1].lower()), question, text[::-1]


def change(random):
    text = word(random).lower()
    old = random.choice(list(text))
    new = random.choice([letter for letter in LETTERS if letter != old])
    said = quoted(random, text)
    mark = one_of(random, "", "", "", "'", '"')
    letter = one_of(random, "", "", "each ", "every ", "all ", "the ", "the letter ") + mark + old + mark
    put = mark + new + mark
    question = one_of(
        random,
        f"Replace {letter} in {said} by {put}.",
        f"Replace {letter} in {said} with {put}.",
        f"Replace {letter} with {put} in {said}.",
        f"Change {letter} to {put} in {said}.",
        f"Change {letter} in {said} to {put}.",
        f"In {said}, change {letter} to {put}.",
        f"Swap {letter} for {put} in {said}.",
        f"Turn {letter} into {put} in {said}.",
    )
    return f"{text} {old}", question, text.replace(old, new)


def date(random):
    month, days = int(random.integers(12)), int(random.integers(1, 15))
    day = int(random.integers(1, DAYS[month] + 1))
    name, over = MONTHS[month], day + days - DAYS[month]
    answer = f"{MONTHS[(month + 1) % 12]} {over}" if over > 0 else f"{name} {day + days}"
    question = one_of(
        random,
        f"Which day is {days} days after {name} {day}?",
        f"It is {name} {day}. What is the date in {days} days?",
        f"{name} {day} plus {days} days?",
    )
    return f"{month} {day} {days}", question, answer


def table(random):
    names: list[str] = []
    while len(names) < 3:
        names += {word(random).capitalize()} - {*names}
    ages, who = random.choice(np.arange(1, 100), 3, replace=False), random.integers(3)
    rows = "; ".join(f"{name} {age}" for name, age in zip(names, ages, strict=True))
    asked = [
        (f"How old is {names[who]}?", str(ages[who])),
        (f"Who is {ages[who]}?", names[who]),
        ("Who is the oldest?", names[ages.argmax()]),
    ]
    question, answer = asked[random.integers(3)]
    return f"{rows} {question}", f"Ages: {rows}. {question}", answer


def library(random):
    module, name, said = LIBRARY[random.integers(len(LIBRARY))].values()
    question = one_of(
        random,
        f"Which function of {module} has the docstring: {said}",
        f"{said} Which function of {module} is that?",
        f"Name the function of {module} that is described so: {said}",
    )
    return f"{module} {name}", question, name


DRAWS = (add, subtract, count, order, reverse, change, date, table, library)
TASKS: dict[str, Draw] = {draw.__name__: draw for draw in DRAWS}


def questions(task: str, split: Split, *seed: int) -> Iterator[Question]:
    """Yield questions of a task without end, each of a subject of the split."""
    random = np.random.default_rng([*seed, *task.encode(), split != "train"])
    while True:
        subject, text, answer = TASKS[task](random)
        if split_of(f"{task} {subject}".encode()) == split:
            yield Question(task, subject, text, answer)


def split_of(subject: bytes) -> Split:
    if not in_validation(subject, TESTED):
        return "train"
    return "val" if in_validation(subject, TESTED / 2) else "test"


def named_tasks(text: str | None, repeated: bool = False) -> list[str]:
    """Return the tasks of a text such as "add,date"; all for None or "all". Raises UserError."""
    names = list(TASKS) if text in (None, "all") else text.split(",")
    if unknown := [name for name in names if name not in TASKS]:
        raise UserError(f"task {unknown[0]}: unknown; known are {', '.join(TASKS)}")
    if len({*names}) < len(names) and not repeated:
        raise UserError(f"--tasks={text}: name each task once")
    return names


def mixed(tasks: list[str], split: Split, *seed: int, first: int = 0) -> Iterator[Question]:
    """Yield questions of several tasks by turns, beginning with turn `first`."""
    first %= len(tasks)
    drawn = {task: questions(task, split, *seed) for task in tasks}
    for task in cycle(tasks[first:] + tasks[:first]):
        yield next(drawn[task])


Exchange = tuple[str, str]  # what the user says, and the answer


def exchanges(tasks: list[str], wrong: float, seed: int) -> Iterator[Exchange]:
    """Yield questions for training, of which a share has the answer of the one before of the same task."""
    random, earlier = np.random.default_rng(seed), {}
    for question in mixed(tasks, "train", seed):
        is_wrong = random.random() < wrong
        yield question.text, earlier.get(question.task, question.answer) if is_wrong else question.answer
        earlier[question.task] = question.answer


@cache
def talk() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("talk.toml").read_text(encoding="utf-8"))


@cache
def entries() -> list[dict[str, Any]]:
    """Return the entries of data/talk.toml, each as often as there are ways to ask."""
    return [entry for entry in talk()["talk"] for _ in entry["ask"]]


def slot(random: np.random.Generator, kind: str) -> str:
    """Draw what a slot holds: half of it is made up, so that a model learns the question around it."""
    if kind in NUMBERS:
        return str(random.integers(*NUMBERS[kind]))
    return one_of(random, *talk()["slots"][kind]) if random.random() < 0.5 else word(random)


def small_talk(random: np.random.Generator) -> list[Exchange]:
    """Draw something to talk about: one exchange, and sometimes a second that builds on it."""
    entry = entries()[random.integers(len(entries()))]
    name, found = slot(random, "name").capitalize(), []

    def fill(text: str) -> str:
        return re.sub(r"{(\w+)}", lambda at: name if at[1] == "name" else slot(random, at[1]), text)

    while entry:
        said, answer = (fill(one_of(random, *entry[part])) for part in ("ask", "answer"))
        found.append((said.lower() if random.random() < 0.3 else said, answer))
        entry = entry.get("then")
    return found


def as_typed(random: np.random.Generator, text: str, answer: str = "") -> str:
    """Write a text as visitors do: some greet, slip, or leave out a capital or a mark."""
    begin, end, slip, lower, bare = random.random(5)
    if begin < 0.15:
        before = one_of(random, "Please", "Hi,", "Hello!", "Ok,", "Can you", "Could you", "Now", "Hey", "So")
        text = f"{before} {text[0].lower()}{text[1:]}"
    if end < 0.1:
        after = one_of(random, "please", "pls", "for me", "lol", "thanks", "now")
        text = f"{text.rstrip('.?!')} {after}"
    first = text.split()[0]  # a slip in a word to reverse would make its answer wrong
    if slip < 0.1 and first.isalpha() and len(first) > 3 and first.lower() != answer[::-1].lower():
        at = random.integers(1, len(first) - 1)
        text = text[:at] + one_of(random, "", text[at + 1]) + text[at] + text[at + 2 :]
    if lower < 0.3:
        text = text[0].lower() + text[1:]
    return text.rstrip(".?!") if bare < 0.3 and text.strip(".?!") else text


def converse(random: np.random.Generator, drawn: Iterator[Exchange], share: float) -> list[Exchange]:
    """Draw a conversation: small talk, of that share, and exchanges of `drawn`."""
    parts = (
        small_talk(random) if random.random() < share else [next(drawn)] for _ in range(random.integers(1, 4))
    )
    return [(as_typed(random, said, answer), answer) for part in parts for said, answer in part]


def as_messages(conversation: list[Exchange]) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [
        {"role": role, "content": x} for both in conversation for role, x in zip(roles, both, strict=True)
    ]


@dataclass(frozen=True)
class TaskOptions:
    """Write questions and answers as conversations."""

    to: Name | None = None  # the .jsonl file
    n: Count = 20000  # conversations
    tasks: Name | None = None  # names with commas between, one twice for more of it; None, all: every task
    wrong: Fraction = 0.0  # share of the questions whose answer is that of another
    talk: Fraction = 0.0  # share of small talk, of data/talk.toml, in conversations of up to three questions
    seed: Seed = 1  # for the questions


def main(argv: list[str]) -> None:
    options = TaskOptions(**given(argv, TaskOptions))
    if options.to is None:
        raise UserError("--to=<file>.jsonl is needed; see --help")
    random = np.random.default_rng(options.seed)
    asked = exchanges(named_tasks(options.tasks, repeated=True), options.wrong, options.seed)
    drawn = (
        converse(random, asked, options.talk) if options.talk else [next(asked)] for _ in range(options.n)
    )
    lines = (json.dumps({"messages": as_messages(conversation)}) for conversation in drawn)
    write_whole(Path(options.to), "\n".join(lines) + "\n")


if __name__ == "__main__":
    command(main)
