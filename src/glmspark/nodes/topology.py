"""The shape of a fabric, from which nodes are in which of its networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def shape(members: Mapping[object, set[str]], names: Sequence[str]) -> str:
    """switch: one network has all of three or more nodes. pair, ring, line: cables between two. alone: one.

    '' if the nodes do not hang together, or in none of these.
    """
    if len(names) == 1:
        return "alone"
    if len(names) == 2:
        return "pair" if any(len(found) == 2 for found in members.values()) else ""
    if any(len(found) == len(names) for found in members.values()):
        return "switch"
    neighbours: dict[str, set[str]] = {name: set() for name in names}
    for found in members.values():
        for name in found:
            neighbours[name] |= found - {name}
    reached, queue = {names[0]}, [names[0]]
    while queue:
        for other in neighbours[queue.pop()] - reached:
            reached.add(other)
            queue.append(other)
    if reached != set(names):
        return ""
    degrees = sorted(len(found) for found in neighbours.values())
    if all(degree == 2 for degree in degrees):
        return "ring"
    if degrees == [1, 1] + [2] * (len(names) - 2):
        return "line"
    return ""


def remark(form: str, count: int) -> str | None:
    """What people should know of a shape, None where there is nothing."""
    if form == "ring" and count >= 4:
        return (
            "a ring of four or more has no direct path across: NCCL needs a build that skips tree "
            "connections (NCCL_SKIP_TREE_CONNECT), or a switch"
        )
    if form == "line":
        return "the ends of the line have no path to each other: pipeline layouts only"
    return None
