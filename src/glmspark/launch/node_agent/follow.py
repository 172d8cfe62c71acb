"""Following a rank: its state and its log as JSON lines, and the leash in the other direction."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time

from .commands import connect, look
from .files import Home, Trouble, locked, put, put_bytes
from .log import Reader

BEAT = 2.0
"""Seconds between two signs of life to whoever follows."""
_SILENCE = 60.0
"""Seconds without a sign of life after which a follower is taken for gone, whatever the leash says."""


def follow(home: Home, *, leash: bool, at: str, lines: int, once: bool) -> int:
    """Print events as JSON lines: the state whenever it changes, and the rank's lines, until it is over.

    Standard input carries the signs of life of whoever follows; its end ends this command, and with `leash`
    and before `ready` the deployment. at: where in the log to go on; else lines: how many of it to begin
    with, all if negative. once: only what there is now, if anything. Raises Trouble where nothing is known
    of it.
    """
    state = home.state()
    if state is None:
        if once:
            put({"t": "unknown"})
            return 0
        raise Trouble(f"there is no deployment {home.name} on this node", step="follow")
    reader = Reader(home.rank_log(state["rank"]), at)
    if not at and lines >= 0:
        reader.skip_to_last(lines)
    connection = None if once else connect(home, {"do": "follow", "leash": leash}, 0.2)
    if not once:
        threading.Thread(target=_pass_on, args=(connection,), daemon=True).start()
    if connection is None:
        put({"t": "state", "state": look(home)})
    final, said = False, 0.0
    while not final:
        if time.monotonic() - said > BEAT:
            said = time.monotonic()
            put({"t": "beat"})
        if connection is not None:
            connection = _pass_events(connection)
        else:
            final = once or not locked(home.lock_file)
            time.sleep(0.0 if final else 0.1)
        while found := reader.lines(final=final):
            put({"t": "log", "lines": found, "at": reader.at})
    if not once:
        put({"t": "state", "state": look(home)})
    put({"t": "end"})
    return 0


def _pass_events(connection: socket.socket) -> socket.socket | None:
    """Hand on what the agent says within its time limit; None when it has ended."""
    with contextlib.suppress(TimeoutError):
        data = connection.recv(1 << 16)
        while data and not data.endswith(b"\n"):  # always whole lines
            with contextlib.suppress(TimeoutError):
                more = connection.recv(1 << 16)
                if not more:
                    return None
                data += more
        if not data:
            return None
        put_bytes(data)
    return connection


def _pass_on(connection: socket.socket | None) -> None:
    """Hand the follower's signs of life to the agent; where they end, so does this process."""
    while select.select([0], [], [], _SILENCE)[0]:
        data = os.read(0, 64)
        if not data:
            break
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.sendall(data)
    os._exit(0)
