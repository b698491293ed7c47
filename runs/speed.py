"""Measure how fast a run is: the time of its steps, and what follows from it."""

import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

import jax

from config.devices import peak_flops
from config.options import Options
from model import GPTConfig
from runs.hardware import peak_memory

RECENT = 100  # steps whose spread is reported


class Speed:
    """The clock of a run: steps are timed from the end of the one before, and pauses are left out.

    `figures` has, of the steps since it was last asked:

        ms                            mean time of a step
        ms_spread                     90th less 10th percentile of the last 100
        data_ms                       mean time to make a batch, while an accelerator computes the step before
        tokens_per_second             over all devices
        tokens_per_second_per_device  of one
        mfu                           model FLOP/s over the devices' peak, as nanoGPT and PaLM
                                      (arXiv:2204.02311) have it; none for LoRA, nor without a known bfloat16
                                      peak
        memory_mb                     peak memory of the first device, in 10^6 bytes; on a CPU, of the process
    """

    def __init__(self, options: Options, config: GPTConfig, devices: int):
        self.tokens = options.gradient_accumulation_steps * options.batch_size * options.block_size
        self.devices = devices
        # The peaks are bfloat16's, and the formula for FLOPs has a gradient for every weight.
        known = config.compute.dtype == "bfloat16" and not options.lora_rank
        self.peak = peak_flops(jax.devices()[0].device_kind) if known else None
        self.flops = flops_per_token(config, options.block_size)
        self.recent = deque(maxlen=RECENT)
        self.steps, self.seconds, self.data_seconds = 0, 0.0, 0.0  # since the last figures
        self.made = deque()  # seconds that each batch took whose step has not ended yet
        self.began = None  # when the step that is next to end began; None in a pause

    def pause(self) -> None:
        """Stop the clock until the next batch is made."""
        self.began = None

    @contextmanager
    def making_batch(self) -> Generator[None]:
        """Time what is done within: the batch of the next step is made."""
        start = time.perf_counter()
        if self.began is None:
            self.began = start
        yield
        self.made.append(time.perf_counter() - start)

    def ended(self, when: float) -> None:
        """Note that a step has ended at `when`, by `time.perf_counter`."""
        assert self.began is not None, "its batch was made after the pause"
        self.recent.append(when - self.began)
        self.steps += 1
        self.seconds += self.recent[-1]
        self.data_seconds += self.made.popleft()
        self.began = when

    def figures(self) -> dict[str, float]:
        """Return the figures of the steps since this was last asked."""
        seconds, data_seconds = self.seconds / self.steps, self.data_seconds / self.steps
        self.steps, self.seconds, self.data_seconds = 0, 0.0, 0.0
        ordered = sorted(self.recent)  # np.quantile takes 0.3 ms where a step has emptied the caches
        tenth = len(ordered) // 10
        rate = self.tokens / seconds / self.devices
        figures = {
            "ms": 1e3 * seconds,
            "ms_spread": 1e3 * (ordered[-1 - tenth] - ordered[tenth]),
            "data_ms": 1e3 * data_seconds,
            "tokens_per_second": rate * self.devices,
            "tokens_per_second_per_device": rate,
            "memory_mb": peak_memory() / 1e6,
        }
        if self.peak:
            figures["mfu"] = self.flops * rate / self.peak
        return figures


def flops_per_token(config: GPTConfig, T: int) -> int:
    """Return the floating-point operations per token of one training step on sequences of T tokens.

    A product of an (m, k) and a (k, n) matrix takes 2 m k n; the backward pass does each one twice, once for
    each operand. So a matrix of P parameters costs 6 P per token, and the two T x T products of a layer's
    attention cost 12 T D. Like nanoGPT and PaLM (arXiv:2204.02311, appendix B), this counts the causal half
    that a good kernel skips, and leaves out all that is not a matrix product. With a window it counts, by the
    same rule, twice the keys that a token reads on average.
    """
    N = min(config.window or T, T)
    D, F, kv_width = config.n_embd, config.hidden, config.kv_heads * config.head_size
    attention = 2 * D * D + 2 * D * kv_width
    mlp = (3 if config.mlp == "swiglu" else 2) * D * F
    matrices = config.n_layer * (attention + mlp) + config.vocab_size * D
    return 6 * matrices + 12 * config.n_layer * (2 * N - N * N // T) * D
