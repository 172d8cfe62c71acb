"""What is asked of a lab: how many nodes, cabled how, how fast."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from glmspark.errors import UsageError

MAX_NODES = 8
LOWEST_RATE, HIGHEST_RATE = 10**6, 4 * 10**11

_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([a-z]+)", re.ASCII)
_RATE_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "gbe": 10**9}
_DELAY = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?(us|ms|s)", re.ASCII)
_DELAY_UNITS = {"us": 1, "ms": 1000, "s": 1_000_000}
_LOSS = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%", re.ASCII)


class Topology(StrEnum):
    """How the nodes' fabric ports are cabled."""

    SWITCH = "switch"
    RING = "ring"
    PAIR = "pair"


@dataclass(frozen=True)
class LabSpec:
    """A lab as it was asked for.

    rate: bits per second of each fabric link and direction, None for as fast as the machine can. delay_us:
    one-way delay a node adds to what it sends, in microseconds. loss: share of packets lost on the way out of
    a node, 0 to 1. Raises UsageError for what cannot be.
    """

    nodes: int
    topology: Topology = Topology.SWITCH
    rate: int | None = None
    delay_us: int = 0
    loss: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise UsageError(f"a lab has 1 to {MAX_NODES} nodes, not {self.nodes}")
        if self.topology is Topology.PAIR and self.nodes != 2:
            raise UsageError(
                f"a pair is two nodes on one cable, not {self.nodes}", next="use --topology switch or ring"
            )
        if self.topology is Topology.RING and self.nodes < 3:
            raise UsageError(
                f"a ring needs at least three nodes, not {self.nodes}", next="use --topology pair or switch"
            )

    @property
    def needs_netem(self) -> bool:
        """Whether links delay or lose packets, which only tc's netem does."""
        return bool(self.delay_us or self.loss)

    def to_json(self) -> dict[str, Any]:
        """The spec as JSON data."""
        return asdict(self) | {"topology": str(self.topology)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LabSpec:
        """The spec in JSON data. Raises UsageError, TypeError or ValueError where it is not one."""
        return cls(**(data | {"topology": Topology(data["topology"])}))


def parse_rate(text: str) -> int:
    """Bits per second of a link speed: 1gbe, 10gbe, 2.5gbit, 500mbit. Raises UsageError for anything else.

    Units are decimal, as link speeds are.
    """
    match = _RATE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _RATE_UNITS:
        raise UsageError(
            f"{text!r} is not a link speed", next="write 1gbe, 10gbe or a rate such as 2.5gbit or 500mbit"
        )
    rate = int(Decimal(match[1]) * _RATE_UNITS[match[2]])
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise UsageError(f"{text!r} is out of range", next="give a rate from 1mbit to 400gbit")
    return rate


def parse_delay(text: str) -> int:
    """Microseconds of a delay such as 500us, 1.5ms or 1s, at most 10 s. Raises UsageError otherwise."""
    match = _DELAY.fullmatch(text.strip().lower())
    delay = int(Decimal(match[1]) * _DELAY_UNITS[match[2]]) if match else 0
    if not 1 <= delay <= 10_000_000:
        raise UsageError(
            f"{text!r} is not a delay", next="write one such as 200us, 1ms or 0.5s (at most 10s)"
        )
    return delay


def parse_loss(text: str) -> float:
    """Share of packets lost (0 to 1) of a text such as 0.1%. Raises UsageError for anything else."""
    match = _LOSS.fullmatch(text.strip())
    loss = Decimal(match[1]) / 100 if match else Decimal(0)
    if not 0 < loss <= 1:
        raise UsageError(f"{text!r} is not a loss rate", next="write a percentage such as 0.1%")
    return float(loss)


def format_rate(rate: int | None) -> str:
    """A link speed for people: 1 Gbit/s, 500 Mbit/s, or unlimited."""
    if rate is None:
        return "unlimited"
    for unit, size in (("Gbit/s", 10**9), ("Mbit/s", 10**6)):
        if rate >= size:
            return f"{rate / size:g} {unit}"
    return f"{rate / 1000:g} kbit/s"
