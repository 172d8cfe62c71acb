"""Many streams at once, most of them cut off at a random moment: does it hang, or say something else?

    python -m bench.soak [--executor lockstep] [--streams 64] [--seconds 300]

Every stream must say what its prompt is known to be answered with, up to where it is cut. Afterwards nothing
may be left running, and every prompt must be answered as before. Exit code 1 where any of that does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.engine.ranks import Layout
from tools.glm_tiny.prompts import FIXED_PROMPTS, Prompt

SILENCE = 60.0
"""Seconds without a word on a stream that count as a hang."""


def body(prompt: Prompt, *, stream: bool) -> dict[str, Any]:
    """A greedy chat request."""
    return {
        "model": "glm-tiny",
        "messages": prompt.messages,
        "max_tokens": prompt.max_tokens,
        "temperature": 0,
        "stream": stream,
        "chat_template_kwargs": prompt.template,
        **({"tools": prompt.declared} if prompt.declared else {}),
    }


@dataclass
class Report:
    """What happened. silences: the longest wait of each stream for its next chunk, in seconds."""

    seconds: float = 0.0
    whole: int = 0
    cut: int = 0
    characters: int = 0
    silences: list[float] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    running_after: float = -1.0

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "seconds": round(self.seconds, 1),
            "asked": self.whole + self.cut,
            "whole": self.whole,
            "cut": self.cut,
            "characters": self.characters,
            "longest_silence_s": round(max(self.silences, default=0.0), 2),
            "running_after": self.running_after,
            "troubles": self.troubles[:20],
        }


class Soak:
    """One soak against the API at `url` (without /v1)."""

    def __init__(self, url: str, *, streams: int, seed: int = 0) -> None:
        self.client = httpx.AsyncClient(
            base_url=url, timeout=SILENCE, limits=httpx.Limits(max_connections=streams + 4)
        )
        self.streams = streams
        self.random = random.Random(seed)
        self.report = Report()
        self.expected: list[str] = []

    async def run(self, seconds: float) -> Report:
        """Ask every prompt once, soak, and ask again."""
        async with self.client:
            self.expected = [await self._whole(prompt) for prompt in FIXED_PROMPTS]
            begun = time.monotonic()
            await asyncio.gather(*(self._worker(begun + seconds) for _ in range(self.streams)))
            self.report.seconds = time.monotonic() - begun
            self.report.running_after = await self._settled()
            if self.report.running_after:
                self.report.troubles.append(f"{self.report.running_after:.0f} requests are left running")
            for prompt, before in zip(FIXED_PROMPTS, self.expected, strict=True):
                if (after := await self._whole(prompt)) != before:
                    self.report.troubles.append(f"{prompt.user[:40]!r}: {before!r} before, {after!r} after")
        return self.report

    async def _whole(self, prompt: Prompt) -> str:
        text = ""
        async with self.client.stream(
            "POST", "/v1/chat/completions", json=body(prompt, stream=True)
        ) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                text += said(line)
        return text

    async def _worker(self, end: float) -> None:
        while time.monotonic() < end:
            number = self.random.randrange(len(FIXED_PROMPTS))
            # A third is heard to the end; of the others some are cut before the first word.
            cut = self.random.choice([None, self.random.randrange(8), self.random.randrange(120)])
            try:
                await self._stream(number, cut)
            except (httpx.HTTPError, ValueError) as error:
                self.report.troubles.append(f"{FIXED_PROMPTS[number].user[:40]!r}: {error!r}")
                await asyncio.sleep(1)

    async def _stream(self, number: int, cut: int | None) -> None:
        text, chunks, silence, since = "", 0, 0.0, time.monotonic()
        payload = body(FIXED_PROMPTS[number], stream=True)
        async with self.client.stream("POST", "/v1/chat/completions", json=payload) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                now = time.monotonic()
                silence, since = max(silence, now - since), now
                text += said(line)
                chunks += 1
                if cut is not None and chunks >= cut:
                    break
            else:
                cut = None
        self.report.silences.append(silence)
        self.report.characters += len(text)
        self.report.whole += cut is None
        self.report.cut += cut is not None
        known = self.expected[number]
        if text != known if cut is None else not known.startswith(text):
            self.report.troubles.append(f"{FIXED_PROMPTS[number].user[:40]!r}: {text!r}, not {known!r}")

    async def _settled(self) -> float:
        """Requests that still run after the streams were cut, once that is none or 10 s have passed."""
        end = time.monotonic() + 10
        while True:
            text = (await self.client.get("/metrics")).text
            values = re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", text, re.MULTILINE)
            left = sum(map(float, values))
            if not values:
                raise ValueError("the API has no vllm:num_requests_running")
            if not left or time.monotonic() > end:
                return left
            await asyncio.sleep(0.2)


def said(line: str) -> str:
    """What one line of a stream adds to reasoning, answer and tool calls. ValueError for an error event."""
    if not line.startswith("data: {"):
        return ""
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        raise ValueError(str(event["error"]))
    text = ""
    for choice in event["choices"]:
        delta = choice["delta"]
        text += (delta.get("reasoning") or delta.get("reasoning_content") or "") + (
            delta.get("content") or ""
        )
        for call in delta.get("tool_calls") or ():
            text += call["function"].get("name") or ""
            text += call["function"].get("arguments") or ""
    return text


def main() -> int:
    """Serve, soak, print. Returns the exit code."""
    from bench.deployments import EXECUTORS, serving

    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--executor", choices=EXECUTORS, default="lockstep")
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    flags = {
        "max-num-seqs": str(options.streams),
        "reasoning-parser": "glm45",
        "tool-call-parser": "glm47",
        "enable-auto-tool-choice": "",
    }
    with serving(options.executor, Layout(options.tp, options.pp), flags) as ranks:
        soak = Soak(f"http://127.0.0.1:{ranks.port}", streams=options.streams, seed=options.seed)
        report = asyncio.run(soak.run(options.seconds))
        ended = [rank for rank, process in enumerate(ranks.processes) if process.poll() is not None]
    report.troubles += [f"rank {rank} has ended" for rank in ended]
    print(json.dumps({"executor": options.executor, **vars(options), **report.to_json()}, indent=2))
    return 1 if report.troubles else 0


if __name__ == "__main__":
    sys.exit(main())
