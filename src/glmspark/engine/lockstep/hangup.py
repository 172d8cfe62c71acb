"""A worker's eye on rank 0 and on signals, while its main thread computes, maybe for ever.

A rank whose peer has died in the middle of a step may wait in native code, where Python handles no signal and
reads no socket. The thread here needs neither: it sleeps in poll until rank 0's end of the link is gone or a
signal has come, and ends the process.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("vllm.glmspark.lockstep")

GRACE = 1.0
"""Seconds the main thread gets to read what rank 0 said last; it ends the process itself then."""

STOPPED = 0
PARENT_GONE = 1
RANK_0_GONE = 3

End = Callable[[int], object]


def watch(link: int, signals: int | None, end: End) -> threading.Thread:
    """Call `end(code)` when the peer of socket `link` is gone, or when a byte comes on `signals`."""
    thread = threading.Thread(target=_watch, args=(link, signals, end), name="LockstepHangup", daemon=True)
    thread.start()
    return thread


def _watch(link: int, signals: int | None, end: End) -> None:
    poll = select.poll()
    poll.register(link, select.POLLRDHUP)
    if signals is not None:
        poll.register(signals, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if signals in ready:
            logger.info("lockstep: told to stop by %s", signal.Signals(os.read(signals, 1)[0]).name)
            end(STOPPED)
            return
        if link in ready:
            time.sleep(GRACE)
            logger.error("lockstep: rank 0 is gone; ending this rank")
            end(RANK_0_GONE)
            return


def end_with_parent(end: End) -> None:
    """Call `end` when the process that has started this one by multiprocessing is gone; vLLM's engine core
    would stay. Does nothing in a process that was not started so."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    try:
        handle = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        end(PARENT_GONE)
        return
    threading.Thread(target=_outlive, args=(handle, end), name="LockstepParent", daemon=True).start()


def _outlive(handle: int, end: End) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
    logger.error("lockstep: the API server is gone; ending the engine")
    end(PARENT_GONE)


def signal_bytes() -> int:
    """Have SIGTERM and SIGINT written, as bytes, to the descriptor that is returned. Main thread only."""
    read, write = socket.socketpair()
    write.setblocking(False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write.detach(), warn_on_full_buffer=False)
    return read.detach()
