"""Asking the rank's own API, as far as an agent must: its metrics, and questions with a known answer."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .spec import Api, Canary

_MOST = 8 << 20
"""Bytes of an answer that are read."""
_LINE = re.compile(r"^(vllm:\w+?)(?:_total)?(?:\{[^}]*\})? ([-+.\deE]+|NaN)\s*$", re.MULTILINE)


class ApiError(Exception):
    """It did not answer as it should: what was seen."""


@dataclass(frozen=True)
class Metrics:
    """What vLLM counts. running, waiting: requests now. tokens: of prompts and answers since its start."""

    running: float
    waiting: float
    tokens: float


def call(
    api: Api, method: str, path: str, *, seconds: float, key: str | None = None, body: Any = None
) -> tuple[int, bytes]:
    """Status and text of an answer. Raises ApiError where none comes in the time (for each read)."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body).encode()
    connection = http.client.HTTPConnection(api.host, api.port, timeout=seconds)
    try:
        connection.request(method, path, body=data, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST)
    except TimeoutError:
        raise ApiError(f"{path} did not answer within {seconds:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise ApiError(f"{path}: {error or type(error).__name__}") from None
    finally:
        connection.close()


def healthy(api: Api, seconds: float) -> bool:
    """Whether the engine serves. Never raises."""
    try:
        return call(api, "GET", "/health", seconds=seconds)[0] == 200
    except ApiError:
        return False


def metrics(api: Api, seconds: float) -> tuple[Metrics, str]:
    """What it counts, and the whole text. Raises ApiError."""
    status, data = call(api, "GET", "/metrics", seconds=seconds)
    if status != 200:
        raise ApiError(f"/metrics answers {status}")
    text = data.decode("utf-8", "replace")
    return read_metrics(text), text


def read_metrics(text: str) -> Metrics:
    """Metrics from Prometheus' text format; values of several engines are added, what is not there is 0."""
    sums: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        if value != "NaN":
            sums[name] = sums.get(name, 0.0) + float(value)
    tokens = sums.get("vllm:prompt_tokens", 0.0) + sums.get("vllm:generation_tokens", 0.0)
    return Metrics(
        sums.get("vllm:num_requests_running", 0.0), sums.get("vllm:num_requests_waiting", 0.0), tokens
    )


def one_token(api: Api, key: str | None, seconds: float) -> None:
    """Have it make one token. Raises ApiError where it does not."""
    body = {"model": api.model, "prompt": "1", "max_tokens": 1, "temperature": 0}
    status, data = call(api, "POST", "/v1/completions", seconds=seconds, key=key, body=body)
    if status != 200:
        raise ApiError(f"/v1/completions answers {status}: {data[:200].decode('utf-8', 'replace')}")


def prove(api: Api, key: str | None, canary: Canary) -> None:
    """Ask a canary. Raises ApiError where the answer is not the right one."""
    body = {
        "model": api.model,
        "messages": [{"role": "user", "content": canary.prompt}],
        "max_tokens": canary.max_tokens,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": canary.thinking},
    }
    status, data = call(api, "POST", "/v1/chat/completions", seconds=canary.seconds, key=key, body=body)
    said = data[:200].decode("utf-8", "replace")
    if status != 200:
        raise ApiError(f"/v1/chat/completions answers {status}: {said}")
    try:
        answer: Mapping[str, Any] = json.loads(data)
        text = str(answer["choices"][0]["message"]["content"] or "")
    except (ValueError, LookupError, TypeError):
        raise ApiError(f"not an answer: {said}") from None
    if not re.search(canary.expect, text):
        raise ApiError(f"to {canary.prompt[:80]!r} it answered {text[:160]!r}, not {canary.expect[:80]!r}")
