"""Draw a model's answers to questions (data/tasks.py), and score them."""

import runpy
import signal
import time
from collections.abc import Callable, Generator
from contextlib import chdir, contextmanager
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from common.command_line import FLOAT32
from common.errors import UserError
from common.files import first_line
from data.conversations import Renderer
from data.tasks import Question
from data.tokenizer import Tokenizer, end_tokens
from generation.decode import limit_vocabulary
from generation.engine import Engine, Request
from generation.sampling import PLAIN, Settings
from model import GPT

SLOTS = 64  # answers that are drawn at once
PATIENCE = 10  # seconds that a reward may take
Reward = Callable[[Question, str], float]


class Answer(NamedTuple):
    """An answer that a model drew, and what it is worth."""

    question: Question
    prompt: Int[np.ndarray, " P"]
    tokens: Int[np.ndarray, " n"]
    logprobs: Float[np.ndarray, " n"]  # of its tokens, by the engine
    text: str
    reward: float


def is_right(question: Question, answer: str) -> float:
    """Return 1 for the right answer, and 0 for another. Case, spaces and a full stop do not count."""

    def plain(text: str) -> str:
        return " ".join(text.lower().split()).removesuffix(".")

    return float(plain(answer) == plain(question.answer))


class Sampler:
    """Draws answers to questions, each as its prompt alone would get it, and scores them."""

    def __init__(
        self, tokenizer: Tokenizer, max_new_tokens: int, reward: Reward = is_right, pretrained: bool = False
    ):
        self.renderer, self.reward = Renderer(tokenizer, pretrained=pretrained), reward
        self.ends, self.max_new_tokens = tuple(end_tokens(tokenizer.description)), max_new_tokens
        if not self.ends:
            raise UserError("the tokenizer has no token, such as <|endoftext|>, that could end an answer")

    def __call__(
        self, model: GPT, asked: list[Question], key: PRNGKeyArray, settings: Settings = PLAIN
    ) -> list[Answer]:
        """Draw an answer to each question. Raises UserError for a question that is too long."""
        model, keys = self.limit(model), jax.random.split(key, len(asked))
        prompts = [self.prompt(question, model) for question in asked]
        engine = Engine(model, min(SLOTS, len(asked)))
        tokens, logprobs = ([[] for _ in asked] for _ in range(2))
        waiting, row_of = list(range(len(asked)))[::-1], {}

        def add(row: int, like: int | None = None) -> int:
            limits = self.max_new_tokens, settings, {}, self.ends
            slot = engine.add(Request(prompts[row], keys[row], *limits, logprobs=True), like)
            row_of[slot] = row
            return slot

        while waiting or not engine.idle:
            rows = [waiting.pop() for _ in range(min(engine.free, len(waiting)))]
            # Only the first row with a prompt is prefilled. The others copy what it has cached.
            first = {prompts[row].tobytes(): row for row in reversed(rows)}
            slot_of = {prompt: add(row) for prompt, row in first.items()}
            while engine.unread:  # all at once, for otherwise each prefill draws only one token of the others
                engine.step(0)
            for row in rows:
                if row != first[prompt := prompts[row].tobytes()]:
                    add(row, like=slot_of[prompt])
            for piece in engine.step():
                if piece.likelihood is not None:
                    tokens[row_of[piece.slot]] += piece.tokens.tolist()
                    logprobs[row_of[piece.slot]] += piece.likelihood.chosen.tolist()
        return [self.answer(*parts) for parts in zip(asked, prompts, tokens, logprobs, strict=True)]

    def limit(self, model: GPT) -> GPT:
        """Return the model of the tokens that answers are drawn from."""
        return limit_vocabulary(model, self.renderer.tokenizer.vocab_size)

    def prompt(self, question: Question, model: GPT) -> Int[np.ndarray, " P"]:
        prompt = self.renderer.prompt([{"role": "user", "content": question.text}])
        block_size = model.config.block_size
        if prompt.max() >= (V := len(model.head)):
            raise UserError(f"question {question.text!r} has a token that is not of the model's {V}")
        if len(prompt) + self.max_new_tokens > block_size:
            raise UserError(
                f"question {question.text!r} has {len(prompt)} tokens, and with --max_new_tokens="
                f"{self.max_new_tokens} more than block_size={block_size}: give fewer"
            )
        return prompt

    def answer(self, question: Question, prompt: np.ndarray, tokens: list[int], logprobs: list) -> Answer:
        text = self.renderer.tokenizer.decode(tokens[:-1] if tokens[-1] in self.ends else tokens)
        reward = score(self.reward, question, text)
        return Answer(question, prompt, np.array(tokens), np.array(logprobs), text, reward)


def score(reward: Reward, question: Question, text: str) -> float:
    """Return the reward of an answer. Raises UserError for one that fails, hangs or is no number."""
    what = f"the reward of an answer to {question.text!r}"
    with users_code(what, "mend --reward"), patience(PATIENCE):
        value = reward(question, text)
        if isinstance(value, str):
            raise TypeError(f"{value!r} is text")
        value = float(value)
    if not abs(value) <= FLOAT32:
        raise UserError(f"{what} is {value}: it should be a number, of at most {FLOAT32:g}")
    return value


def load_reward(text: str | None) -> Reward:
    """Load the function that `--reward=FILE.py:FUNCTION` names, from the user's code. Raises UserError."""
    if text is None:
        return is_right
    path, _, name = text.rpartition(":")
    with users_code(f"--reward={text}: cannot be loaded", "give FILE.py:FUNCTION"):
        return runpy.run_path(path)[name]


@contextmanager
def users_code(what: str, advice: str) -> Generator[None]:
    """Turn an error within into a UserError, and come back to this folder."""
    try:
        with chdir("."):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # some are no Exception, as SystemExit and pytest's
        raise UserError(f"{what}: {type(error).__name__}: {first_line(error)}: {advice}") from None


class OutOfTime(BaseException):
    """Is no Exception, which a reward may catch."""


@contextmanager
def patience(seconds: float) -> Generator[None]:
    """Raise OutOfTime within after so many seconds, where the system has an alarm."""

    def ring(*_):
        raise OutOfTime(f"it took over {seconds} seconds")

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before, begun = signal.signal(signal.SIGALRM, ring), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # again, where what is called has caught it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if time.monotonic() - begun > seconds:
        ring()
