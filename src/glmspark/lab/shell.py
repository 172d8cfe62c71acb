"""A shell in a node, whatever its network does."""

from __future__ import annotations

from collections.abc import Sequence

from glmspark.errors import UsageError
from glmspark.lab import commands, needs
from glmspark.lab.cables import standing
from glmspark.lab.record import LabHome
from glmspark.lab.texts import USER


def shell_argv(home: LabHome, node: str, argv: Sequence[str], *, root: bool = False) -> list[str]:
    """The command that runs `argv` (a login shell if empty) in a node, as the lab's user or as root.

    LabError where no lab stands, UsageError for an unknown node.
    """
    needs.check()
    record = standing(home)
    found = record.node(node)
    if found is None or found.init is None:
        raise UsageError(f"the lab has no node {node}", next=f"there are {', '.join(record.wiring.nodes)}")
    user = "root" if root else USER
    directory = "/root" if root else f"/home/{USER}"
    return commands.enter(found.init.pid, commands.as_user(user, directory, argv or ["bash", "--login"]))
