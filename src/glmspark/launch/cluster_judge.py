"""What the doctor's checks say of the nodes, as far as it decides a start: what blocks it, what slows it."""

from __future__ import annotations

from glmspark.errors import GlmsparkError
from glmspark.nodes.checks import Look, State
from glmspark.nodes.checks.everything import judge

__all__ = ["refuse_blocked", "slow_links"]

_ELSEWHERE = {"same image", "ports"}
"""Checks of the doctor's that a start makes in its own way: it brings the image, and chooses ports."""


def slow_links(look: Look) -> tuple[str, ...]:
    """Where a link is slower than the recipe says it needs: it starts all the same, and answers slowly."""
    found = [one for one in judge(look) if one.state is State.SLOW and one.check == "recipe's link"]
    return tuple(f"{one.node}: {one.check}: {one.evidence}; {one.remedy}" for one in found)


def refuse_blocked(look: Look) -> None:
    """Raises the error of a node that is lost, or GlmsparkError for what blocks a start, with the remedy."""
    for error in look.lost.values():
        raise error
    blocked = [one for one in judge(look) if one.state is State.BLOCKED and one.check not in _ELSEWHERE]
    if not blocked:
        return
    first, rest = blocked[0], blocked[1:]
    also = [f"also {one.check}{f' on {one.node}' if one.node else ''}: {one.evidence}" for one in rest]
    raise GlmsparkError(
        f"{first.check}: {first.evidence}",
        host=first.node,
        step="check the nodes",
        seen="\n".join(also) or None,
        next=first.remedy,
    )
