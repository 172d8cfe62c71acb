"""Checks: rules over facts. Each gives a verdict with the evidence and, where something is wrong, a remedy.

A check looks at nothing but its arguments, so it is tested on facts made for it. What cannot be known is
`unknown` with the reason, never `ok`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glmspark.config.cluster import Cluster
from glmspark.errors import GlmsparkError
from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.places import Place
from glmspark.nodes.survey import Facts


class State(enum.StrEnum):
    """How a check came out: fine; works, but slower or at risk; will not work; cannot be told."""

    OK = "ok"
    SLOW = "slow"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """The outcome of one check. node: None for what concerns several. fix: the tuning that cures it."""

    check: str
    node: str | None
    state: State
    evidence: str
    remedy: str | None = None
    fix: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "check": self.check,
            "node": self.node,
            "state": str(self.state),
            "evidence": self.evidence,
            "remedy": self.remedy,
            "fix": self.fix,
        }


@dataclass(frozen=True)
class Expected:
    """What is to run on the nodes; None where it is not known yet. Sizes in bytes.

    memory: what a rank takes. weights: the checkpoint's files, model: their directory. image_size: the image
    unpacked. ports: TCP ports that must be free. rdma: whether RDMA is planned. venv, python, mounts: where
    ranks run, as cluster.yaml says. recipe, nodes, platform, backend, link, link_gbit: as the recipe says.
    """

    image: str | None = None
    venv: str | None = None
    python: str | None = None
    mounts: tuple[str, ...] = ()
    recipe: str | None = None
    nodes: int | None = None
    platform: str | None = None
    backend: str = "mp"
    link: str = "any"
    link_gbit: float | None = None
    model: str | None = None
    image_size: int = 30 * 2**30
    weights: int | None = None
    memory: int | None = None
    ports: tuple[int, ...] = (8000, 29500)
    models: str = "~/.local/share/glmspark/models"
    runtime: str = "docker"
    rdma: bool = False

    @property
    def place(self) -> Place:
        """Where ranks run."""
        if self.runtime == "venv":
            return Place(venv=self.venv)
        return Place(image=self.image, python=self.python or "python3", mounts=self.mounts)


@dataclass(frozen=True)
class Look:
    """What was seen: facts by node, those that could not be reached, the cluster file if there is one."""

    facts: Mapping[str, Facts]
    lost: Mapping[str, GlmsparkError] = field(default_factory=dict)
    cluster: Cluster | None = None
    expected: Expected = field(default_factory=Expected)


class Judge:
    """Makes verdicts of one check about one node (or several: node None)."""

    def __init__(self, check: str, node: str | None = None) -> None:
        self.check = check
        self.node = node

    def ok(self, evidence: str) -> Verdict:
        """Fine."""
        return Verdict(self.check, self.node, State.OK, evidence)

    def slow(self, evidence: str, remedy: str, fix: str | None = None) -> Verdict:
        """Works, but slower or at risk."""
        return Verdict(self.check, self.node, State.SLOW, evidence, remedy, fix)

    def blocked(self, evidence: str, remedy: str, fix: str | None = None) -> Verdict:
        """Will not work."""
        return Verdict(self.check, self.node, State.BLOCKED, evidence, remedy, fix)

    def unknown(self, evidence: str, remedy: str | None = None) -> Verdict:
        """Cannot be told."""
        return Verdict(self.check, self.node, State.UNKNOWN, evidence, remedy)

    def unread(self, facts: Facts, fact: Fact[Any]) -> Verdict:
        """Unknown because a fact could not be read."""
        return self.unknown(f"{fact.name}: {facts.problem(fact)}")
