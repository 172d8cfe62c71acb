"""Stopping a deployment, and cleaning up after one that nobody answers for."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from enum import StrEnum

from glmspark.errors import GlmsparkError
from glmspark.launch import lock as locks
from glmspark.launch.reaper import clean
from glmspark.launch.record import Deployment, Home
from glmspark.launch.sweep import Swept
from glmspark.nodes import processes

_PATIENCE = 15.0  # seconds: the supervisor takes 5 at most, and longer where the machine is very busy
_POLL = 0.05


class Ending(StrEnum):
    """What `stop` found and did."""

    STOPPED = "stopped"
    CLEANED = "cleaned up"
    NOTHING = "nothing to stop"


@dataclass(frozen=True)
class Stopped:
    """How a deployment was stopped. seconds: how long that took."""

    name: str
    ending: Ending
    seconds: float
    swept: Swept | None = None


def stop(home: Home) -> Stopped:
    """Stop a deployment, whatever state it is in; afterwards nothing of it runs.

    Raises GlmsparkError when something would not go.
    """
    begin = time.monotonic()
    lock = locks.take(home.lock_file) if home.path.is_dir() else None
    if lock is None:
        if not home.path.is_dir():
            return Stopped(home.name, Ending.NOTHING, 0.0)
        _stop_supervisor(home)
        return Stopped(home.name, Ending.STOPPED, time.monotonic() - begin)
    with lock:
        if not home.has_record():
            return Stopped(home.name, Ending.NOTHING, 0.0)
        over = _is_over(home)
        swept = clean(
            home,
            what="it was left behind by a glmspark that ended",
            next_step="`glmspark up` starts it again",
        )
    if swept.stubborn:
        raise GlmsparkError(
            f"something of {home.name} would not go", step=f"stop {home.name}", seen="\n".join(swept.stubborn)
        )
    ending = Ending.NOTHING if over and not (swept.processes or swept.files) else Ending.CLEANED
    return Stopped(home.name, ending, time.monotonic() - begin, swept)


def _is_over(home: Home) -> bool:
    try:
        deployment = home.read()
    except GlmsparkError:
        return False
    return deployment is not None and deployment.state.over


def _stop_supervisor(home: Home) -> None:
    """Ask the supervisor, wait for the lock; one that does not go is killed, and its reaper cleans."""
    end = time.monotonic() + _PATIENCE
    asked = False
    while time.monotonic() < end:
        if not locks.held(home.lock_file):
            return
        deployment = _readable(home)
        if not asked and deployment is not None and deployment.supervisor is not None:
            asked = processes.send(deployment.supervisor.identity, signal.SIGTERM)
        time.sleep(_POLL)
    deployment = _readable(home)
    if deployment is not None and deployment.supervisor is not None:
        processes.send(deployment.supervisor.identity, signal.SIGKILL)
        lock = locks.take(home.lock_file, wait=_PATIENCE)
        if lock is not None:
            lock.release()
            return
    raise GlmsparkError(
        f"{home.name} could not be stopped: another glmspark holds {home.lock_file}",
        step=f"stop {home.name}",
        next="try again in a moment",
    )


def _readable(home: Home) -> Deployment | None:
    try:
        return home.read()
    except GlmsparkError:
        return None
