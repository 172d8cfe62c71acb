"""This machine as the site of a plan. Not in `plan_site`: its imports of SSH take longer than a plan."""

from __future__ import annotations

from glmspark.nodes.facts.host import HOSTNAME
from glmspark.nodes.facts.memory import MEMORY
from glmspark.nodes.transport import Local, gather
from glmspark.plan.site import Seat, Site
from glmspark.plan.speed.links import Link

__all__ = ["local_site"]


def local_site(ranks: int) -> Site:
    """This machine, for as many ranks on its CPU."""
    memory, name = gather(Local(), MEMORY), gather(Local(), HOSTNAME)
    seat = Seat(name, memory.total, memory.available, name)
    return Site((seat,) * ranks, Link("none"), "cpu", measured=True)
