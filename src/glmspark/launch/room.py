"""Whether what is to be brought to a node fits on the disk where it will lie."""

from __future__ import annotations

from glmspark.config.units import format_size
from glmspark.errors import GlmsparkError
from glmspark.nodes.facts.disks import DISKS, disk_of
from glmspark.nodes.survey import Facts

__all__ = ["check_room"]


def check_room(node: str, facts: Facts, path: str, size: int, what: str) -> None:
    """Raises GlmsparkError unless so many bytes fit below a path of a node. Where it does not tell what is
    free, nothing is refused: bringing it says what is wrong."""
    disks = facts.get(DISKS)
    disk = disk_of(disks, path) if disks and path else None
    if disk is not None and disk.free < size:
        raise GlmsparkError(
            f"{what} takes {format_size(size)}, and {disk.target} has {format_size(disk.free)} free",
            host=node,
            step=f"bring {what}",
            next=f"free some space under {disk.target}, or choose another place: paths.models in "
            "cluster.yaml, Docker's data-root",
        )
