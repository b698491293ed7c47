"""1,000 requests, 64 at a time, a third of them cancelled: none is lost, no slot is kept, memory stays."""

import asyncio
import random
import signal

import httpx
import openai
import pytest

from tests.tools.serving.served_run import Server

REQUESTS, TOGETHER = 1000, 64


def memory(process) -> int:
    """Return the bytes that a process has in memory."""
    with open(f"/proc/{process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


async def ask(client: openai.AsyncOpenAI, draw: random.Random) -> str:
    """Ask for a stream, perhaps leave before its end, and return what became of it."""
    n = draw.randint(1, 120)
    left = draw.randint(0, n) if draw.random() < 1 / 3 else None
    stream = await client.completions.create(
        model="chars",
        prompt="abcdefgh"[: draw.randint(1, 8)] * draw.randint(1, 8),
        max_tokens=n,
        temperature=draw.choice([0, 1]),
        logprobs=draw.choice([None, 2]),
        extra_body={"top_k": draw.choice([None, 5])},
        stream=True,
    )
    text = ""
    async for chunk in stream:
        text += chunk.choices[0].text
        if left is not None and len(text) >= left:
            await stream.close()
            return "cancelled"
    return "whole" if len(text) == n else "wrong"


async def soak(url: str, seed: int) -> list[str]:
    gate = asyncio.Semaphore(TOGETHER)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=300) as client:

        async def one(i: int) -> str:
            async with gate:
                return await ask(client, random.Random(seed + i))

        return await asyncio.gather(*(one(i) for i in range(REQUESTS)))


@pytest.mark.slow
def test_a_thousand_requests(char_run):
    server = Server(char_run, "--slots=16", "--max_waiting=100")
    asyncio.run(soak(server.url, seed=0))
    before = memory(server.process)
    outcomes = asyncio.run(soak(server.url, seed=10**6))
    assert "wrong" not in outcomes and len(outcomes) == REQUESTS
    assert 250 < outcomes.count("cancelled") < 420
    health = httpx.get(f"{server.url}/health").json()
    assert (health["running"], health["pending"]) == (0, 0)
    assert memory(server.process) < before + 30e6  # of 400 MB; the heap of a busy process breathes
    assert server.end(signal.SIGTERM) == 0
