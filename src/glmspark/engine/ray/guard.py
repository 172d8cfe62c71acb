"""A ray node in a child process, and what cleans up after it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from glmspark.engine.ray import family
from glmspark.engine.ray.node import FAILED, STOPPED, Life, say

_LONGEST_END = 2.5  # seconds


def live(life: Life) -> int:
    """Run the node to its end in this process; its exit code."""
    family.adopt_orphans()
    return asyncio.run(life.run())


def guard(life: Life) -> int:
    """Run the node in a child and clean up after it, however it ends. Returns the exit code.

    Whoever kills the child leaves its processes to this one, which ends them; whoever kills this one gets the
    child a SIGTERM, which does the same. To be called while this process has a single thread.
    """
    family.adopt_orphans()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            family.end_with_parent(parent)
            code = live(life)
        finally:
            sys.stdout.flush()
            os._exit(code)

    asked = ended = False

    def stop(*_: object) -> None:
        nonlocal asked
        if not ended:  # else the sweep is under way, and must not be interrupted
            asked = True
            os.kill(child, signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, _LONGEST_END)

    def kill(*_: object) -> None:
        if not ended:
            os.kill(child, signal.SIGKILL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGALRM, kill)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # its number stays its own until `ended` is set
    ended = True
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    killed = os.WIFSIGNALED(status)
    if left := family.sweep(life.directory):
        say(f"would not go: {', '.join(left)}")
    if killed and not asked:
        say(f"the node's own process was ended by {signal.Signals(os.WTERMSIG(status)).name}")
        return FAILED
    return STOPPED if asked else os.waitstatus_to_exitcode(status)
