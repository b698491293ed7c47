"""How fast a run is: the time of its steps, and what follows from it."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from config.options import Options
from model import GPTConfig
from training.hardware import peak_flops, peak_memory

RECENT = 100  # steps, of which the spread is told


class Speed:
    """The clock of a run: steps are timed from the end of the one before, and pauses are left out.

    `figures` has, of the steps since it was last asked:

        ms                            mean time of a step
        ms_spread                     longest less shortest of the last 100, but for a tenth at either end
        data_ms                       mean time that the loop took to make a batch; the device, where it works
                                      by itself, is busy with the step before meanwhile
        tokens_per_second             over all devices
        tokens_per_second_per_device  the same, shared out
        mfu                           model FLOP/s over the devices' peak, as nanoGPT and PaLM
                                      (arXiv:2204.02311) have it; none with LoRA or without a known peak
        memory_mb                     the most that the first device has held, in 10^6 bytes; on a CPU, which
                                      does not tell, the most that the process has
    """

    def __init__(self, options: Options, config: GPTConfig, devices: int):
        self.tokens = options.gradient_accumulation_steps * options.batch_size * options.block_size
        self.devices = devices
        self.flops_per_token = config.flops_per_token(options.block_size)
        # The peaks are bfloat16's, and the FLOPs those of a step that trains all weights.
        known = config.dtype == "bfloat16" and not options.lora_rank
        self.peak = peak_flops(jax.devices()[0].device_kind) if known else None
        self.recent = deque(maxlen=RECENT)
        self.steps, self.seconds, self.data_seconds = 0, 0.0, 0.0  # since the last figures
        self.made = deque()  # seconds that each batch took whose step has not ended yet
        self.began = None  # when the step that is next to end began; None in a pause

    def pause(self) -> None:
        """What comes now is no step."""
        self.began = None

    @contextmanager
    def making_batch(self) -> Iterator[None]:
        """Within, the batch of the step that is started next is made."""
        start = time.perf_counter()
        if self.began is None:
            self.began = start
        yield
        self.made.append(time.perf_counter() - start)

    def ended(self, when: float) -> None:
        """A step has ended at `when`, by `time.perf_counter`."""
        self.recent.append(when - self.began)
        self.steps += 1
        self.seconds += self.recent[-1]
        self.data_seconds += self.made.popleft()
        self.began = when

    def figures(self) -> dict[str, float]:
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
        return figures if self.peak is None else figures | {"mfu": self.flops_per_token * rate / self.peak}
