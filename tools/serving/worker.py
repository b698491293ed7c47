"""The engine's thread. HTTP handlers submit requests to it, and read what it makes of them from a queue.

    worker = Worker(model, version, make_engine, on_devices, max_waiting=64)       worker.start()
    jobs = worker.submit([request, ...])                          Busy, if too many wait
    async for job, piece in jobs: ...                             until all are finished or cancelled
    worker.cancel(job)                                            its slot is free at the next step

Two queues are all that the thread and asyncio share: `inbox`, of what the handlers ask for, and a queue for
each submission, which holds at most what its requests may make. A slow reader thus holds up nobody.

The thread compiles the engine's programs one by one whenever it has nothing else to do. A request that comes
before its program is compiled waits for that one alone.
"""

import asyncio
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager

from config.command_line import UserError
from config.files import first_line
from generation.decode import CHUNK
from generation.engine import FIRST, Engine, Piece, Request
from model import GPT

# Seconds that the engine draws at a time, at most, if a token takes less. New requests enter in between, and
# text is sent. A step more often costs throughput: see docs/serving.md.
TURN = 0.02

STOP = 10.0  # seconds that the thread is given to end


class Busy(Exception):
    """Too many requests wait already."""


class Stopped(Exception):
    """The engine does not run: the server is stopping, or computing failed."""


class Job:
    """A request that was submitted. asyncio's thread alone reads and changes what is said of it here."""

    def __init__(self, request: Request, index: int, made: asyncio.Queue):
        self.request = request
        self.index = index  # among those submitted with it
        self.made = made
        self.wanted = True  # its reader waits for more of it
        self.pending = True  # neither finished nor cancelled


class Jobs:
    """Requests that were submitted together, and the queue of what the engine makes of them."""

    def __init__(self, requests: list[Request]):
        self.made: asyncio.Queue[tuple[Job, Piece | Stopped]] = asyncio.Queue()
        self.jobs = [Job(request, i, self.made) for i, request in enumerate(requests)]

    async def __aiter__(self) -> AsyncIterator[tuple[Job, Piece]]:
        """Yield what is made of each job until it is finished or cancelled. Raises Stopped."""
        while any(job.wanted for job in self.jobs):
            job, piece = await self.made.get()
            if isinstance(piece, Stopped):
                raise piece
            if job.wanted:
                job.wanted = not piece.finished
                yield job, piece


class Worker:
    """The thread that steps an engine. All methods but `run` are called by asyncio's thread."""

    def __init__(
        self,
        model: GPT,
        version: str,  # of the model's weights
        make_engine: Callable[[GPT], Engine],
        on_devices: Callable[[], AbstractContextManager],
        max_waiting: int,
    ):
        self.model, self.version = model, version
        self.newer: tuple[GPT, str] | None = None  # weights to go on with, when nothing runs
        self.make_engine, self.on_devices = make_engine, on_devices
        self.max_waiting = max_waiting
        self.inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.waiting: deque[Job] = deque()  # those without a slot, in order
        self.running: dict[int, Job] = {}  # by slot
        self.pending = 0  # requests submitted and not finished; asyncio's thread alone changes it
        self.stopping = False
        self.per_token = 0.0  # seconds, of the last step
        self.compiled = 0  # programs, of all that the engine has
        self.begun = threading.Event()
        self.error: Exception | None = None  # that ended the thread
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)

    # Called by asyncio's thread

    def start(self) -> None:
        """Start the thread, and return when it has room for all slots. It then compiles. Raises UserError."""
        self.thread.start()
        self.begun.wait()
        self.check()

    def check(self) -> None:
        """Raise UserError if the engine could not start."""
        if self.error:
            raise UserError(f"the engine cannot start ({first_line(self.error)}): try fewer --slots")

    def submit(self, requests: list[Request]) -> Jobs:
        """Have requests computed. Raises Busy if too many wait, and Stopped if the server is stopping."""
        if not self.works:
            raise Stopped("the server is stopping")
        if self.pending + len(requests) > self.room:  # of those that run and those that wait
            raise Busy(f"{self.pending} requests are running or waiting: try again later")
        self.loop = asyncio.get_running_loop()
        self.pending += len(requests)
        jobs = Jobs(requests)
        self.inbox.put(lambda: self.waiting.extend(jobs.jobs))
        return jobs

    @property
    def works(self) -> bool:
        return self.thread.is_alive() and not self.stopping

    @property
    def serves(self) -> bool:
        """Whether a request gets its first tokens without waiting for a program to be compiled."""
        return self.works and self.compiled >= FIRST

    @property
    def status(self) -> str:
        if not self.works:
            return "stopped"
        n = len(self.engine.programs())
        return "ok" if self.compiled == n else f"compiling {self.compiled + 1} of {n}"

    def cancel(self, job: Job) -> None:
        """Free a job's slot at the next step, or its place among those that wait. A finished one has none."""
        job.wanted = False
        if job.pending:
            self.end(job)
            self.inbox.put(lambda: self.drop(job))

    def replace(self, model: GPT, version: str) -> None:
        """Go on with newer weights of the same shape, once what runs is finished."""
        self.inbox.put(lambda: setattr(self, "newer", (model, version)))

    def stop(self) -> None:
        """Take no new requests, and return when those there are finished or cancelled, or after a while."""
        self.stopping = True
        self.inbox.put(lambda: None)
        self.thread.join(STOP)

    def deliver(self, made: list[tuple[Job, Piece | Stopped]]) -> None:
        """Put what was made into the queues of those that want it."""
        for job, piece in made:
            if job.wanted:
                job.made.put_nowait((job, piece))
                if isinstance(piece, Stopped) or piece.finished:
                    self.end(job)

    def end(self, job: Job) -> None:
        self.pending -= job.pending
        job.pending = False

    # Called by the engine's thread

    def run(self) -> None:
        with self.on_devices():
            try:
                self.engine = self.make_engine(self.model)
                self.slots = len(self.engine.slots)
                self.room = self.slots + self.max_waiting
            except Exception as error:
                self.error = error
                return
            finally:
                self.begun.set()
            while not (self.stopping and not self.waiting and not self.running and self.inbox.empty()):
                try:
                    self.turn()
                except Exception as error:
                    traceback.print_exc()
                    self.start_again(error)

    def turn(self) -> None:
        """Take what is in the inbox, fill free slots, and let the engine make a step; if idle, compile."""
        idle = not self.waiting and not self.running
        if idle and self.inbox.empty() and self.compiled < len(self.engine.programs()):
            return self.compile_next()
        while idle or not self.inbox.empty():
            self.inbox.get()()
            idle = False
        if self.newer and not self.running:
            (self.model, self.version), self.newer = self.newer, None
            self.engine = self.make_engine(self.model)
        while self.waiting and self.engine.free and not self.newer:
            job = self.waiting.popleft()
            self.running[self.engine.add(job.request)] = job
        if self.running:
            self.step()

    def compile_next(self) -> None:
        """Compile a program before a request needs it. If that fails, the server takes no more requests."""
        try:
            self.engine.programs()[self.compiled]()
        except Exception as error:
            self.error, self.stopping = error, True
            return
        self.compiled += 1
        if self.status == "ok":
            print(f"compiled {self.compiled} programs", flush=True)

    def step(self) -> None:
        most = max(1, min(CHUNK, int(TURN / self.per_token))) if self.per_token else 1
        began = time.perf_counter()
        pieces = self.engine.step(most)
        self.per_token = (time.perf_counter() - began) / max([1, *(len(piece.tokens) for piece in pieces)])
        owners = [self.running.pop(x.slot) if x.finished else self.running[x.slot] for x in pieces]
        self.tell(list(zip(owners, pieces, strict=True)))

    def drop(self, job: Job) -> None:
        self.waiting = deque(other for other in self.waiting if other is not job)
        for slot in [slot for slot, other in self.running.items() if other is job]:
            self.engine.remove(slot)
            del self.running[slot]

    def start_again(self, error: Exception) -> None:
        """Fail what runs, whose keys and values are lost, and go on with a new engine."""
        lost = [*self.running.values(), *self.waiting]
        self.running.clear()
        self.waiting.clear()
        failed = Stopped(f"computing failed ({type(error).__name__}); the server's log says more")
        self.tell([(job, failed) for job in lost])
        self.engine = self.make_engine(self.model)

    def tell(self, made: list[tuple[Job, Piece | Stopped]]) -> None:
        try:
            self.loop.call_soon_threadsafe(self.deliver, made)
        except RuntimeError:  # the loop has ended, and with it whoever would read this
            pass
