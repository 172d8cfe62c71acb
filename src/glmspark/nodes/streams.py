"""From one node to another, through this machine: what a command prints there becomes another's input here.

Nothing is kept on the way, neither here nor in a node's /tmp: an image is larger than most of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import asyncssh

from glmspark.nodes.node import TAIL, shown
from glmspark.nodes.ssh import SshNode
from glmspark.nodes.transport import NodeError

PIECE = 1 << 18
"""Bytes read at a time."""
SILENCE = 60.0
"""Seconds without a byte after which a stream is given up."""


async def pour(
    source: SshNode,
    give: Sequence[str],
    target: SshNode,
    take: Sequence[str],
    *,
    step: str,
    finish: float = 600.0,
    told: Callable[[int], None] = lambda _: None,
) -> int:
    """Run `give` on one node and `take` on another, the first's output into the second; bytes that went over.

    finish: seconds that `take` gets after the last byte. told: the bytes so far, for people who wait. Raises
    NodeError naming the node whose command failed, with its last words, and ends both commands.
    """
    async with contextlib.AsyncExitStack() as stack:
        giver = await source.open(give)
        stack.callback(_end, giver)
        taker = await target.open(take)
        stack.callback(_end, taker)
        words = asyncio.ensure_future(_drain(taker.stdout, taker.stderr))
        complaints = asyncio.ensure_future(_drain(giver.stderr))
        try:
            count = await _copy(giver, taker, told)
            async with asyncio.timeout(finish):
                await giver.wait_closed()
                await taker.wait_closed()
        except TimeoutError:
            raise NodeError(
                f"nothing went over for {SILENCE:g} s, or its end did not come within {finish:g} s",
                host=target.host,
                step=step,
                seen=await _within(words) or await _within(complaints) or None,
                next=f"try it by hand: {shown(give)} on {source.host}, {shown(take)} on {target.host}",
            ) from None
        except (ConnectionError, asyncssh.Error, OSError) as error:
            raise NodeError(
                f"{shown(take)} ended before it had all",
                host=target.host,
                step=step,
                seen=(await _within(words) or str(error))[-TAIL:],
                next=f"is there room on {target.host}? df -h shows it",
            ) from error
        else:
            for process, node, argv, said in (
                (giver, source, give, complaints),
                (taker, target, take, words),
            ):
                if process.exit_status != 0:
                    raise NodeError(
                        f"{shown(argv)} left with {process.exit_status}",
                        host=node.host,
                        step=step,
                        seen=(await _within(said))[-TAIL:] or None,
                        next=f"run it by hand on {node.host}",
                    )
            return count
        finally:
            for task in (words, complaints):
                task.cancel()
            await asyncio.gather(words, complaints, return_exceptions=True)


def _end(process: asyncssh.SSHClientProcess[bytes]) -> None:
    """A command that still runs is ended: one that neither reads nor writes would not notice otherwise."""
    if process.exit_status is None:
        with contextlib.suppress(OSError, asyncssh.Error):
            process.terminate()
    process.close()


async def _copy(
    giver: asyncssh.SSHClientProcess[bytes],
    taker: asyncssh.SSHClientProcess[bytes],
    told: Callable[[int], None],
) -> int:
    count = 0
    while True:
        async with asyncio.timeout(SILENCE):
            piece = await giver.stdout.read(PIECE)
            if not piece:
                break
            taker.stdin.write(piece)
            await taker.stdin.drain()
        count += len(piece)
        told(count)
    taker.stdin.write_eof()
    return count


async def _drain(*streams: asyncssh.SSHReader[bytes]) -> str:
    """All that a command says: where nobody reads it, it would stand still."""
    said = await asyncio.gather(*(stream.read() for stream in streams))
    return b"".join(said).decode("utf-8", "replace").strip()


async def _within(task: asyncio.Future[str], seconds: float = 5.0) -> str:
    with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
        return await asyncio.wait_for(asyncio.shield(task), seconds)
    return ""
