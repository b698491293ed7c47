"""Questions of data/tasks.py: their answers are right, and nothing that is tested occurs in training."""

import csv
import json
import re
from datetime import date, timedelta
from itertools import islice

import numpy as np
import pytest

from data.tasks import TASKS, Question, converse, main, mixed, named_tasks, questions, talk
from rewards.answers import is_right
from tests.helpers import ROOT, refusal

SPLITS = {"train": 500, "val": 80, "test": 80}  # questions; for one that is tested, twenty are made
WORD = r"""(?:the word )?["']?(\w+)["']?"""
ONE = r"""["']?(\w)["']?"""
LETTER = rf"(?:each |every |all |the letter |the )?{ONE}"


def draw(task, split="train", n=100, *seed):
    return list(islice(questions(task, split, *(seed or (1,))), n))


def numbers(text):
    return [int(x) for x in re.findall(r"\d+", text)]


def answer_to(question: Question) -> str:
    """Work out the answer from the text alone, in another way than the task does."""
    text, found = question.text, numbers(question.text)
    match question.task:
        case "add":
            return str(sum(found))
        case "subtract":
            return str(max(found) - min(found))
        case "order":
            return ", ".join(str(n) for n in range(100) for _ in range(found.count(n)))
        case "count":
            letter, word = re.search(r"\b[aeiou]\b", text)[0], re.findall(r"\w+", text)[-1]
            return str(len(re.findall(letter, word)))
        case "reverse":
            begin = "^|[Ww]rite |Reverse |Spell |What is |Turn |Say |letters of |word: |backwards: |name, "
            word = re.search(rf"(?:{begin}){WORD}(?: backwards| in| from| around|[?.]|$)", text)[1]
            return "".join(word[i] for i in range(len(word) - 1, -1, -1))
        case "change":
            if parts := re.search(rf"(?:Replace|Change) {LETTER} in {WORD} (?:by|with|to) {ONE}\.", text):
                old, word, new = parts.groups()
            elif parts := re.search(rf"In {WORD}, change {LETTER} to {ONE}", text):
                word, old, new = parts.groups()
            else:
                old, new, word = re.search(rf"{LETTER} (?:to|with|for|into) {ONE} in {WORD}", text).groups()
            return "".join(new if letter == old else letter for letter in word)
        case "date":
            months = {date(2023, m, 1).strftime("%B"): m for m in range(1, 13)}
            (month,) = (m for name, m in months.items() if name in text)
            days, day = found if text.startswith("Which") else found[::-1]
            end = date(2023, month, day) + timedelta(days)
            return f"{end:%B} {end.day}"
        case "table":
            ages = dict(re.findall(r"(\w+) (\d+)(?=[;.])", text.partition(". ")[0] + "."))
            asked = text.partition(". ")[2]
            if asked == "Who is the oldest?":
                return max(ages, key=lambda name: int(ages[name]))
            what = re.search(r"is (\w+)\?", asked)[1]
            return ages.get(what) or next(name for name, age in ages.items() if age == what)
        case "library":
            with (ROOT / "data/library.csv").open(newline="") as file:
                (name,) = {name for module, name, said in csv.reader(file) if said in text and module in text}
            return name


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_answers_are_right_and_asked_in_several_ways(task, split):
    drawn = draw(task, split)
    for question in drawn:
        assert question.answer == answer_to(question), question
        assert is_right(question, question.answer) == is_right(question, f" {question.answer.upper()}. ") == 1
        assert is_right(question, question.answer + "0") == is_right(question, "") == 0
    beginnings = {question.text[-8:] if task == "table" else question.text[:8] for question in drawn}
    assert len(beginnings) >= 3


@pytest.mark.parametrize("task", TASKS)
def test_no_subject_is_of_two_splits(task):
    trained, chosen, tested = ({q.subject for q in draw(task, split, n)} for split, n in SPLITS.items())
    assert trained and chosen and tested
    assert not trained & tested and not trained & chosen and not chosen & tested
    assert task != "reverse" or all(subject.islower() for subject in trained)  # Banana is banana


def test_no_pair_of_numbers_is_added_in_training_and_tested():
    trained, tested = (
        {frozenset(numbers(q.text)) for q in draw("add", split, 500)} for split in ("train", "test")
    )
    assert len(tested) > 40 and not trained & tested


def test_a_seeds_questions_are_the_same_under_every_python():
    """Whose docstrings differ by version: data/library.csv holds them."""
    assert [q.subject for q in draw("library", n=2)] == ["operator neg", "math erfc"]


def test_the_seed_decides():
    assert draw("date") == draw("date") != draw("date", "train", 100, 2)
    by_turns = list(islice(mixed(["add", "date"], "test", 5), 4))
    assert [question.task for question in by_turns] == ["add", "date", "add", "date"]
    twice = list(islice(mixed(["add", "date", "add"], "train", 5), 30))
    assert [q for q in twice if q.task == "add"] == list(islice(questions("add", "train", 5), 20))
    from_the_third = islice(mixed(["add", "date", "order"], "test", 5, first=5), 4)
    assert [question.task for question in from_the_third] == ["order", "add", "date", "order"]


def test_the_command_writes_conversations(tmp_path):
    main([f"--to={tmp_path}/a.jsonl", "--n=5", "--tasks=add,order"])
    lines = [json.loads(line)["messages"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert all([m["role"] for m in line] == ["user", "assistant"] for line in lines)
    asked = list(islice(mixed(["add", "order"], "train", 1), 5))
    assert [[m["content"] for m in line] for line in lines] == [[q.text, q.answer] for q in asked]
    main([f"--to={tmp_path}/a.jsonl", "--n=5", "--tasks=add,order", "--wrong=0.99"])
    lines = [json.loads(line)["messages"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [answer["content"] for _, answer in lines[2:]] == [q.answer for q in asked[:3]]
    assert "spell: unknown; known are add, " in refusal(main, [f"--to={tmp_path}/b.jsonl", "--tasks=spell"])
    assert "name each task once" in refusal(named_tasks, "add,add")
    assert "--to=<file>.jsonl is needed" in refusal(main, [])


def test_talk_comes_between_questions_and_each_exchange_has_both_sides(tmp_path):
    main([f"--to={tmp_path}/a.jsonl", "--n=400", "--tasks=reverse", "--talk=0.5"])
    lines = [json.loads(line)["messages"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(lines) == 400 and {len(line) // 2 for line in lines} >= {1, 2, 3}
    assert all([m["role"] for m in line] == ["user", "assistant"] * (len(line) // 2) for line in lines)
    said = [message["content"] for line in lines for message in line]
    exchanges = list(zip(said[::2], said[1::2], strict=True))
    answers = {answer for entry in talk()["talk"] for answer in entry["answer"]}
    talked = sum(answer in answers or "Your name is" in answer for _, answer in exchanges)
    assert talked > 0.4 * len(exchanges)
    assert not any("{" in text for exchange in exchanges for text in exchange)
    assert any(said.islower() and said[-1].isalpha() for said, _ in exchanges)  # as some visitors type


def test_no_slip_is_in_the_word_to_reverse():
    """Which may come first, as in "otpoio backwards": its answer would be wrong."""
    drawn = ((question.text, question.answer) for question in questions("reverse", "train", 1))
    random = np.random.default_rng(0)
    for _ in range(4000):
        for said, answer in converse(random, drawn, share=0):
            assert answer[::-1].lower() in said.lower()


def test_a_name_is_remembered(tmp_path):
    main([f"--to={tmp_path}/a.jsonl", "--n=2000", "--tasks=add", "--talk=0.9"])
    told = re.findall(r"Hello, (\w+)! What.{,200}?Your name is (\w+)\.", (tmp_path / "a.jsonl").read_text())
    assert len({name for name, _ in told}) > 5 and all(name == again for name, again in told)


def test_talk_alone_can_be_drawn_and_its_answers_can_be_typed():
    for entry in talk()["talk"]:
        assert entry["ask"] and entry["answer"] and {*entry} <= {"ask", "answer", "then"}
        assert all(len(answer.encode()) < 96 for answer in entry["answer"])
