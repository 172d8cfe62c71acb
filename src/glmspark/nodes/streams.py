"""From one node to others, through this machine: what a command prints there becomes the others' input.

Nothing is kept on the way, neither here nor in a node's /tmp: an image is larger than most of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncssh

from glmspark.nodes.node import TAIL, shown
from glmspark.nodes.ssh import SshNode
from glmspark.nodes.transport import NodeError

PIECE = 1 << 18
"""Bytes read at a time."""
SILENCE = 60.0
"""Seconds without a byte after which a stream is given up."""


@dataclass(frozen=True)
class _Taker:
    """One end of a stream. words: all that the command there says."""

    node: SshNode
    process: asyncssh.SSHClientProcess[bytes]
    words: asyncio.Future[str]

    async def give(self, piece: bytes) -> None:
        """Hand on a piece, and wait until there is room for the next."""
        self.process.stdin.write(piece)
        await self.process.stdin.drain()


async def pour(
    source: SshNode,
    give: Sequence[str],
    targets: Sequence[SshNode],
    take: Sequence[str],
    *,
    step: str,
    finish: float = 600.0,
    told: Callable[[int], None] = lambda _: None,
) -> int:
    """Run `give` on one node and `take` on others, the first's output into all of them; its bytes.

    `give` runs once, and the slowest target sets the pace. finish: seconds that `take` gets after the last
    byte. told: the bytes so far, for people who wait. Raises NodeError naming the node whose command failed,
    with its last words, and ends all commands.
    """
    async with contextlib.AsyncExitStack() as stack:
        giver = await source.open(give)
        stack.callback(_end, giver)
        complaints = asyncio.ensure_future(_drain(giver.stderr))
        stack.push_async_callback(_forget, complaints)
        takers: list[_Taker] = []
        for target in targets:
            process = await target.open(take)
            stack.callback(_end, process)
            words = asyncio.ensure_future(_drain(process.stdout, process.stderr))
            stack.push_async_callback(_forget, words)
            takers.append(_Taker(target, process, words))

        def late(node: SshNode, said: asyncio.Future[str]) -> _LateError:
            by_hand = f"{shown(give)} on {source.host}, {shown(take)} on {takers[0].node.host}"
            return _LateError(node, said, by_hand)

        try:
            count = await _copy(giver, takers, told, lambda: late(source, complaints), late)
            await _finish(giver, takers, finish, late)
        except _LateError as error:
            for process in (giver, *(taker.process for taker in takers)):
                _terminate(process)  # what they have to say comes to its end with them
            raise NodeError(
                f"nothing went over for {SILENCE:g} s, or its end did not come within {finish:g} s",
                host=error.node.host,
                step=step,
                seen=await _within(error.said) or await _within(complaints) or None,
                next=f"try it by hand: {error.by_hand}",
            ) from None
        except _BrokenError as error:
            raise NodeError(
                f"{shown(take)} ended before it had all",
                host=error.taker.node.host,
                step=step,
                seen=(await _within(error.taker.words) or str(error))[-TAIL:],
                next=f"is there room on {error.taker.node.host}? df -h shows it",
            ) from error
        ends: list[tuple[Any, SshNode, Sequence[str], asyncio.Future[str]]]
        ends = [(giver, source, give, complaints)]
        ends += [(taker.process, taker.node, take, taker.words) for taker in takers]
        for process, node, argv, said in ends:
            if process.exit_status != 0:
                raise NodeError(
                    f"{shown(argv)} left with {process.exit_status}",
                    host=node.host,
                    step=step,
                    seen=(await _within(said))[-TAIL:] or None,
                    next=f"run it by hand on {node.host}",
                )
        return count


class _LateError(Exception):
    """A node on which nothing went on. said: what its command says; by_hand: the commands to try."""

    def __init__(self, node: SshNode, said: asyncio.Future[str], by_hand: str) -> None:
        super().__init__(node.host)
        self.node, self.said, self.by_hand = node, said, by_hand


class _BrokenError(Exception):
    """A node that takes no more."""

    def __init__(self, taker: _Taker, reason: Exception) -> None:
        super().__init__(str(reason))
        self.taker = taker


_Late = Callable[[SshNode, "asyncio.Future[str]"], _LateError]


async def _forget(task: asyncio.Future[str]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _end(process: asyncssh.SSHClientProcess[bytes]) -> None:
    """A command that still runs is ended: one that neither reads nor writes would not notice otherwise."""
    _terminate(process)
    process.close()


def _terminate(process: asyncssh.SSHClientProcess[bytes]) -> None:
    if process.exit_status is None:
        with contextlib.suppress(OSError, asyncssh.Error):
            process.terminate()


async def _copy(
    giver: asyncssh.SSHClientProcess[bytes],
    takers: Sequence[_Taker],
    told: Callable[[int], None],
    silent: Callable[[], _LateError],
    late: _Late,
) -> int:
    count = 0
    while True:
        try:
            async with asyncio.timeout(SILENCE):
                piece = await giver.stdout.read(PIECE)
        except TimeoutError:
            raise silent() from None
        except (asyncssh.Error, OSError):
            break  # its exit status says what became of it
        if not piece:
            break
        await _to_all(takers, piece, late)
        count += len(piece)
        told(count)
    for taker in takers:
        taker.process.stdin.write_eof()
    return count


async def _to_all(takers: Sequence[_Taker], piece: bytes, late: _Late) -> None:
    async def one(taker: _Taker) -> None:
        try:
            async with asyncio.timeout(SILENCE):
                await taker.give(piece)
        except TimeoutError:
            raise late(taker.node, taker.words) from None
        except (asyncssh.Error, OSError) as error:
            raise _BrokenError(taker, error) from error

    tasks = [asyncio.ensure_future(one(taker)) for taker in takers]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _finish(
    giver: asyncssh.SSHClientProcess[bytes], takers: Sequence[_Taker], seconds: float, late: _Late
) -> None:
    """Wait for all ends."""
    try:
        async with asyncio.timeout(seconds):
            await giver.wait_closed()
            for taker in takers:
                await taker.process.wait_closed()
    except TimeoutError:
        slow = next((one for one in takers if one.process.exit_status is None), takers[0])
        raise late(slow.node, slow.words) from None


async def _drain(*streams: asyncssh.SSHReader[bytes]) -> str:
    """All that a command says: where nobody reads it, it would stand still."""
    said = await asyncio.gather(*(stream.read() for stream in streams))
    return b"".join(said).decode("utf-8", "replace").strip()


async def _within(task: asyncio.Future[str], seconds: float = 5.0) -> str:
    with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
        return await asyncio.wait_for(asyncio.shield(task), seconds)
    return ""
