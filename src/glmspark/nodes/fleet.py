"""Many nodes at once: connected together, asked together, each one's failure kept apart from the others'."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from glmspark.nodes.node import LocalNode, Node
from glmspark.nodes.ssh import Address, connect
from glmspark.nodes.transport import NodeError

T = TypeVar("T")
AT_ONCE = 16
"""Nodes worked on at the same time."""


class Fleet:
    """Nodes by name, in the order given. An address of None is this machine.

    Used as ``async with Fleet({"spark1": Address("10.0.0.1"), ...}) as fleet``. A node that cannot be
    reached does not stop the others: it is in `lost`.
    """

    def __init__(self, addresses: Mapping[str, Address | None], *, at_once: int = AT_ONCE) -> None:
        self._addresses = dict(addresses)
        self._room = asyncio.Semaphore(at_once)
        self.nodes: dict[str, Node] = {}
        self.lost: dict[str, NodeError] = {}

    async def __aenter__(self) -> Fleet:
        results = await self._bounded(
            {name: (lambda name=name: self._open(name)) for name in self._addresses}  # type: ignore[misc]
        )
        for name, result in results.items():
            if isinstance(result, NodeError):
                self.lost[name] = result
            else:
                self.nodes[name] = result
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(node.close() for node in self.nodes.values()), return_exceptions=True)

    async def _open(self, name: str) -> Node:
        address = self._addresses[name]
        return LocalNode(name) if address is None else await connect(address)

    async def again(self, name: str) -> Node:
        """A new connection to a node, in place of one that broke. Raises NodeError; then the old stays."""
        node = await self._open(name)
        before = self.nodes.get(name)
        self.nodes[name] = node
        self.lost.pop(name, None)
        if before is not None:
            await before.close()
        return node

    async def each(
        self, work: Callable[[Node], Awaitable[T]], *, names: Sequence[str] | None = None
    ) -> dict[str, T | NodeError]:
        """Do the same on all reached nodes (or those named), at the same time; results by name.

        A NodeError becomes that node's result. Any other error is raised, after all have ended.
        """
        chosen = [name for name in self.nodes if names is None or name in names]
        return await self._bounded(
            {name: (lambda name=name: work(self.nodes[name])) for name in chosen}  # type: ignore[misc]
        )

    async def _bounded(self, tasks: Mapping[str, Callable[[], Awaitable[T]]]) -> dict[str, T | NodeError]:
        async def one(start: Callable[[], Awaitable[T]]) -> T | NodeError:
            async with self._room:
                try:
                    return await start()
                except NodeError as error:
                    return error

        running = [asyncio.ensure_future(one(start)) for start in tasks.values()]
        try:
            results = await asyncio.gather(*running)
        except BaseException:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise
        return dict(zip(tasks, results, strict=True))
