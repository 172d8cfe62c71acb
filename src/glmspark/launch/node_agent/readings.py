"""What can be seen of this node's rank from outside: processor time, halted processes, steps, the guard's."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .files import base
from .proc import Stat, title

_STEPS = struct.Struct("<QQ")
"""Steps begun and ended, as the engine keeps them in `steps-PID` of the rank's scratch directory."""
_OLD = 30.0  # seconds after which the guard's state says nothing about now


@dataclass(frozen=True)
class Reading:
    """One look. cpu: seconds of all its processes. halted: titles of those that are stopped (SIGSTOP, or a
    debugger). steps: begun and ended. gpus: utilisation in percent and power in watts of each. alerts: the
    guard's, in words."""

    cpu: float
    halted: tuple[str, ...] = ()
    steps: tuple[int, int] | None = None
    gpus: tuple[tuple[float, float], ...] = ()
    alerts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it goes over the watch."""
        return asdict(self)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Reading:
        """One that came over the watch. Raises ValueError, TypeError or LookupError for what is none."""
        steps = value.get("steps")
        return cls(
            float(value["cpu"]),
            tuple(map(str, value.get("halted") or ())),
            None if steps is None else (int(steps[0]), int(steps[1])),
            tuple((float(util), float(power)) for util, power in value.get("gpus") or ()),
            tuple(map(str, value.get("alerts") or ())),
        )


def look(family: Iterable[Stat], main: int | None, scratch: str | None) -> Reading:
    """What this node's rank shows now. main: its main process, which a title alone may not tell."""
    stats = list(family)
    halted = tuple(
        f"{title(one.pid) or '?'} (pid {one.pid}{', the main process' if one.pid == main else ''})"
        for one in stats
        if one.state in "Tt"
    )
    guard = guard_state()
    readings = guard.get("readings")
    gpus = _rows(readings.get("gpu") if isinstance(readings, dict) else None)
    seen = [(one.get("util"), one.get("power_w")) for one in gpus]
    pairs = [
        (util, power)
        for util, power in seen
        if isinstance(util, (int, float))
        if isinstance(power, (int, float))
    ]
    alerts = _rows(guard.get("alerts"))
    return Reading(
        cpu=sum(cpu_seconds(one.pid) for one in stats),
        halted=halted,
        steps=steps(scratch),
        gpus=tuple((float(util), float(power)) for util, power in pairs),
        alerts=tuple(str(one.get("what") or one.get("kind")) for one in alerts[:8]),
    )


def _rows(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, 0 where it is gone (utime and stime of proc(5))."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def steps(scratch: str | None) -> tuple[int, int] | None:
    """Steps that the rank's worker has begun and ended, None where it does not say."""
    found: list[tuple[int, int]] = []
    if scratch is not None:
        for path in Path(scratch).glob("steps-*"):
            with contextlib.suppress(OSError, struct.error):
                begun, ended = _STEPS.unpack(path.read_bytes()[: _STEPS.size])
                found.append((begun, ended))
    return max(found, default=None)


def guard_places() -> list[Path]:
    """Where a guard of this node keeps its files: this user's own, then the system's."""
    return [base().parent / "guard", Path("/var/lib/glmspark/guard")]


def guard_state() -> dict[str, Any]:
    """What the node's guard says, empty where there is none, or none that is awake and of this version."""
    for place in guard_places():
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            found = json.loads((place / "state.json").read_bytes())
            if (
                isinstance(found, dict)
                and found.get("version") == 1
                and time.time() - float(found.get("time") or 0) < _OLD
            ):
                return found
    return {}
