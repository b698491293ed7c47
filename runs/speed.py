"""Measure how fast a run is: the time of its steps, and what follows from it."""

import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from config.devices import peak_flops
from config.options import Options
from model import GPTConfig
from parallel.mesh import one_cpu
from runs.hardware import peak_memory
from training.lora import partition_trainable
from training.state import create_state

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
        hfu                           the same with all the FLOPs that XLA counts: norms and the like, and
                                      what `remat` computes twice
        memory_mb                     peak memory of the first device, in 10^6 bytes; on a CPU, of the process
    """

    def __init__(self, options: Options, config: GPTConfig, devices: int):
        self.tokens = options.gradient_accumulation_steps * options.batch_size * options.block_size
        self.devices = devices
        known = config.compute.dtype == "bfloat16"  # the peaks are bfloat16's
        self.peak = peak_flops(jax.devices()[0].device_kind) if known else None
        self.flops = {}  # per token
        if self.peak:
            if not options.lora_rank:  # the formula has a gradient for every weight
                self.flops["mfu"] = flops_per_token(config, options.block_size)
            if counted := counted_flops(config, options):
                self.flops["hfu"] = counted / self.tokens
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
            figures |= {name: flops * rate / self.peak for name, flops in self.flops.items()}
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


def counted_flops(config: GPTConfig, options: Options) -> float | None:
    """Return the floating-point operations of one step's loss and gradients, on all devices, as XLA counts.

    What `remat` does twice counts twice. XLA counts a loop's body once, and nothing of a kernel that is not
    its own. So it counts one sequence, on a CPU, with the layers unrolled and the logits in one piece, and
    nothing is compiled. None where JAX has no CPU beside its accelerator.
    """
    config = replace(config, compute=replace(config.compute, unroll=0, attention="einsum"))

    def loss(weights, frozen, x, y):
        logits = eqx.combine(weights, frozen)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    try:
        with jax.set_mesh(one_cpu()):
            weights, frozen = partition_trainable(eqx.filter_eval_shape(create_state, config, options).model)
            row = jax.ShapeDtypeStruct((1, options.block_size), jnp.int32)
            counted = jax.jit(jax.value_and_grad(loss)).lower(weights, frozen, row, row).cost_analysis()
    except RuntimeError:
        return None
    if counted is None:
        return None
    return counted["flops"] * options.gradient_accumulation_steps * options.batch_size
