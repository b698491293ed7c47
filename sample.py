"""Write text with a trained model.

    python sample.py --out_dir=out-quickstart                       every option: python sample.py --help
    python sample.py --out_dir=out-shakespeare-char --start=FILE:prompt.txt --num_samples=3
    python sample.py --init_from=gpt2-xl --start="What is the answer to life?" --temperature=0

The samples are drawn as one batch, and the first is printed as it is drawn.
"""

from common.errors import UserError, command  # isort: split

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Int

from common.command_line import (
    Biases,
    Count,
    Fraction,
    NonNegative,
    Penalty,
    Repetition,
    Seed,
    TokenIds,
    TopK,
    TopP,
    given,
    spell,
)
from common.files import decode_text, refusing
from config.options import ModelOptions
from data.tokenizer import Tokenizer
from generation.decode import generate, limit_vocabulary
from generation.sampling import Settings
from model import GPT
from parallel.machines import choose_device, keep_compiled_programs
from runs.load import load_model, tokenizer_of

SEPARATOR = "---------------"  # after each sample, as in nanoGPT


@dataclass(frozen=True)
class SampleOptions(ModelOptions):
    """Write text with a trained model."""

    start: str = "\n"  # prompt, or FILE:prompt.txt
    add_special_tokens: bool = True  # begin the prompt as the tokenizer does, as with Llama's <s>
    num_samples: Count = 10  # samples to draw
    max_new_tokens: Count = 500  # tokens in each, after the prompt
    temperature: NonNegative = 0.8  # below 1: less random, above: more; 0: always the likeliest token
    top_k: TopK | None = 200  # draw from the top_k likeliest tokens; 0, -1 or None: from all
    top_p: TopP = 1.0  # draw from the fewest tokens whose probabilities add up to top_p
    min_p: Fraction = 0.0  # draw from tokens at least min_p times as likely as the likeliest
    repetition_penalty: Repetition = 1.0  # above 1: tokens of the prompt and the text become less likely
    presence_penalty: Penalty = 0.0  # is subtracted from the logits of tokens of the text
    frequency_penalty: Penalty = 0.0  # is subtracted for each time that they occur in it
    logit_bias: Biases = ""  # is added to the logits of tokens, as in 13:-100,262:2.5
    stop_token_ids: TokenIds = ""  # a sample ends before one of these tokens, as in 50256,13
    prompt_logprobs: bool = False  # first write each token of the prompt with its log-probability, in nats
    seed: Seed = 1337  # the same seed draws the same text


def main(argv: list[str]) -> None:
    options = SampleOptions(**given(argv, SampleOptions))
    choose_device(options.device)
    keep_compiled_programs()
    text = read_prompt(options.start)
    # A token of a text has a byte or more; the tokenizer may add one at each end.
    longest = len(text.encode(errors="replace")) + 2 + options.max_new_tokens
    model, description = load_model(options, longest)
    tokenizer = tokenizer_of(description, options.init_from, options.out_dir)
    with refusing(f"--start={spell(options.start)}", "give another", UserError):
        prompt = tokenizer.encode(text, add_special_tokens=options.add_special_tokens and "before")
    block_size = model.config.block_size
    model = limit_vocabulary(model, tokenizer.vocab_size)
    known = len(model.head)
    if not len(prompt) or prompt.max() >= known:  # some tokenizers drop spaces
        raise UserError(
            f"--start={options.start!r}: gives no token, or one that is not of the model's {known}"
        )
    bias, ends = (tokens_of(options, name, known) for name in ("logit_bias", "stop_token_ids"))
    if len(prompt) > block_size:
        print(f"note: of {len(prompt)} tokens the model reads the last {block_size}", file=sys.stderr)
    if options.prompt_logprobs:
        write_logprobs(model, prompt[-block_size:], tokenizer)
    chunks = generate(
        model,
        np.tile(prompt, (options.num_samples, 1)),
        key=jax.random.key(options.seed),
        max_new_tokens=options.max_new_tokens,
        settings=Settings(*(getattr(options, name) or 0 for name in Settings._fields)),
        bias=bias,
    )
    write_samples(text, chunks, tokenizer, list(ends))


def tokens_of(options: SampleOptions, name: str, known: int) -> dict[int, float]:
    """Return the ids that an option names, each with its number, or 0 without one. Raises UserError."""
    words = [word.partition(":") for word in getattr(options, name).split(",") if word]
    found = {int(token): float(number or 0) for token, _, number in words}
    if found and max(found) >= known:
        raise UserError(f"--{name}: there is no token {max(found)}; the model's are 0 to {known - 1}")
    return found


def read_prompt(start: str) -> str:
    if not start.startswith("FILE:"):
        return start
    path = Path(os.path.expanduser(start.removeprefix("FILE:")))
    return decode_text(path.read_bytes(), str(path))


def write_logprobs(model: GPT, prompt: Int[np.ndarray, " T"], tokenizer: Tokenizer) -> None:
    """Write a line for each token, with its log-probability before all settings. The first has none."""
    logits = eqx.filter_jit(model)(jnp.asarray(prompt)[None])[0]  # (T, V)
    nats = optax.softmax_cross_entropy_with_integer_labels(logits[:-1], prompt[1:])  # (T - 1,)
    for token, logprob in zip(prompt.tolist(), ["", *(f"{-x:.4f}" for x in nats)], strict=True):
        print(f"{logprob:>9}  {tokenizer.decode([token])!r}")
    print(SEPARATOR)


def write_samples(text: str, chunks: Iterator[np.ndarray], tokenizer: Tokenizer, ends: list[int]) -> None:
    """Write the prompt and each sample, up to a token of `ends`. A chunk has the next (B, n) tokens."""
    print(text, end="", flush=True)
    decode, written = tokenizer.stream(), 0
    for drawn in accumulate(chunks, lambda before, new: np.concatenate([before, new], axis=1)):
        last = np.isin(drawn, ends)
        lengths = np.where(last.any(axis=1), last.argmax(axis=1), drawn.shape[1])
        print(decode(drawn[0, written : lengths[0]]), end="", flush=True)
        written = lengths[0]
        if last.any(axis=1).all():
            break
    print(decode([], final=True), SEPARATOR, sep="\n", flush=True)
    for row, length in zip(drawn[1:], lengths[1:], strict=True):
        print(text + tokenizer.decode(row[:length]), SEPARATOR, sep="\n", flush=True)


if __name__ == "__main__":
    command(main)
