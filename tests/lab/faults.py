"""Faults for a deployment on a lab that serves real requests. Each is made, must be detected within its bound
and named rightly, and afterwards service is proven again, with nothing left over."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.lab.fault_kinds import Kind
from tests.lab.fault_site import Site

PROVEN = 240.0
"""Seconds from a fault until service is proven again, on a machine that is busy otherwise."""


@dataclass
class Outcome:
    """One fault and what became of it. Seconds from the fault on. ssh: the longest that a login took,
    1000 where there was none."""

    number: int
    seed: int
    kind: str
    node: str
    bound: float
    detected: float | None = None
    named: bool = False
    cause: str = ""
    end: str = ""
    back: float | None = None
    left: list[str] = field(default_factory=list)
    ssh: float = 0.0
    refused: int = 0
    wrong: int = 0

    @property
    def right(self) -> bool:
        """Whether everything was as it must be, the cause's name aside."""
        in_time = self.detected is not None and self.detected <= self.bound
        return in_time and self.end == "proven" and not self.left and not self.wrong and self.ssh < 10.0


def make_fault(site: Site, kind: Kind, node: str, *, number: int, seed: int) -> Outcome:
    """Make a fault and wait for its end; what became of it."""
    found = Outcome(number, seed, kind.name, node, kind.bound)
    restarts = site.state("spark1")["restarted"]
    site.fresh()
    began = time.monotonic()
    undo = kind.inject(site, node)
    try:
        if site.until(lambda: _note(found, kind.seen(site, node)), 4 * kind.bound) is not None:
            found.detected = round(time.monotonic() - began, 1)
    finally:
        undo()
    found.named = kind.named(found.cause, node)
    if kind.restarts:
        back = site.until(lambda: site.ready and site.state("spark1")["restarted"] > restarts, PROVEN)
    else:
        back = site.until(lambda: site.ready, PROVEN)
    if back is not None and site.until(lambda: site.ask() == "right", 60) is not None:
        found.back, found.end = round(time.monotonic() - began, 1), "proven"
    else:
        found.end = ", ".join(one["state"] for one in site.states())
    state = site.state("spark1")
    if more := state["restarted"] - restarts - (1 if kind.restarts else 0):
        found.left += [f"again: {one['cause']['what']}" for one in state["restarts"][-more:]]
    found.left += site.strangers()
    site.login(node)
    found.ssh = round(site.ssh_longest, 1)
    found.refused, found.wrong = site.answers.get("refused", 0), site.answers.get("wrong", 0)
    return found


def _note(found: Outcome, cause: str | None) -> bool:
    found.cause = cause or ""
    return cause is not None


def table(outcomes: list[Outcome]) -> str:
    """Outcomes for people."""
    rows = [
        "| kind | node | detected (bound) | named | end | back after | longest login |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        seen = "-" if one.detected is None else f"{one.detected:.1f} s"
        back = "-" if one.back is None else f"{one.back:.0f} s"
        end = one.end + (f"; left: {', '.join(one.left)}" if one.left else "")
        named = "yes" if one.named else f"no: {one.cause[:80]}"
        cells = [one.kind, one.node, f"{seen} ({one.bound:g} s)", named, end, back, f"{one.ssh:.1f} s"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def as_json(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Outcomes for programs."""
    return [{**asdict(one), "right": one.right} for one in outcomes]
