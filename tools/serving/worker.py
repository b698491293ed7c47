"""The engine's thread. HTTP handlers submit requests to it; each submission has a queue for what it makes."""

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import jax
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from common.errors import UserError
from common.files import refusing
from generation.decode import CHUNK, limit_vocabulary
from generation.engine import Engine, Piece, Request
from model import GPT
from tools.serving.server import ApiError

CALL = 0.02  # seconds for a call that draws several tokens: see docs/serving.md
STOP = 10.0  # seconds that it is given to end
SECONDS = 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100  # the ends of the histogram's buckets


@dataclass(eq=False)
class Job:
    """A submitted request. Those submitted together share `made`."""

    request: Request
    index: int
    made: asyncio.Queue[tuple["Job", Piece | ApiError]]
    version: str = ""  # of the weights that answer it, once they do
    submitted: float | None = field(default_factory=time.perf_counter)  # None: a token was drawn since


class Worker:
    """The thread that steps an engine, and when idle compiles its programs."""

    def __init__(self, model: GPT, version: str, vocab_size: int, slots: int, max_waiting: int):
        """Allocate all slots, on the devices of the mesh that is set. Raises UserError.

        `version` is that of the weights. The model may draw the first `vocab_size` tokens.
        """
        self.model, self.version, self.vocab_size, self.slots = model, version, vocab_size, slots
        self.newer: tuple[GPT, str] | None = None  # to go on with when nothing runs
        self.pending: set[Job] = set()  # to be finished; asyncio's thread alone changes it
        self.waiting: deque[Job] = deque()  # those without a slot, in order
        self.running: dict[int, Job] = {}  # by slot
        self.room = slots + max_waiting
        self.wake = threading.Event()
        self.stopping = False
        self.per_token = 0.0  # seconds, of the last step
        self.compiled = 0  # of the engine's programs
        self.error: UserError | None = None  # that stopped it
        self.mesh = jax.sharding.get_mesh()
        self.engine = self.make_engine()
        self.figures = Figures(self)
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)

    # Called by other threads

    def submit(self, requests: list[Request]) -> list[Job]:
        """Queue requests. Raises ApiError."""
        if not self.works:
            raise ApiError("the server is stopping", status=503, code="unavailable")
        if len(self.pending) + len(requests) > self.room:
            message = f"{len(self.pending)} requests are running or waiting: try again later"
            raise ApiError(message, status=429, code="rate_limit_exceeded")
        self.loop = asyncio.get_running_loop()
        made = asyncio.Queue()
        jobs = [Job(request, i, made) for i, request in enumerate(requests)]
        self.pending.update(jobs)
        self.waiting.extend(jobs)
        self.wake.set()
        self.figures.requests.inc(len(requests))
        self.figures.prompt_tokens.inc(sum(len(request.prompt) for request in requests))
        return jobs

    def cancel(self, job: Job) -> None:
        self.pending.discard(job)
        self.wake.set()

    def deliver(self, made: list[tuple[Job, Piece | ApiError]]) -> None:
        for job, piece in made:
            if job in self.pending:
                job.made.put_nowait((job, piece))
                if isinstance(piece, ApiError) or piece.finished:
                    self.pending.discard(job)
                if isinstance(piece, Piece):
                    self.figures.count(job, len(piece.tokens))

    @property
    def works(self) -> bool:
        return self.thread.is_alive() and not self.stopping

    @property
    def status(self) -> str:
        if not self.works:
            return str(self.error or "stopped")
        n = len(self.engine.programs())
        return "ok" if self.compiled == n else f"compiling {self.compiled + 1} of {n}"

    def replace(self, model: GPT, version: str) -> None:
        """Use newer weights of the same shape, once what runs is finished."""
        self.newer = model, version
        self.wake.set()

    def stop(self) -> None:
        """Take no new requests, and finish those there are, within STOP seconds."""
        self.stopping = True
        self.wake.set()
        self.thread.join(STOP)

    def give_up(self) -> None:
        """Answer with an error what is not finished."""
        stopped = ApiError("the server has stopped", status=503, code="unavailable")
        self.deliver([(job, stopped) for job in self.pending])

    # Called by the engine's thread

    def run(self) -> None:
        with jax.set_mesh(self.mesh):
            while self.waiting or self.running or not self.stopping:
                try:
                    self.turn()
                except UserError as error:  # there is no engine
                    self.error, self.stopping = error, True
                    self.fail(self.waiting, error)
                    self.waiting.clear()
                except Exception as error:  # what runs is lost with its cache
                    traceback.print_exc()
                    self.newer = self.newer or (self.model, self.version)
                    self.fail(self.running.values(), error)
                    self.running.clear()

    def turn(self) -> None:
        """Free the slots of cancelled jobs, fill free ones, and step; when idle, compile. Raises any error.

        It is a UserError if there can be no engine.
        """
        self.wake.clear()
        for slot in [slot for slot, job in self.running.items() if job not in self.pending]:
            self.engine.remove(slot)
            del self.running[slot]
        if self.newer and not self.running:
            self.begin_anew(*self.newer)
        while self.waiting and self.engine.free and not self.newer:
            job = self.waiting.popleft()
            if job in self.pending:
                job.version = self.version
                self.running[self.engine.add(job.request)] = job
        if self.running:
            self.step()
        elif self.compiled < len(self.engine.programs()):
            self.compile_next()
        elif not self.stopping:
            self.wake.wait()

    def begin_anew(self, model: GPT, version: str) -> None:
        self.model, self.version, self.newer = model, version, None
        self.engine.cache = self.engine.decoder = None  # two caches may not fit
        self.engine = self.make_engine()

    def make_engine(self) -> Engine:
        with refusing("the engine cannot start", "try fewer --slots", Exception):
            return Engine(limit_vocabulary(self.model, self.vocab_size), self.slots)

    def compile_next(self) -> None:
        with refusing("the engine cannot start", "try fewer --slots", Exception):
            self.engine.programs()[self.compiled]()
        self.compiled += 1
        if self.status == "ok":
            print(f"compiled {self.compiled} programs", flush=True)

    def step(self) -> None:
        most = max(1, min(CHUNK, int(CALL / self.per_token))) if self.per_token else 1
        began = time.perf_counter()
        pieces = self.engine.step(most)
        self.per_token = (time.perf_counter() - began) / max([1, *(len(piece.tokens) for piece in pieces)])
        owners = [self.running.pop(x.slot) if x.finished else self.running[x.slot] for x in pieces]
        self.send(list(zip(owners, pieces, strict=True)))

    def fail(self, jobs: Iterable[Job], error: Exception) -> None:
        message = f"computing failed ({type(error).__name__}); the server's log says more"
        failed = ApiError(message, status=500, code="failed")
        self.send([(job, failed) for job in jobs])

    def send(self, made: list[tuple[Job, Piece | ApiError]]) -> None:
        if not made:
            return  # there may be no loop yet
        with suppress(RuntimeError):  # the loop has ended, and with it whoever would read this
            self.loop.call_soon_threadsafe(self.deliver, made)


class Figures:
    """What Prometheus reads: counters, and gauges that are computed when it asks."""

    def __init__(self, worker: Worker):
        self.registry = own = CollectorRegistry()
        self.requests = Counter("nanojaxgpt_requests", "Texts asked for: prompts times n", registry=own)
        self.prompt_tokens = Counter("nanojaxgpt_prompt_tokens", "Tokens of their prompts", registry=own)
        self.new_tokens = Counter("nanojaxgpt_new_tokens", "Tokens drawn", registry=own)
        self.first_token = Histogram(
            "nanojaxgpt_first_token_seconds", "Wait for a text's first token", buckets=SECONDS, registry=own
        )
        for name, text, read in (
            ("slots", "Requests computed together", lambda: worker.slots),
            ("running", "Requests in slots", lambda: len(worker.running)),
            ("waiting", "Requests without a slot", lambda: len(worker.waiting)),
            ("cache_used_ratio", "Part of the cache that is filled", lambda: worker.engine.filled),
        ):
            Gauge(f"nanojaxgpt_{name}", text, registry=own).set_function(read)

    def count(self, job: Job, n: int) -> None:
        """Count n new tokens, and the wait for the first of a job."""
        self.new_tokens.inc(n)
        if n and job.submitted is not None:
            self.first_token.observe(time.perf_counter() - job.submitted)
            job.submitted = None
