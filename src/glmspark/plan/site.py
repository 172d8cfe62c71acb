"""Where a plan is for: nodes with so much memory, and what links them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from glmspark.config.recipe import Recipe
from glmspark.plan.errors import PlanError
from glmspark.plan.speed.links import Link

__all__ = ["STOCK_AVAILABLE", "STOCK_TOTAL", "Seat", "Site", "link_named", "stock_site"]

GIB = 2**30

STOCK_TOTAL = 121 * GIB
"""What of a DGX Spark's 128 GB the kernel has."""
STOCK_AVAILABLE = 118 * GIB + GIB // 2
"""MemAvailable of one with its desktop stopped and nothing else running: the system keeps some 2.5 GiB."""
_ETHERNET_GBIT = 10.0


@dataclass(frozen=True)
class Seat:
    """A node's memory, bytes. board: what tells machines apart; nodes of a lab have one in common."""

    name: str
    total: int
    available: int
    board: str = ""


@dataclass(frozen=True)
class Site:
    """The nodes in order, rank 0's first. measured: looked at now, not assumed."""

    seats: tuple[Seat, ...]
    link: Link
    platform: Literal["cpu", "cuda"]
    measured: bool

    def first(self, count: int) -> Site:
        """The first so many of them."""
        return Site(self.seats[:count], self.link, self.platform, self.measured)


def stock_site(count: int, link: Link) -> Site:
    """So many Sparks as they come, with nothing running."""
    seats = tuple(Seat(f"spark{n}", STOCK_TOTAL, STOCK_AVAILABLE, f"spark{n}") for n in range(1, count + 1))
    return Site(seats, link, "cuda", measured=False)


def link_named(name: str) -> Link:
    """A link as people write it: roce, one-shot, tcp, each with its rate as in tcp:10. Raises PlanError."""
    kind, _, rate = name.partition(":")
    kinds: Mapping[str, Literal["tcp", "roce", "one-shot"]] = {
        "tcp": "tcp",
        "ethernet": "tcp",
        "sockets": "tcp",
        "roce": "roce",
        "rdma": "roce",
        "one-shot": "one-shot",
    }
    try:
        gbit = float(rate) if rate else (_ETHERNET_GBIT if kinds.get(kind) == "tcp" else 200.0)
    except ValueError:
        gbit = 0.0
    if kind not in kinds or not 0 < gbit <= 10_000:
        raise PlanError(
            f"{name!r} is no link", step="plan", next="write roce, one-shot, tcp, or with a rate: tcp:10"
        )
    return Link(kinds[kind], gbit)


def recipe_link(recipe: Recipe, *, hcas: Sequence[bool] = (), gbit: float | None = None) -> Link:
    """The link a recipe's ranks will use. hcas: whether each node has an RDMA device, empty if not known.
    gbit: of the ports, where known."""
    if recipe.engine.env.get("NCCL_IB_DISABLE") == "1" or recipe.needs.link == "ethernet" or not all(hcas):
        return Link("tcp", gbit or recipe.needs.link_gbit or _ETHERNET_GBIT)
    return Link("roce", gbit or recipe.needs.link_gbit or 200.0)
