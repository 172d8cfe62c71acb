"""The relay as one file, put onto a node where it is not yet, and the Python there that runs it."""

from __future__ import annotations

import json
from typing import Any

from glmspark.nodes.archives import Archive
from glmspark.nodes.node import Node, failed
from glmspark.nodes.transport import NodeError
from glmspark.weights import relay

__all__ = ["RELAY", "Program", "heard", "place"]

RELAY = Archive("relay", relay, "program", {"t": "failed"})


class Program:
    """The relay on one node. python: the one there that runs it. algorithms: the hashes it has."""

    def __init__(self, path: str, python: str, algorithms: tuple[str, ...]) -> None:
        self.path = path
        self.python = python
        self.algorithms = algorithms

    def argv(self, *words: str) -> list[str]:
        """The command for one of its verbs."""
        return [self.python, self.path, *words]


def heard(line: bytes) -> dict[str, Any]:
    """What the relay says in a line. Empty for what is none of its: the login shell's greeting."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


async def place(node: Node, pythons: tuple[str, ...] = ()) -> Program:
    """Ship the relay and choose the Python for it: the first that has blake3, else the system's own.

    pythons: to try besides python3, such as the runtime's. Raises NodeError.
    """
    path = await RELAY.ship(node, "relay")
    found: Program | None = None
    for python in ("python3", *pythons):
        try:
            done = await node.run([python, path, "algorithms"], timeout=30)
        except NodeError:
            continue
        try:
            said = json.loads(done.stdout.strip().splitlines()[-1]) if done.code == 0 else {}
        except (ValueError, IndexError):
            said = {}
        names = tuple(said.get("names", ()))
        if names and (found is None or ("blake3" in names and "blake3" not in found.algorithms)):
            found = Program(path, python, names)
    if found is None:
        raise failed(node.host, "run the relay", await node.run(["python3", path, "algorithms"]))
    return found
