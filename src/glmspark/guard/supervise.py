"""Where there is no systemd: a parent that starts the guard again whenever it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

from .files import say

_AGAIN = 0.5
"""Seconds until it is started again."""
_FAST, _SLOW = 5.0, 30.0
"""A guard that lives shorter than the first is started again only after the second: it cannot begin."""


def supervise(home: str) -> int:
    """Keep a guard running in `home` until SIGTERM, which ends both."""
    over, child = False, 0

    def finish(*_: object) -> None:
        nonlocal over
        over = True
        if child:
            os.kill(child, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, finish)
    argv = [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0]), "run", "--home", home]  # noqa: PTH100
    while not over:
        begin = time.monotonic()
        try:
            child = _start(argv)
        except OSError as error:  # no memory for another process now
            say(f"the guard cannot be started: {error.strerror}")
            _pause(_SLOW / 10, lambda: over)
            continue
        _, status = os.waitpid(child, 0)
        child = 0
        lived = time.monotonic() - begin
        if not over:
            say(f"the guard ended with {os.waitstatus_to_exitcode(status)} after {lived:.0f} s")
            _pause(_SLOW if lived < _FAST and os.WIFEXITED(status) else _AGAIN, lambda: over)
    return 0


def _pause(seconds: float, over: object) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and callable(over) and not over():
        time.sleep(0.1)


def _start(argv: list[str]) -> int:
    """Start a program that ends when this one does."""
    libc = ctypes.CDLL(None)
    pid = os.fork()
    if pid == 0:
        try:
            libc.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.execv(argv[0], argv)  # noqa: S606 - there is no shell on purpose
        finally:
            os._exit(127)
    return pid
