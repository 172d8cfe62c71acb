"""One streamed chat request, timed. While events come they are only counted: measuring must cost little."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

_DATA, _DONE = b"data:", b"[DONE]"


@dataclass
class Timed:
    """One request: when what came, in seconds since it was sent.

    outcome: "ok", or what went wrong: "refused" (429 and 503), "http" (any other status), "connection" (none
    came about), "cut" (the stream ended before its end), "stalled" (nothing came for too long), "error" (the
    server said so within the stream). arrivals: one for each event that carried text, so several tokens may
    share one. last: the last token, whether it was text or not. prompt_tokens, tokens: as the server counts
    them; tokens of a broken stream are its events.
    """

    outcome: str = "ok"
    detail: str = ""
    retry_after: str | None = None
    arrivals: list[float] = field(default_factory=list)
    last: float = 0.0
    end: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    finish: str = ""
    text: str = ""
    began: float = 0.0

    @property
    def first(self) -> float | None:
        """Time to the first token in seconds (TTFT), or None where none came."""
        return self.arrivals[0] if self.arrivals else None

    @property
    def rate(self) -> float | None:
        """Tokens a second after the first, or None for fewer than two."""
        if self.tokens < 2 or not self.arrivals or self.last <= self.arrivals[0]:
            return None
        return (self.tokens - 1) / (self.last - self.arrivals[0])


class Asker:
    """Sends chat requests to one endpoint over kept connections.

    url: the API's root, ending in /v1. silence: seconds without a byte after which it stalled.
    """

    def __init__(self, url: str, key: str | None, *, silence: float = 120.0) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # The machine's proxies are not asked: a measurement goes straight to its endpoint.
        self._http = httpx.AsyncClient(
            trust_env=False,
            headers=headers,
            limits=limits,
            timeout=httpx.Timeout(silence, connect=10.0, pool=None),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get(self, path: str) -> httpx.Response:
        """GET from the server's root (not /v1). Raises httpx.HTTPError."""
        return await self._http.get(self.url.removesuffix("/v1") + path, timeout=10.0)

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """POST JSON to the server's root (not /v1). Raises httpx.HTTPError."""
        return await self._http.post(self.url.removesuffix("/v1") + path, json=body, timeout=60.0)

    async def ask(self, body: dict[str, Any]) -> Timed:
        """Send one chat request and time its stream. body: all but the fields about streaming. Never raises
        for what a server or network does; cancelled, it ends the request."""
        timed = Timed()
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        timed.began = time.perf_counter()
        events: list[bytes] = []
        try:
            async with self._http.stream("POST", f"{self.url}/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    text = (await response.aread()).decode(errors="replace")
                    timed.outcome = "refused" if response.status_code in (429, 503) else "http"
                    timed.detail = f"HTTP {response.status_code}: {text[:300]}"
                    timed.retry_after = response.headers.get("retry-after")
                else:
                    await self._receive(response, timed, events)
        except httpx.ReadTimeout:
            timed.outcome, timed.detail = "stalled", "nothing came for too long"
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            timed.outcome, timed.detail = "connection", str(error) or type(error).__name__
        except httpx.HTTPError as error:
            timed.outcome, timed.detail = "cut", str(error) or type(error).__name__
        timed.end = time.perf_counter() - timed.began
        _read(events, timed)
        return timed

    async def _receive(self, response: httpx.Response, timed: Timed, events: list[bytes]) -> None:
        rest, done = b"", False
        async for data in response.aiter_bytes():
            now = time.perf_counter() - timed.began
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(_DATA):
                    continue
                event = line[len(_DATA) :].strip()
                if event == _DONE:
                    done = True
                    continue
                events.append(event)
                # The first event names the role and the last counts tokens: neither carries text.
                if b'"choices":[]' not in event:
                    timed.last = now
                    if b'"content":""' not in event:
                        timed.arrivals.append(now)
        if not done:
            timed.outcome, timed.detail = "cut", "the stream ended before [DONE]"


def _read(events: list[bytes], timed: Timed) -> None:
    """What the events say, read after the last: text, finish, usage, and an error sent as an event."""
    parts: list[str] = []
    for event in events:
        try:
            data = json.loads(event)
            if "error" in data:
                timed.outcome, timed.detail = "error", str(data["error"])[:300]
                continue
            usage = data.get("usage")
            if usage:
                timed.prompt_tokens = int(usage["prompt_tokens"])
                timed.tokens = int(usage["completion_tokens"])
            for choice in data.get("choices") or ():
                delta = choice.get("delta") or {}
                parts.append(delta.get("reasoning") or delta.get("reasoning_content") or "")
                parts.append(delta.get("content") or "")
                timed.finish = choice.get("finish_reason") or timed.finish
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            timed.outcome, timed.detail = "error", f"not a chat event ({error}): {event[:200]!r}"
    timed.text = "".join(parts)
    if not timed.tokens:
        timed.tokens = len(timed.arrivals)


async def ask_all(asker: Asker, bodies: list[dict[str, Any]]) -> list[Timed]:
    """Send all at once and wait for all."""
    return await asyncio.gather(*(asker.ask(body) for body in bodies))
