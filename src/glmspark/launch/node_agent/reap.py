"""Reaping what an agent leaves when it is killed."""

from __future__ import annotations

import os
import signal
import time

from .files import Home, say
from .sweep import close_lost, sweep


def reap(home: Home, pipe: int) -> int:
    """Wait for the agent's end; where it says nothing before it, stop its rank. It holds the lock as well."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir(home.path)
    if os.read(pipe, 1) == b".":
        return 0
    swept = sweep(home)
    if (home.state() or {}).get("state") == "starting":
        time.sleep(1.0)  # for a container whose start was under way
        swept.containers += sweep(home).containers
    say(f"the agent was killed; removed {swept}")
    close_lost(home, "a rank's agent ended unexpectedly", swept)
    return 0
