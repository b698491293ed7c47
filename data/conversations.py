"""Conversations to a data set: the chat template makes a text of each, and says which tokens are learned.

    python data/prepare.py --chat=True --source=mine.jsonl --tokenizer=data/mine --to=data/chat

A line of a .jsonl file is an object with "messages" as in OpenAI's API: a list of {"role", "content"}, with
the roles system, user and assistant. A .parquet file, as the hub has them, has a column of such lists.
Learned is what the template puts between {% generation %} and {% endgeneration %}, as in transformers.
Conversations are packed whole into rows of block_size + 1 tokens. Each begins with the token that begins a
document: with --document_mask=True none attends to another.
"""

import re
import sys
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int32
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from common.command_line import first_problem
from common.errors import UserError
from common.files import refusing
from data.dataset import SPLITS, TextBytes
from data.documents import in_validation
from data.sources import Files
from data.spans import encode_part
from data.tokenizer import END_NAMES, Tokenizer, document_start, end_tokens, from_json
from data.writer import write_dataset

ROOM = 256  # tokens of a long context that stay free for an answer; of a short one, a third
OPEN_ROWS = 64  # rows that a conversation may still be put into
END_OF_ANSWER = re.compile(r"\{%-?\s*endgeneration\b")
FIRST_MARK = 0xF0000  # private characters, which no template writes, stand for what messages say
# Its functions may raise any error.
REFUSED = ("the chat template refuses it", "mend or leave it out", Exception)

Nothing = Annotated[list, Field(max_length=0)] | None


@dataclass(frozen=True, config={"strict": True})
class Message:
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(min_length=1)]
    weight: Literal[1] | None = None  # OpenAI's 0, for what is not learned, is refused
    tool_calls: Nothing = None


@dataclass(frozen=True, config={"strict": True})
class Line:
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: Nothing = None


LINE = TypeAdapter(Line)
SAMPLE = [{"role": role, "content": "a"} for role in 2 * ("user", "assistant")]
Messages = list[dict[str, str]]


class Rendered(NamedTuple):
    """Holds conversations in tokens."""

    ids: Int32[np.ndarray, " n"]
    learned: Bool[np.ndarray, " n"]
    n_bytes: int  # of the answers


class Renderer:
    """Makes tokens of conversations by a chat template. Raises UserError without one that compiles."""

    def __init__(self, tokenizer: Tokenizer, template: str | None = None, pretrained: bool = False):
        uses = tokenizer.description.get("uses", {})
        self.template, self.names = template or uses.get("chat_template"), uses.get("special_tokens", {})
        if tokenizer.description["type"] == "tiktoken":  # as transformers names what GPT-2 has
            self.names = dict.fromkeys(("bos_token", "eos_token"), END_NAMES[0]) | self.names
        if self.template is None:
            raise UserError(
                "the tokenizer has no chat template: give data/prepare.py a tokenizer of "
                "data/train_tokenizer.py, or --template, and train on the conversations that it writes"
            )
        from transformers.utils.chat_template_utils import _compile_jinja_template  # the public one renders

        # Any error, also of its constants, which are computed here. To render it may take for ever.
        with refusing("the chat template cannot be compiled", "mend it", Exception):
            _compile_jinja_template(self.template)
        self.tokenizer, self.system_message = tokenizer, uses.get("system_message", True)
        # A run's prompts begin with the token that its conversations began with. Before those of a pretrained
        # model, which learned others, nothing is put but what the template writes.
        self.learned_start: int | None = None if pretrained else uses.get("conversation_start")

    @cached_property
    def start(self) -> int:
        """The token that begins a conversation to learn. Raises UserError where there is none."""
        ends = end_tokens(self.tokenizer.description)
        if not ends:
            raise UserError("the tokenizer has no token, such as <|endoftext|>, to begin a conversation with")
        # A token that ends each turn, as Qwen's first end does, should not begin a document there.
        begins = [i for i in (document_start(self.tokenizer.description), *ends) if i is not None]
        within = self.encode(SAMPLE).ids[1:]  # after the template's own first token
        start = next((token for token in begins if token not in within), begins[0])
        if start in within:
            note = "note: with --document_mask=True, a turn attends to its own exchange alone"
            print(note, file=sys.stderr)
        return start

    def learned(self, system_message: bool = True) -> Tokenizer:
        """Return the tokenizer of a run that learns these conversations: it renders others likewise."""
        own: dict[str, Any] = dict(document_start=self.start, conversation_start=self.start)
        own |= dict(special_tokens=self.names, chat_template=self.template, system_message=system_message)
        uses = self.tokenizer.description.get("uses", {}) | own
        return from_json(self.tokenizer.description | {"uses": uses})

    def __call__(self, messages: Messages) -> Rendered:
        """Return a conversation's tokens. Raises UserError where the template refuses it."""
        ids, learned, n_bytes = self.encode(messages)
        if ids[0] != self.start:
            ids, learned = np.insert(ids, 0, self.start), np.insert(learned, 0, False)
        return Rendered(ids, learned, n_bytes)

    def prompt(self, messages: Messages) -> Int32[np.ndarray, " n"]:
        """Return the tokens after which the assistant answers, and with which the answered one begins."""
        ids = self.encode(messages, add_generation_prompt=True).ids
        begins = self.learned_start is None or self.learned_start == ids[0]  # the template may write it
        return ids if begins else np.insert(ids, 0, self.learned_start)

    def newest(self, messages: Messages, block_size: int) -> tuple[Int32[np.ndarray, " n"], int]:
        """Return the prompt of the last exchanges that leave an answer room, and how many messages leave.

        The system message stays, and so does the last exchange, however long they are.
        """
        system = messages[:1] if messages[0]["role"] == "system" else []
        longest, said = block_size - min(ROOM, block_size // 3), messages[len(system) :]
        starts = [0, *[i for i, message in enumerate(said) if message["role"] == "user"][1:]]  # of exchanges
        fit = bisect_left(starts[:-1], True, key=lambda i: len(self.prompt([*system, *said[i:]])) <= longest)
        left_out = starts[fit]
        return self.prompt([*system, *said[left_out:]]), left_out

    def encode(self, messages: Messages, **settings: bool) -> Rendered:
        """Return a conversation's tokens, and which of them the template says are learned. Raises UserError.

        The template alone writes special tokens: what a message says is ordinary text. Each answer begins
        with a token of its own, as after a prompt. A template that changes what messages say, or that writes
        a special token with it, is refused, and so is one that fails.
        """
        with refusing(*REFUSED):
            text, answers = self.render(messages, **settings)
            said, own = self.contents(text, messages, **settings)
        tokenizer = self.tokenizer
        # Some makers do not call the tokens of their template special. Cut after a letter, they are none.
        marks = "|".join(re.escape(name) for name in tokenizer.added if name in own) or "(?!)"
        cuts = {a + found.start() + 1 for a, b in said for found in re.finditer(f"(?={marks})", text[a:b])}
        spelled = [(a, b) for a, b in said if spells_special(tokenizer, text[a:b])]
        edges = {0, len(text), *(begin for begin, _ in answers), *chain.from_iterable(spelled), *cuts}
        edges |= {end for _, end in answers if text.endswith(tuple(tokenizer.names), 0, end)}
        ids, spans = [], []
        for a, b in pairwise(sorted(edges)):
            special = not any(begin <= a and b <= end for begin, end in spelled)
            some, where = encode_part(tokenizer, text, a, b, special)
            ids.append(some)
            spans.append(where)
        control = [i for name, i in tokenizer.names.items() if name not in tokenizer.added or name in own]
        with refusing(*REFUSED):
            if not sum(map(len, ids)):
                raise ValueError("it writes no token")
            ids, spans = np.concatenate(ids), np.concatenate(spans)
            for a, b in spans[np.isin(ids, control)]:
                if any(text[max(a, begin) : min(b, end)].strip() for begin, end in said):
                    raise ValueError(f"what a message says would write its {text[a:b]}")
        learned = np.zeros(len(spans), bool)
        for begin, end in answers:
            learned |= (spans[:, 0] < end) & (spans[:, 1] > begin)
        said_there = (text[a:b] for a, b in said for begin, end in answers if begin <= a and b <= end)
        return Rendered(ids, learned, sum(len(part.encode()) for part in said_there))

    def render(self, messages: Messages, **settings: Any) -> tuple[str, list[tuple[int, int]]]:
        """Return the template's text, and where the answers are in it, in a sandbox. Raises any error."""
        from transformers.utils.chat_template_utils import render_jinja_template  # here: it takes a second

        rendered: Any = render_jinja_template(
            [messages],
            chat_template=self.template,
            return_assistant_tokens_mask=END_OF_ANSWER.search(self.template) is not None,
            **self.names | settings,
        )
        (text,), answers = rendered
        return text, answers[0] if answers else []

    def contents(self, text: str, messages: Messages, **settings: bool) -> tuple[list[tuple[int, int]], str]:
        """Return where the template put what messages say, or a part of it, and its own text."""
        marks = {chr(FIRST_MARK + i): message["content"] for i, message in enumerate(messages)}
        marked = [
            message | {"content": mark} if message["content"] else message
            for mark, message in zip(marks, messages, strict=True)
        ]
        written = self.render(marked, **settings)[0]
        found, own = re.findall(f"[{''.join(marks)}]", written), re.split(f"[{''.join(marks)}]", written)
        places, at = [], len(own[0])
        for mark, after in zip(found, own[1:], strict=True):
            said = marks[mark]
            ways = (said, said.rstrip(), said.lstrip(), said.strip())
            way = next((x for x in ways if text.startswith(x + after, at)), None)
            if way is None:  # it may leave out a part, such as thoughts
                end = text.find(after, at) if after else len(text)
                way = text[at:end] if end >= 0 and text[at:end] in said and after not in said else None
            if way is None:
                break
            places.append((at, at + len(way)))
            at += len(way) + len(after)
        if at < len(text) or len(places) < len(found) or not text.startswith(own[0]):
            raise ValueError("it changes what messages say, which could then write its special tokens")
        return places, "".join(own)

    def pieces(self, messages: Messages, longest: int) -> tuple[list[Rendered], int]:
        """Cut a conversation after answers into pieces of at most `longest` tokens.

        Each begins with the system message. An exchange that is too long for a piece is left out.
        """
        if messages[-1]["role"] == "assistant" and len((whole := self(messages)).ids) <= longest:
            return [whole], 0  # as most are: turn by turn, preparing takes 1.6 times as long
        system = messages[:1] if messages[0]["role"] == "system" else []
        done, begun, pieces, left_out = [], [], [], 0
        for message in messages[len(system) :]:
            begun.append(message)
            if message["role"] != "assistant":
                continue
            whole = self([*system, *done, *begun])
            if len(whole.ids) > longest:  # begin another piece
                whole, done = self([*system, *begun]), []
            elif done:
                pieces.pop()
            if len(whole.ids) <= longest:
                pieces.append(whole)
                done += begun
            else:
                left_out += 1
            begun = []
        return pieces, left_out


def spells_special(tokenizer: Tokenizer, text: str) -> bool:
    """Tell whether a text has the name of a special token."""
    return not np.array_equal(tokenizer.encode(text), tokenizer.encode(text, special=False))


def write_conversations(
    folder: Path, source: Files, renderer: Renderer, block_size: int, val_fraction: float, limit: int | None
) -> None:
    """Write the conversations, or the first `limit` of them, packed into rows. Raises UserError."""
    start, row = renderer.start, block_size + 1
    train, val, count, cut, answers, system_message = [], [], 0, 0, 0, False
    for where, line in islice(lines_of(source), limit):
        with refusing(where, "mend or leave it out", UserError):
            messages = parse(line)
            pieces, left_out = renderer.pieces(messages, row)
        (val if in_validation(line, val_fraction) else train).extend(pieces)
        count += 1
        cut += len(pieces) > 1
        answers += left_out
        system_message |= "system" in [message["role"] for message in messages]
    about = f"{count:,} conversations, {cut:,} of them cut at turns, {answers:,} answers left out as too long"
    if not (train and val):
        advice = f"give more, another --val_fraction, or more than --block_size={block_size}"
        raise UserError(f"{source}: {about}, leave none for training or for validation: {advice}")
    packed = [pack(each, row, start) for each in (train, val)]
    (train_ids, val_ids), learned, n_bytes = zip(*packed, strict=True)
    if not all(each.any() for each in learned):
        raise UserError(
            "the chat template marks nothing to learn: write {% generation %} before an answer and "
            "{% endgeneration %} after the token that ends it, and give the file by --template"
        )
    if not np.isin(train_ids[learned[0]], end_tokens(renderer.tokenizer.description)).any():
        raise UserError(
            "the chat template ends no answer with a token, and so answers would never end: give a "
            "--tokenizer that has such a token, as one of data/train_tokenizer.py has"
        )
    counted = {split: TextBytes(n) for split, n in zip(SPLITS, n_bytes, strict=True)}
    ids = train_ids, val_ids
    tokenizer = renderer.learned(system_message)
    write_dataset(folder, *ids, tokenizer, str(source), learned, row=row, bytes=counted)
    sizes = f"{len(train_ids) // row:,} train and {len(val_ids) // row:,} validation rows of {row} tokens"
    print(f"{folder}: {about}; {sizes}, {learned[0].mean():.0%} of them learned")


def lines_of(source: Files) -> Iterator[tuple[str, bytes]]:
    """Yield the place of each line that is not blank, as file:number, and the line. Raises UserError."""
    numbers = [0] * len(source.paths)
    for batch in source.batches():
        if not batch.json_lines:
            raise UserError(f"{source}: conversations are read from .jsonl and .parquet")
        file, _ = batch.position
        for record in batch.records:
            numbers[file] += 1
            if line := (record or b"").strip():
                yield f"{source.paths[file]}:{numbers[file]}", line


def parse(line: bytes) -> Messages:
    """Read a line. Raises UserError for what is no conversation."""
    try:
        messages = LINE.validate_json(line).messages
    except ValidationError as error:
        raise UserError(first_problem(error)) from None
    if "assistant" not in [message.role for message in messages]:
        raise UserError("it has no message of the assistant: there is nothing to learn")
    return [{"role": message.role, "content": message.content} for message in messages]


def pack(pieces: list[Rendered], row: int, start: int) -> Rendered:
    """Put whole pieces into rows, each into the first with space; fill rows with the token `start`."""
    used: list[int] = []  # tokens of each row
    places = []
    for piece in pieces:
        open_rows = range(max(0, len(used) - OPEN_ROWS), len(used))
        i = next((i for i in open_rows if used[i] + len(piece.ids) <= row), len(used))
        if i == len(used):
            used.append(0)
        places.append((i, slice(used[i], used[i] + len(piece.ids))))
        used[i] += len(piece.ids)
    ids = np.full((len(used), row), start, np.int32)
    learned = np.zeros(ids.shape, bool)
    for piece, place in zip(pieces, places, strict=True):
        ids[place], learned[place] = piece.ids, piece.learned
    return Rendered(ids.ravel(), learned.ravel(), sum(piece.n_bytes for piece in pieces))
