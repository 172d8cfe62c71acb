"""What to do, from what was seen: pure functions, so that the same readings always lead to the same actions.

Loading: the page cache is dropped, and memory compacted, when free memory falls toward what the load still
needs; at no other time. Serving: below the first threshold new requests are turned away, below the second
one the deployment stops on all ranks. A threshold counts as passed only after some time below it, and as left
only well above it, so that a moment changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .config import MIB, Thresholds, default_thresholds, load_floor
from .deployments import Deployed
from .memory import Memory

LEVELS = ("ok", "low", "critical")

_LOW_AFTER, _CRITICAL_AFTER = 2.0, 0.5
"""Seconds below a threshold before it counts."""
_CALM_AFTER, _CALM = 10.0, 1.25
"""Seconds above so many times a threshold before it is left."""
_PRESSURE, _STRONG = 10.0, 20.0
"""Per cent of the last 10 s: in which some tasks waited for memory (pressure), in which all did (strong)."""
_SWAPS, _SWAPS_HARD = MIB, 64 * MIB
"""Bytes swapped out a second that tell of pressure, and of strong pressure."""
_REFUSED = 30.0
"""Seconds for which a refusal of the GPU driver (NV_ERR_NO_MEMORY) counts."""
_DROP_AGAIN, _DROP_LONGEST = 5.0, 60.0
"""Seconds between two drops: at least, and at most after drops that brought little."""
_WORTH = 0.01
"""Share of memory that the page cache must have for a drop to be worth it."""
_STOP_NEXT = 15.0
"""Seconds that a stop has to take effect before another deployment is stopped, or the same is told again."""
_FORGOTTEN = 120.0
"""Seconds for which others are stopped before one that was told already."""
_REMIND = 10.0
"""Seconds after which a closed admission is told again: an agent forgets it after 30 s."""


@dataclass(frozen=True)
class Action:
    """Something to do. kind: drop-page-cache, compact, close-admission, open-admission, stop. reading: the
    numbers that led to it. quiet: a repetition that is not worth a record."""

    kind: str
    why: str
    reading: Mapping[str, Any] = field(default_factory=dict)
    deployment: str | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Seen:
    """What a decision looks at. now: monotonic seconds. refusals: NV_ERR_NO_MEMORY lines since the last
    look. unified: whether the GPU says that it shares the host's memory."""

    now: float
    memory: Memory
    deployments: Sequence[Deployed] = ()
    refusals: int = 0
    unified: bool = False


@dataclass(frozen=True)
class History:
    """What a decision has to know of the ones before. Times are monotonic seconds.

    began: by loading deployment, bytes in use when it was first seen. before_drop: page cache at the last
    drop. stopped: by deployment, when it was told to stop.
    """

    level: str = "ok"
    low_since: float | None = None
    critical_since: float | None = None
    calm_since: float | None = None
    refused_at: float | None = None
    dropped_at: float | None = None
    before_drop: int = 0
    wait: float = _DROP_AGAIN
    closed: bool = False
    told_at: float = 0.0
    began: Mapping[str, int] = field(default_factory=dict)
    stopped: Mapping[str, float] = field(default_factory=dict)


def strictest(deployments: Sequence[Deployed], total: int) -> Thresholds:
    """The thresholds that count for the node: the highest of its active deployments'. total: bytes."""
    active = [one.thresholds for one in deployments if one.active]
    return max(active, key=lambda one: one.low, default=default_thresholds(total))


def raw_level(memory: Memory, limits: Thresholds, *, unified: bool, refused: bool = False) -> str:
    """Where memory stands this moment. unified: whether the GPU takes from it too. refused: whether it was
    refused some.

    MemAvailable alone would miss what hurts most on unified memory: no free page for the driver while the
    page cache counts as available. MemFree alone would cry wolf, for a busy page cache leaves it low on every
    healthy machine. So free memory counts where the GPU needs it and the kernel or the driver shows that it
    is missed.
    """
    waits_hard = unified and (memory.psi_full >= _STRONG or memory.swap_out >= _SWAPS_HARD)
    waits = waits_hard or (unified and (memory.psi_some >= _PRESSURE or memory.swap_out >= _SWAPS))
    scarce = min(memory.free, memory.available) < limits.low
    if memory.available < limits.critical or (memory.free < limits.critical and waits_hard):
        return "critical"
    if refused and scarce:
        return "critical"
    if memory.available < limits.low or (memory.free < limits.low and waits):
        return "low"
    return "ok"


def next_level(history: History, raw: str, memory: Memory, limits: Thresholds, now: float) -> History:
    """The history with the level that counts now; see the module for its hysteresis."""
    low_since = (history.low_since if history.low_since is not None else now) if raw != "ok" else None
    critical_since = None
    if raw == "critical":
        critical_since = history.critical_since if history.critical_since is not None else now
    level = history.level
    if critical_since is not None and now - critical_since >= _CRITICAL_AFTER:
        level = "critical"
    elif low_since is not None and now - low_since >= _LOW_AFTER and level == "ok":
        level = "low"
    bound = limits.critical if level == "critical" else limits.low
    calm = raw == "ok" or (level == "critical" and raw == "low")
    calm = calm and memory.available > bound * _CALM
    calm_since = (history.calm_since if history.calm_since is not None else now) if calm else None
    if level != "ok" and calm_since is not None and now - calm_since >= _CALM_AFTER:
        level = "low" if level == "critical" and memory.available <= limits.low * _CALM else "ok"
        calm_since = None
    return replace(
        history, level=level, low_since=low_since, critical_since=critical_since, calm_since=calm_since
    )


def decide(history: History, seen: Seen) -> tuple[History, list[Action]]:
    """What to do now, and the history for the next time."""
    memory, now = seen.memory, seen.now
    limits = strictest(seen.deployments, memory.total)
    if seen.refusals:
        history = replace(history, refused_at=now)
    refused = history.refused_at is not None and now - history.refused_at < _REFUSED
    unified = seen.unified if limits.unified is None else limits.unified
    raw = raw_level(memory, limits, unified=unified, refused=refused)
    if seen.refusals and raw == "critical":  # the node may be lost within seconds: no time to look twice
        history = replace(history, critical_since=now - _CRITICAL_AFTER)
    history = next_level(history, raw, memory, limits, now)
    history = _remember(history, seen)
    reading = _reading(memory, limits)

    actions: list[Action] = []
    history, dropped = _drop(history, seen, limits, reading, refused=refused)
    actions += dropped
    history, told = _admission(history, seen, reading)
    actions += told
    if history.level == "critical" and raw == "critical" and not _saving(history, seen):
        history, stops = _stop(history, seen, limits, reading, refused=refused)
        actions += stops
    return history, actions


def _saving(history: History, seen: Seen) -> bool:
    """Whether the drop that was the first answer to this plight still has time to help a load."""
    dropped, since = history.dropped_at, history.critical_since
    if dropped is None or seen.now - dropped >= _DROP_AGAIN:
        return False
    if history.refused_at is not None and history.refused_at > dropped:
        return False
    first = since is None or dropped <= since + 1.0
    return first and all(one.phase == "loading" for one in seen.deployments if one.active)


def _remember(history: History, seen: Seen) -> History:
    """Forget what is over: loads that have ended, stops of long ago."""
    loading = {one.name for one in seen.deployments if one.phase == "loading"}
    began = {name: used for name, used in history.began.items() if name in loading}
    began |= {name: seen.memory.used for name in loading if name not in began}
    stopped = {name: at for name, at in history.stopped.items() if seen.now - at < _FORGOTTEN}
    return replace(history, began=began, stopped=stopped)


def _reading(memory: Memory, limits: Thresholds) -> dict[str, Any]:
    return {
        "free": memory.free,
        "available": memory.available,
        "page_cache": memory.page_cache,
        "huge_free": memory.huge_free,
        "psi_some": memory.psi_some,
        "psi_full": memory.psi_full,
        "swap_out": round(memory.swap_out),
        "low": limits.low,
        "critical": limits.critical,
    }


def load_left(history: History, seen: Seen) -> int | None:
    """Bytes that the loads under way still need; None where no plan says it."""
    left: int | None = None
    for one in seen.deployments:
        if one.phase == "loading" and one.thresholds.load_need is not None:
            grown = max(0, seen.memory.used - history.began.get(one.name, seen.memory.used))
            left = (left or 0) + max(0, one.thresholds.load_need - grown)
    return left


def _drop(
    history: History, seen: Seen, limits: Thresholds, reading: Mapping[str, Any], *, refused: bool
) -> tuple[History, list[Action]]:
    loading = [one for one in seen.deployments if one.phase == "loading"]
    serving = any(one.phase == "serving" for one in seen.deployments)
    unified = any(
        seen.unified if one.thresholds.unified is None else one.thresholds.unified for one in loading
    )
    memory, now = seen.memory, seen.now
    if not unified or serving or memory.page_cache < memory.total * _WORTH:
        return history, []
    if history.dropped_at is not None and now - history.dropped_at < history.wait:
        return history, []
    left = load_left(history, seen)
    want = load_floor(memory.total) if left is None else left + limits.low
    if memory.free >= want and not refused:
        return history, []
    # Twice as long until the next one where the last one brought little: what is mapped cannot be dropped.
    little = history.dropped_at is not None and memory.page_cache > history.before_drop * 0.9
    wait = min(history.wait * 2, _DROP_LONGEST) if little else _DROP_AGAIN
    history = replace(history, dropped_at=now, before_drop=memory.page_cache, wait=wait)
    if refused:
        why = "the GPU was refused memory while a model loads"
    elif left is None:
        why = f"a model loads and {_size(memory.free)} are free, less than {_size(want)}"
    else:
        why = f"the load needs {_size(left)} more and {_size(memory.free)} are free"
    actions = [Action("drop-page-cache", why, {**reading, "load_left": left}, loading[0].name)]
    if memory.huge_free is None or memory.huge_free < want // 2:
        fewer = "free memory lies in small pieces" if memory.huge_free is not None else why
        actions.append(Action("compact", fewer, {**reading, "load_left": left}, loading[0].name))
    return history, actions


def _admission(history: History, seen: Seen, reading: Mapping[str, Any]) -> tuple[History, list[Action]]:
    serving = [one for one in seen.deployments if one.phase == "serving"]
    close = history.level != "ok" and bool(serving)
    if close and not history.closed:
        why = f"memory is {history.level}: {_size(seen.memory.available)} left"
        told = [Action("close-admission", why, reading, one.name) for one in serving]
        return replace(history, closed=True, told_at=seen.now), told
    if close and seen.now - history.told_at >= _REMIND:
        told = [Action("close-admission", "still so", reading, one.name, quiet=True) for one in serving]
        return replace(history, told_at=seen.now), told
    if history.closed and not close:
        why = f"{_size(seen.memory.available)} are left again"
        told = [Action("open-admission", why, reading, one.name) for one in serving]
        return replace(history, closed=False), told
    return history, []


def _stop(
    history: History, seen: Seen, limits: Thresholds, reading: Mapping[str, Any], *, refused: bool
) -> tuple[History, list[Action]]:
    """Stop the largest deployment, and another one only if that did not help."""
    if any(seen.now - at < _STOP_NEXT for at in history.stopped.values()):
        return history, []
    left = [one for one in seen.deployments if one.active]
    if not left:
        return history, []
    largest = max(left, key=lambda one: (one.name not in history.stopped, one.resident))
    memory = seen.memory
    why = (
        f"memory is critical: {_size(memory.available)} available and {_size(memory.free)} free, "
        f"stopped below {_size(limits.critical)}"
    )
    if refused:
        why += "; the GPU was refused memory (NV_ERR_NO_MEMORY)"
    history = replace(history, stopped={**history.stopped, largest.name: seen.now})
    return history, [Action("stop", why, reading, largest.name)]


def pace(history: History, memory: Memory, limits: Thresholds, before: Memory | None) -> float:
    """Seconds until the next look: 1, and a quarter where memory is low or will be within seconds."""
    if history.level != "ok" or history.low_since is not None or memory.available < 2 * limits.low:
        return 0.25
    fallen = 0 if before is None else before.available - memory.available
    return 0.25 if fallen > 0 and memory.available - 5 * fallen < limits.low else 1.0


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / MIB:.0f} MiB"
