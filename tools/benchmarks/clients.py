"""Clients of a server, in a process of their own.

    python -m tools.benchmarks.clients PORT MODEL N TOGETHER RATE

Asks for N completions as streams. TOGETHER clients ask one after the other; with a RATE, requests come at
random instead, so many a second (a Poisson process). Prints a line of JSON: seconds for all, tokens, seconds
to each first token, and between the parts of each text.
"""

import asyncio
import json
import random
import sys
import time

NEW = 100  # tokens of an answer
PROMPTS = ("def ", "class Reader:\n", "    return ", "import os\n\n\ndef walk(top):\n")


async def ask(port: int, model: str, i: int) -> dict:
    """Ask for a completion, and return its times."""
    prompt = PROMPTS[i % len(PROMPTS)]
    body = {"model": model, "prompt": prompt, "max_tokens": NEW, "seed": i, "stream": True}
    data = json.dumps(body | {"stream_options": {"include_usage": True}})
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write((head + data).encode())
    times, tokens = [], 0
    while (line := await reader.readline()) != b"data: [DONE]\n":
        if not line:
            raise ConnectionError("the server closed the connection")
        if line.startswith(b"data: "):
            chunk = json.loads(line[6:])
            tokens = chunk["usage"]["completion_tokens"] if chunk["usage"] else tokens
            if chunk["choices"]:
                times.append(time.perf_counter())
    writer.close()
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    return {"first": times[0] - began, "gaps": gaps, "tokens": tokens}


async def together(port: int, model: str, n: int, clients: int) -> list[dict]:
    """Have so many clients ask, each for its next completion when it has the one before."""
    numbers = iter(range(n))

    async def client() -> list[dict]:
        return [await ask(port, model, i) for i in numbers]

    answers = await asyncio.gather(*(client() for _ in range(clients)))
    return [answer for own in answers for answer in own]


async def at_random(port: int, model: str, n: int, rate: float) -> list[dict]:
    """Ask at the times of a Poisson process, whether or not the answers keep up."""
    draw, asked = random.Random(0), []
    for i in range(n):
        asked.append(asyncio.create_task(ask(port, model, i)))
        await asyncio.sleep(draw.expovariate(rate))
    return await asyncio.gather(*asked)


def main() -> None:
    port, model, n, clients, rate = sys.argv[1:]
    began = time.perf_counter()
    if float(rate):
        answers = asyncio.run(at_random(int(port), model, int(n), float(rate)))
    else:
        answers = asyncio.run(together(int(port), model, int(n), int(clients)))
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - began,
                "tokens": sum(answer["tokens"] for answer in answers),
                "first": [answer["first"] for answer in answers],
                "gaps": [gap for answer in answers for gap in answer["gaps"]],
            }
        )
    )


if __name__ == "__main__":
    main()
