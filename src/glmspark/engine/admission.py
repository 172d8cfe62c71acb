"""The API's port and its admission: what the node's agent does with an API that it watches over.

The agent answers on the API's port itself while no engine serves there, so both listen with SO_REUSEPORT:
the engine takes over without a moment in which nobody listens. And it may ask that no new work be taken, by
a file.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from glmspark.engine.observe import DIRECTORY

logger = logging.getLogger("vllm.glmspark")

CLOSED = "admission-closed"
"""The file in the directory that closes admission while it is there; what it says goes to clients."""

RETRY_AFTER = 10
"""Seconds after which clients are told to try again."""

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class Admission:
    """An ASGI middleware that refuses new requests for work while admission is closed: 503 with Retry-After.

    Work is whatever is posted below /v1; streams under way and all other requests go on.
    """

    def __init__(self, app: Callable[[_Message, _Receive, _Send], Awaitable[None]]) -> None:
        self._app = app
        self._file = Path(os.environ[DIRECTORY]) / CLOSED

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass a request on, or refuse it."""
        work = scope["type"] == "http" and scope["method"] == "POST" and scope["path"].startswith("/v1/")
        why = self._closed() if work else None
        if why is None:
            await self._app(scope, receive, send)
            return
        error = {"message": why, "type": "ServiceUnavailableError", "param": None, "code": 503}
        body = json.dumps({"error": error}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"retry-after", str(RETRY_AFTER).encode()),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _closed(self) -> str | None:
        try:
            return self._file.read_text(errors="replace")[:500].strip() or "no new work is taken now"
        except OSError:
            return None


def prepare(args: Any) -> None:
    """Make the server of these arguments one that an agent can watch over, where there is one."""
    if not os.environ.get(DIRECTORY):
        return
    from vllm.entrypoints.launchers import launcher

    upstream = launcher.create_server_socket

    def shared(addr: tuple[str, int], *, reuse_port: bool = True) -> Any:  # noqa: ARG001 - always
        return upstream(addr, reuse_port=True)

    launcher.create_server_socket = shared
    args.middleware = [*args.middleware, f"{Admission.__module__}.{Admission.__qualname__}"]
