"""What is seen of a deployment at one moment: its engine, its nodes, and what each is made of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["EngineView", "Gpu", "Memory", "NodeView", "View"]


@dataclass(frozen=True)
class Memory:
    """Bytes by class. weights and kv: as planned, once the rank has loaded; other: all the rest in use."""

    total: int
    free: int
    cache: int
    weights: int = 0
    kv: int = 0

    @property
    def other(self) -> int:
        """What else is in use."""
        return max(0, self.total - self.free - self.cache - self.weights - self.kv)


@dataclass(frozen=True)
class Gpu:
    """A GPU's reading: percent, watts, MHz, °C; None where it is not told."""

    util: float | None
    power: float | None
    clock: float | None
    temperature: float | None


@dataclass(frozen=True)
class NodeView:
    """A node as last seen. at: monotonic seconds, None before it first answered. error: why it does not
    answer now. fabric: bytes a second by link, received and sent; None before two readings."""

    name: str
    at: float | None = None
    error: str | None = None
    rank: int | None = None
    phase: str = ""
    memory: Memory | None = None
    gpus: tuple[Gpu, ...] = ()
    fabric: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    guard: str | None = None
    alerts: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    restarts: int = 0
    halted: tuple[int, ...] = ()

    def to_json(self, now: float) -> dict[str, Any]:
        """As JSON data, with its age instead of a time."""
        value = asdict(self)
        value["age"] = None if self.at is None else round(now - self.at, 1)
        del value["at"]
        if self.memory is not None:
            value["memory"]["other"] = self.memory.other
        return value


@dataclass(frozen=True)
class EngineView:
    """What the API's metrics say. tokens: generated a second; prompt: read a second; accepted: tokens a
    verify step gives and share of drafts accepted, None where nothing is drafted."""

    running: float | None = None
    waiting: float | None = None
    tokens: float | None = None
    prompt: float | None = None
    kv_usage: float | None = None
    accepted: tuple[float, float] | None = None
    finished: float | None = None
    preemptions: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class View:
    """Everything at one moment. time: Unix seconds; state: as `glmspark status` says it."""

    time: float
    name: str
    state: str
    model: str
    endpoint: str
    reason: str | None
    engine: EngineView
    nodes: tuple[NodeView, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        value = asdict(self)
        value["nodes"] = [one.to_json(time.monotonic()) for one in self.nodes]
        return value
