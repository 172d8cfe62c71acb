"""A node for code that is not asynchronous: the same calls, each waiting for its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from glmspark.nodes.node import LocalNode, Node
from glmspark.nodes.processes import Identity
from glmspark.nodes.ssh import Address, SshNode, connect
from glmspark.nodes.transport import Completed

T = TypeVar("T")


class BlockingNode:
    """A node whose connection is served by a thread of its own; it may be used from several threads.

    address: None is this machine. Raises NodeError where the node cannot be reached. Use it in a with block,
    or call close.
    """

    def __init__(self, address: Address | None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="glmspark-node", daemon=True)
        self._thread.start()
        try:
            self._node: Node = LocalNode() if address is None else self._wait(connect(address))
        except BaseException:
            self._end()
            raise

    @property
    def host(self) -> str:
        """The node's name as errors show it."""
        return self._node.host

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 30.0,
        input: bytes | None = None,  # noqa: A002 - as subprocess.run calls it
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """See Node.run."""
        return self._wait(self._node.run(argv, timeout=timeout, input=input, env=env))

    def put(self, data: bytes, path: str, *, mode: int = 0o644, sudo: bool = False) -> None:
        """See Node.put."""
        self._wait(self._node.put(data, path, mode=mode, sudo=sudo))

    def get(self, path: str, *, sudo: bool = False) -> bytes | None:
        """See Node.get."""
        return self._wait(self._node.get(path, sudo=sudo))

    def spawn(
        self, argv: Sequence[str], *, log: str, cwd: str = "/", env: Mapping[str, str] | None = None
    ) -> Identity:
        """See Node.spawn."""
        return self._wait(self._node.spawn(argv, log=log, cwd=cwd, env=env))

    def forward(self, host: str, port: int) -> int:
        """A port of this machine that leads to one the node reaches, until close; see SshNode.forward."""
        if not isinstance(self._node, SshNode):
            return port
        return self._wait(self._node.forward(host, port)).get_port()

    def close(self) -> None:
        """Close the connection and end the thread."""
        if self._thread.is_alive():
            self._wait(self._node.close())
            self._end()

    def __enter__(self) -> BlockingNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C here must end the command there
            future.cancel()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
