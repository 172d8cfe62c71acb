"""Two ends of a link in one process, and what stands between them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from glmspark.engine.lockstep.link import Link

KEYS = b"k" * 32, b"l" * 32


def link_pair() -> tuple[Link, Link]:
    """Rank 0's end and a follower's, over a socket pair."""
    here, there = socket.socketpair()
    return Link(here, *KEYS, "rank 1"), Link(there, *reversed(KEYS), "rank 0")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


class Outcome:
    """What a function in a thread returned or raised."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function, *args), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self.value = function(*args)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error

    def get(self, seconds: float = 10) -> Any:
        """Its value; raises what it raised."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "it does not end"
        if self.error is not None:
            raise self.error
        return self.value
