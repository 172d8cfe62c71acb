"""Throughput of lockstep beside `vllm serve` with mp, on the same machine in the same run.

    python -m bench.lockstep [--tp 2] [--pp 1] [--rounds 2] [--json]

The executors take turns (A B B A ...), for a machine's speed drifts; per executor and number of streams the
median over the rounds counts. Exit code 1 where lockstep is below --bar (0.9) of mp anywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import defaultdict

import httpx

from bench.deployments import EXECUTORS, serving
from tests.engine.ranks import Layout

STREAMS = (1, 8, 32)


def requests(count: int, seed: int) -> list[tuple[list[int], int]]:
    """(prompt ids, tokens to write) of `count` requests: 8-120 tokens in, 16-160 out."""
    rng = random.Random(seed)
    return [
        ([rng.randrange(3, 500) for _ in range(rng.randrange(8, 120))], rng.randrange(16, 160))
        for _ in range(count)
    ]


async def load(port: int, streams: int, seconds: float, seed: int) -> float:
    """Tokens per second that come out of `streams` requests at a time for about `seconds`."""
    written, end = 0, time.monotonic() + seconds
    jobs = iter(requests(100_000, seed))
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=240, limits=limits) as client:

        async def one() -> None:
            nonlocal written
            while time.monotonic() < end:
                ids, tokens = next(jobs)
                answer = await client.post(
                    "/v1/completions",
                    json={
                        "model": "glm-tiny",
                        "prompt": ids,
                        "max_tokens": tokens,
                        "temperature": 0,
                        "ignore_eos": True,
                    },
                )
                answer.raise_for_status()
                written += answer.json()["usage"]["completion_tokens"]

        begun = time.monotonic()
        await asyncio.gather(*(one() for _ in range(streams)))
        return written / (time.monotonic() - begun)


def measure(executor: str, layout: Layout, seconds: float, seed: int) -> dict[int, float]:
    """Tokens per second by number of streams, of one start."""
    with serving(executor, layout, {"max-num-seqs": str(max(STREAMS))}) as ranks:
        asyncio.run(load(ranks.port, max(STREAMS), seconds / 2, seed))  # warm up
        return {streams: asyncio.run(load(ranks.port, streams, seconds, seed)) for streams in STREAMS}


def main() -> int:
    """Measure and print. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.lockstep", description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2, help="starts of each executor")
    parser.add_argument("--seconds", type=float, default=15, help="of each load")
    parser.add_argument("--against", choices=[name for name in EXECUTORS if name != "lockstep"], default="mp")
    parser.add_argument("--bar", type=float, default=0.9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pair = (options.against, "lockstep")
    found: dict[str, dict[int, list[float]]] = {name: defaultdict(list) for name in pair}
    for number in range(options.rounds):
        for name in pair if number % 2 == 0 else reversed(pair):
            for streams, rate in measure(
                name, Layout(options.tp, options.pp), options.seconds, number
            ).items():
                found[name][streams].append(rate)
                print(
                    f"{name:9} {streams:3} streams {rate:8.1f} tokens/s   (load {os.getloadavg()[0]:.1f})",
                    file=sys.stderr,
                    flush=True,
                )
    rows = []
    for streams in STREAMS:
        theirs, ours = (statistics.median(found[name][streams]) for name in pair)
        rows.append({"streams": streams, pair[0]: theirs, "lockstep": ours, "ratio": ours / theirs})
    if options.json:
        print(json.dumps({"tp": options.tp, "pp": options.pp, "rows": rows, "all": found}, indent=2))
    else:
        for row in rows:
            print(
                f"{row['streams']:3} streams: {pair[0]} {row[pair[0]]:8.1f}, lockstep "
                f"{row['lockstep']:8.1f} tokens/s, ratio {row['ratio']:.2f}"
            )
    return 0 if all(row["ratio"] >= options.bar for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
