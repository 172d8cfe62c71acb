"""vLLM's own metrics on the node that has the API: requests, tokens, engine steps."""

from __future__ import annotations

import socket
import time
from dataclasses import asdict, dataclass
from typing import Any

from .config import is_port
from .files import Trouble

_SUMS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:generation_tokens_total": "tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
    # A histogram of tokens per engine step: its count is the number of steps (vllm/v1/metrics/loggers.py).
    "vllm:iteration_tokens_total_count": "steps",
    "vllm:num_preemptions_total": "preemptions",
}
_SHARE = "vllm:kv_cache_usage_perc"
_LONGEST = 4 << 20
_TIMEOUT, _IN_ALL = 3.0, 10.0


@dataclass(frozen=True)
class Engine:
    """One reading; counters are since the server's start, several engines are added. What the server does not
    export is None. kv_usage: share of the KV cache in use, 0 to 1."""

    running: float | None = None
    waiting: float | None = None
    tokens: float | None = None
    prompt_tokens: float | None = None
    steps: float | None = None
    preemptions: float | None = None
    kv_usage: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    @property
    def busy(self) -> bool:
        """Whether requests run or wait."""
        return bool(self.running) or bool(self.waiting)


def parse_metrics(text: str) -> Engine:
    """The reading in Prometheus' text format. Raises ValueError for a row of ours without a number."""
    found: dict[str, float] = {}
    shares = []
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        field = _SUMS.get(name)
        if field is None and name != _SHARE:
            continue
        # Labels may hold blanks and braces; the value is what follows them.
        rest = line.rpartition("}")[2] if "{" in line else line[len(name) :]
        words = rest.split()
        if not words:
            raise ValueError(f"no value: {line[:120]!r}")
        value = float(words[0])
        if field is None:
            shares.append(value)
        else:
            found[field] = found.get(field, 0.0) + value
    return Engine(**found, kv_usage=sum(shares) / len(shares) if shares else None)


def parse_url(url: str) -> tuple[str, int, str]:
    """Host, port and path of an http URL. Raises ValueError for any other."""
    rest = url.removeprefix("http://")
    if rest == url:
        raise ValueError(f"not an http URL: {url!r}")
    where, slash, path = rest.partition("/")
    host, colon, port = where.rpartition(":")
    if not colon:
        host, port = where, "80"
    if not host or not is_port(port) or any(one in path for one in "\r\n "):
        raise ValueError(f"not an http URL: {url!r}")
    return host.strip("[]"), int(port), f"{slash or '/'}{path}"


def fetch(url: str, timeout: float = _TIMEOUT) -> Engine:
    """The reading at a URL. Raises Trouble where none is to be had in time (seconds, each step, and in all).

    By hand and HTTP/1.0: the library's client would double the guard's memory.
    """
    try:
        host, port, path = parse_url(url)
        with socket.create_connection((host, port), timeout=timeout) as connection:
            request = f"GET {path} HTTP/1.0\r\nHost: {host}\r\nAccept: text/plain\r\n\r\n"
            connection.sendall(request.encode())
            data, end = bytearray(), time.monotonic() + _IN_ALL
            while chunk := connection.recv(1 << 16):
                data += chunk
                if len(data) > _LONGEST or time.monotonic() > end:
                    raise ValueError("the answer does not end")
        head, _, body = bytes(data).partition(b"\r\n\r\n")
        status = head.partition(b"\r\n")[0].split()
        if len(status) < 2 or status[1] != b"200":
            raise ValueError(f"it answers {head[:60]!r}")
        return parse_metrics(body.decode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        raise Trouble(f"{url}: {error}") from error
