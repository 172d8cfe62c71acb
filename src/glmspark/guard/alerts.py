"""Alerts: what a person or the deployment's leader should know. Pure functions over readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .config import GIB
from .deployments import Deployed
from .engine_metrics import Engine
from .gpu import Gpu
from .kernel_log import Event
from .links import Link
from .memory import Memory

_KEPT = 600.0
"""Seconds for which an event of the kernel log stays an alert after its last line."""
_BUSY, _SPIN_AFTER = 90.0, 30.0
"""Per cent of utilisation that counts as busy; seconds of busy with low power until it is an alert."""
_SILENT_AFTER = 15.0
"""Seconds without an answer of the API's metrics until it is an alert."""
_ERRORS, _ERRORS_OVER = 100, 60.0
"""Errors of a link within so many seconds that are an alert: single ones are part of life."""
_DISK = 2 * GIB

_WHAT = {
    "nvrm-no-memory": "the GPU driver was refused memory",
    "xid": "the GPU driver reports a fault of the GPU",
    "oom-kill": "the kernel killed a process for want of memory",
    "pcie-aer": "a PCIe link reports errors",
    "link-flap": "a fabric link went down or up",
}


@dataclass(frozen=True)
class Alert:
    """since: Unix seconds. reading: the numbers or the line that led to it."""

    kind: str
    since: float
    what: str
    reading: Any = None
    deployment: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What makes two alerts the same one."""
        return self.kind, self.deployment or (self.reading or {}).get("of", "")

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        found = {"kind": self.kind, "since": round(self.since, 1), "reading": self.reading, "what": self.what}
        return found if self.deployment is None else {**found, "deployment": self.deployment}


@dataclass(frozen=True)
class Watch:
    """What alerts have to know of before. Times are monotonic seconds.

    steps: by deployment, its last count of engine steps and when it last changed (or nothing was to do).
    spins: since when the GPU claims to be busy with little power. errors: by link, its count and when.
    events: by kind, when the last line came, the first one's Unix time, and the line.
    """

    steps: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    spins: float | None = None
    silent: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    events: Mapping[str, tuple[float, float, str]] = field(default_factory=dict)
    up: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Readings:
    """One look at everything. now: monotonic, time: Unix seconds. engines: by deployment, where the API is
    here; None for one that did not answer. disks: by path, bytes free and in all."""

    now: float
    time: float
    memory: Memory | None
    level: str
    deployments: Sequence[Deployed] = ()
    engines: Mapping[str, Engine | None] = field(default_factory=dict)
    gpus: Sequence[Gpu] = ()
    links: Mapping[str, Link] = field(default_factory=dict)
    fabric: tuple[str, ...] = ()
    disks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    events: Sequence[Event] = ()
    blind: Mapping[str, str] = field(default_factory=dict)


def observe(watch: Watch, seen: Readings) -> tuple[Watch, list[Alert]]:
    """The watch for the next time, and all that is alarming now (`since` is this moment's)."""
    watch = _count(watch, seen)
    found = [*_memory(seen), *_events(watch), *_links(watch, seen), *_deployments(watch, seen)]
    for path, (free, total) in seen.disks.items():
        if free < min(_DISK, total // 50):
            what = f"{free / GIB:.2f} GiB are free where {path} lies"
            found.append(Alert("disk-low", seen.time, what, {"of": path, "free": free, "total": total}))
    for name, why in seen.blind.items():
        found.append(Alert("guard-blind", seen.time, f"{name} cannot be read: {why}", {"of": name}))
    return watch, found


def lasting(before: Iterable[Alert], found: Iterable[Alert]) -> list[Alert]:
    """The alerts found, each with the time since which it has been there."""
    known = {one.key: one.since for one in before}
    return [replace(one, since=min(one.since, known.get(one.key, one.since))) for one in found]


def still_s(watch: Watch, name: str, now: float) -> float:
    """Seconds for which a deployment has requests but made no engine step; 0 where that is not known."""
    return now - watch.steps[name][1] if name in watch.steps else 0.0


def _count(watch: Watch, seen: Readings) -> Watch:
    steps, silent = {}, {}
    for name, engine in seen.engines.items():
        if engine is None:
            silent[name] = watch.silent.get(name, seen.now)
            if name in watch.steps:
                steps[name] = watch.steps[name]
            continue
        count = engine.steps if engine.steps is not None else engine.tokens or 0.0
        last = watch.steps.get(name)
        moved = last is None or count != last[0] or not engine.busy
        steps[name] = (count, seen.now) if moved or last is None else last
    spins = watch.spins if watch.spins is not None else seen.now
    limit = min((one.thresholds.spin_w for one in seen.deployments if one.active), default=0.0)
    spinning = any(
        (gpu.util or 0.0) >= _BUSY and gpu.power_w is not None and gpu.power_w < limit for gpu in seen.gpus
    )
    errors = {}
    for name, link in seen.links.items():
        total, last_errors = sum(link.errors.values()), watch.errors.get(name)
        if last_errors is None or seen.now - last_errors[0] > _ERRORS_OVER or total < last_errors[1]:
            errors[name] = (seen.now, total)
        else:
            errors[name] = last_errors
    events = {kind: one for kind, one in watch.events.items() if seen.now - one[0] < _KEPT}
    for event in seen.events:
        first = events[event.kind][1] if event.kind in events else seen.time
        events[event.kind] = (seen.now, first, event.line)
    up = watch.up | {name for name, link in seen.links.items() if link.up}
    return Watch(steps, spins if spinning else None, silent, errors, events, up)


def _memory(seen: Readings) -> list[Alert]:
    if seen.level == "ok" or seen.memory is None:
        return []
    what = f"{seen.memory.available / GIB:.1f} GiB available, {seen.memory.free / GIB:.1f} GiB free"
    return [Alert(f"memory-{seen.level}", seen.time, what, seen.memory.to_json())]


def _events(watch: Watch) -> list[Alert]:
    return [
        Alert(kind, first, _WHAT[kind], {"line": line}) for kind, (_, first, line) in watch.events.items()
    ]


def _links(watch: Watch, seen: Readings) -> list[Alert]:
    found = []
    for name, link in seen.links.items():
        of = {"of": name, **link.to_json()}
        # One that was never up is not in use, unless it is said to be the fabric.
        if not link.up and (name in seen.fabric or (link.up is False and name in watch.up)):
            found.append(Alert("link-down", seen.time, f"{name} has no carrier", of))
        more = sum(link.errors.values()) - watch.errors[name][1] if name in watch.errors else 0
        if more > _ERRORS:
            what = f"{name} counted {more} errors within a minute"
            found.append(Alert("link-errors", seen.time, what, of))
    return found


def _deployments(watch: Watch, seen: Readings) -> list[Alert]:
    found = []
    gpus = [gpu.to_json() for gpu in seen.gpus]
    for one in seen.deployments:
        if one.halted:
            what = f"processes {', '.join(map(str, one.halted))} of it are stopped by a signal"
            found.append(Alert("rank-halted", seen.time, what, {"pids": one.halted}, one.name))
        if one.thresholds.problem:
            found.append(Alert("guard-blind", seen.time, one.thresholds.problem, None, one.name))
        if one.phase != "serving":
            continue
        still = still_s(watch, one.name, seen.now)
        engine = seen.engines.get(one.name)
        if still >= one.thresholds.stall_s and engine is not None:
            what = f"requests run, and for {still:.0f} s the engine made no step"
            found.append(Alert("stall", seen.time, what, {**engine.to_json(), "gpu": gpus}, one.name))
        spun = 0.0 if watch.spins is None else seen.now - watch.spins
        # Where the API is elsewhere there are no steps to look at.
        if spun >= _SPIN_AFTER and (one.name not in watch.steps or still >= _SPIN_AFTER):
            what = f"the GPU has been busy for {spun:.0f} s at a power that does no work: it waits for others"
            found.append(Alert("gpu-spin", seen.time, what, {"gpu": gpus}, one.name))
        since = watch.silent.get(one.name)
        if since is not None and seen.now - since >= _SILENT_AFTER:
            what = f"the API has not told its metrics for {seen.now - since:.0f} s"
            found.append(Alert("api-silent", seen.time, what, {"url": one.thresholds.metrics_url}, one.name))
    return found
