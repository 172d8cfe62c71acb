"""Following one rank over SSH: what its agent says, line by line, over connections that may break."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncssh

from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import Node
from glmspark.nodes.ssh import SshNode
from glmspark.nodes.transport import NodeError

BEAT, SILENCE, AGAIN = 2.0, 6.0, 12.0
"""Seconds between signs of life, without one until a connection counts as lost, for it to come back."""


@dataclass(frozen=True)
class Event:
    """What a node said. kind: 'state' (data: its state.json), 'log' (data: rank, line), 'lost' (data: what)
    when its connection broke, 'back' when it came again."""

    node: str
    rank: int | None
    kind: str
    data: Mapping[str, Any]


class Follower:
    """One node followed: its connection opened again when it breaks.

    argv: makes the command that runs there from the words of a subcommand. queue: takes the events, and None
    at the end.
    """

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        words: Sequence[str],
        argv: Callable[[Node, Sequence[str]], Awaitable[list[str]]],
        queue: asyncio.Queue[Event | None],
    ) -> None:
        self._fleet, self._name, self._words, self._argv, self._queue = fleet, name, list(words), argv, queue
        self._rank: int | None = None
        self._lost: float | None = None

    async def run(self) -> NodeError | None:
        """Follow to the end; the error of a node that stays lost."""
        try:
            found = await self._run()
        except asyncio.CancelledError:
            raise  # nobody reads any more: in a queue that is full there will never be room
        except BaseException:
            await self._queue.put(None)
            raise
        await self._queue.put(None)
        return found

    async def _run(self) -> NodeError | None:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                if self._lost is not None:
                    await self._fleet.again(self._name)
                if await self._once():
                    return None
                raise NodeError("the connection was lost", host=self._name, step="follow the rank")
            except _RefusedError as refused:
                return refused.error
            except NodeError as error:
                now = clock()
                if self._lost is None:
                    self._lost = now
                    await self._say("lost", {"what": error.message})
                if now - self._lost > AGAIN:
                    return error
                await asyncio.sleep(1.0)

    async def _say(self, kind: str, data: Mapping[str, Any]) -> None:
        await self._queue.put(Event(self._name, self._rank, kind, data))

    async def _once(self) -> bool:
        """Follow over one connection. True when the rank's end was told, False when it broke before."""
        node = self._fleet.nodes[self._name]
        if not isinstance(node, SshNode):
            raise _RefusedError(NodeError("only nodes behind SSH can be followed", host=node.host))
        argv = await self._argv(node, self._words)
        process = await node.open(argv)
        beats = asyncio.create_task(_beat(process))
        try:
            while True:
                line = await asyncio.wait_for(process.stdout.readline(), SILENCE)
                if not line.endswith(b"\n"):
                    return False
                if await self._heard(node, parsed(line.decode("utf-8", "replace"))):
                    return True
        except (TimeoutError, asyncssh.Error, OSError):
            return False
        finally:
            beats.cancel()
            process.close()

    async def _heard(self, node: Node, said: Any) -> bool:
        if said.get("ok") is False:
            raise _RefusedError(error_of(node, said, self._words))
        if self._lost is not None:
            self._lost = None
            await self._say("back", {})
        what = said.get("t")
        if what == "state" and said["state"] is not None:
            self._rank = said["state"]["rank"]
            await self._say("state", said["state"])
        elif what == "log":
            for line in said["lines"]:
                await self._say("log", {"rank": self._rank, "line": line})
            self._words = [f"--at={said['at']}" if word.startswith(("--at=", "--lines=")) else word
                           for word in self._words]  # fmt: skip
        return bool(what == "end")


class _RefusedError(Exception):
    """The node answered that it will not: there is no use in asking again."""

    def __init__(self, error: NodeError) -> None:
        super().__init__(error.message)
        self.error = error


async def _beat(process: asyncssh.SSHClientProcess[bytes]) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        while True:
            process.stdin.write(b".")
            await asyncio.sleep(BEAT)


def parsed(line: str) -> Any:
    """The value in a line of JSON, {} where it is none."""
    try:
        return json.loads(line)
    except ValueError:
        return {}


def error_of(node: Node, said: Mapping[str, Any], words: Sequence[str]) -> NodeError:
    """The error an agent's command told."""
    return NodeError(
        str(said.get("error")),
        host=node.host,
        step=said.get("step") or " ".join(words[:2]),
        seen=said.get("seen"),
        next=said.get("next"),
    )
