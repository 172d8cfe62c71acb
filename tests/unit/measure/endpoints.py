"""A real HTTP server on loopback that misbehaves on demand, as no real engine does when asked to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


def event(**fields: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def said(text: str, finish: str | None = None) -> bytes:
    """An event with text."""
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
DONE = b"data: [DONE]\n\n"


def used(prompt: int, tokens: int) -> bytes:
    """The event that counts."""
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": tokens})


@dataclass
class Script:
    """What a chat request gets: a status, and parts of a stream with pauses (seconds) between. cut: the
    connection is broken after the last part instead of ended; hang: nothing comes after it."""

    status: str = "200 OK"
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes | float] = field(default_factory=list)
    cut: bool = False
    hang: bool = False


def answer(tokens: int, pause: float = 0.0, prompt: int = 10) -> Script:
    """A whole answer of so many one-word tokens."""
    parts: list[bytes | float] = [ROLE]
    for number in range(tokens):
        parts += [pause, said(f"w{number} ", "length" if number == tokens - 1 else None)]
    return Script(parts=[*parts, used(prompt, tokens), DONE])


@asynccontextmanager
async def server(scripts: Callable[[dict[str, Any]], Script]) -> AsyncIterator[str]:
    """Serve; yields the API's root. scripts: from a request's body to what it gets."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = [line.lower() for line in head.split("\r\n")]
            length = next((int(one.split(":")[1]) for one in lines if one.startswith("content-length")), 0)
            body = json.loads(await reader.readexactly(length) or b"null")
            if " /v1/models " in head:
                script = Script(parts=[b'{"data":[{"id":"m","max_model_len":2048}]}'])
            elif "/chat/completions" in head:
                script = scripts(body)
            else:
                script = Script(status="404 Not Found")
            lines = [f"HTTP/1.1 {script.status}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in script.headers.items()]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
            for part in script.parts:
                if isinstance(part, float):
                    await asyncio.sleep(part)
                else:
                    writer.write(part)
                    await writer.drain()
            if script.hang:
                await asyncio.sleep(60)
            if script.cut:
                writer.transport.abort()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    serving = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{serving.sockets[0].getsockname()[1]}/v1"
    finally:
        serving.close()
