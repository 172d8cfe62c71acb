"""Where a rank stands, why it ended, and the leash that binds it to the control machine. Pure."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .files import Trouble
from .spec import Spec

LEASH, LEASH_FIRST, LEASH_CLOSED = 15.0, 30.0, 5.0
"""Seconds without a sign of the control machine: at all, before the first, after its connection closed."""

_NEXT = {
    "starting": {"running", "waiting", "stopping"},
    "running": {"ready", "stopping"},
    "ready": {"restarting", "stopping"},
    "restarting": {"restarting", "waiting", "ready", "stopping"},
    "waiting": {"restarting", "stopping"},
    "stopping": {"stopped", "failed"},
    "stopped": set(),
    "failed": set(),
}
OVER = ("stopped", "failed")


def turn(state: Mapping[str, Any], wanted: str, *, at: float) -> dict[str, Any]:
    """The state after a step. Raises ValueError for one that does not follow: nothing comes back to life."""
    if wanted not in _NEXT[state["state"]]:
        raise ValueError(f"{state['state']} is not followed by {wanted}")
    return {**state, "state": wanted, "since": at}


def reason_of(
    what: str,
    spec: Spec,
    *,
    seen: str | None = None,
    advice: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A reason as records hold it: of this rank and node unless `more` says otherwise."""
    known = {"what": what, "rank": spec.rank, "node": spec.node, "exit_code": None, "signal": None}
    return {**known, "seen": seen, "next": advice, "at": time.time(), **more}


def trouble_reason(trouble: Trouble, spec: Spec, **more: Any) -> dict[str, Any]:
    """A Trouble as a reason."""
    step, seen, advice = (trouble.fields[name] for name in ("step", "seen", "next"))
    return reason_of(str(trouble), spec, seen=seen or step, advice=advice, **more)


def describe_end(status: int | None) -> tuple[int | None, str | None, str]:
    """Exit code, signal name and both in words, from a code as Popen gives it (negative: a signal)."""
    if status is None:
        return None, None, "ended"
    if status >= 0:
        return status, None, f"ended with exit code {status}"
    names = {int(one): one.name for one in signal.Signals}
    name = names.get(-status, f"signal {-status}")
    return None, name, f"was killed by {name}"


def container_status(code: int) -> int:
    """A container's exit code as Popen gives it: above 128 it stands for a signal."""
    return -(code - 128) if 128 < code < 128 + signal.NSIG else code


@dataclass
class Leash:
    """Whether the machine that started all this is still there, until the deployment is proven.

    Times are monotonic seconds. A closed connection leaves some time to come back.
    """

    began: float
    last: float | None = None
    closed: float | None = None
    proven: bool = False

    def beat(self, now: float) -> None:
        """A sign of life."""
        self.last, self.closed = now, None

    def close(self, now: float) -> None:
        """The connection that carried the signs is gone."""
        self.closed = now

    def shift(self, seconds: float) -> None:
        """Time in which this agent itself did not run counts for nothing."""
        self.began += seconds
        self.last = None if self.last is None else self.last + seconds
        self.closed = None if self.closed is None else self.closed + seconds

    def broken(self, now: float) -> str | None:
        """Why it is broken, None while it holds."""
        if self.proven:
            return None
        if self.last is None:
            silent = now - self.began > LEASH_FIRST
            return "the machine that started it never began to follow it" if silent else None
        if self.closed is not None and now - self.closed > LEASH_CLOSED:
            return "the machine that started it closed its connection before the deployment was ready"
        if now - self.last > LEASH:
            return f"the machine that started it was silent for {LEASH:g} s before the deployment was ready"
        return None
