"""The watch of the agents over one another, on loopback."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from glmspark.launch.node_agent import peers as watch
from glmspark.launch.node_agent.files import Trouble
from glmspark.launch.node_agent.peers import Peers
from tests.unit.launch.agent.specs import spec


class Watcher:
    """One agent's watch, without the agent."""

    def __init__(self, rank: int, port: int, **watch: Any) -> None:
        self.over: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.tasks: list[asyncio.Task[None]] = []
        where = {"listen" if rank == 0 else "connect": f"127.0.0.1:{port}", **watch}
        self.peers = Peers(
            spec(rank=rank, world=3, node=f"spark{rank + 1}", watch=where),
            finish=self.finish,
            keep=self.keep,
            changed=lambda _: None,
        )

    def finish(self, reason: dict[str, Any] | None) -> None:
        if not self.over.done():
            self.over.set_result(reason)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def until_connected(self, *ranks: int) -> None:
        while sorted(self.peers.connected) != sorted(ranks):
            await asyncio.sleep(0.01)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def three(**watch: Any) -> list[Watcher]:
    port = free_port()
    found = [Watcher(rank, port, **watch) for rank in range(3)]
    for one in reversed(found):  # rank 0 comes last
        await one.peers.start()
    await asyncio.wait_for(found[0].until_connected(1, 2), 5)
    await asyncio.wait_for(found[1].until_connected(0), 5)
    await asyncio.wait_for(found[2].until_connected(0), 5)
    return found


def test_an_end_is_told_with_its_reason() -> None:
    async def run() -> None:
        head, second, third = await three()
        reason = {"what": "rank 1 ended", "rank": 1, "node": "spark2"}
        second.peers.tell_end(reason)
        assert await asyncio.wait_for(head.over, 2) == reason
        head.peers.tell_end(reason)
        assert await asyncio.wait_for(third.over, 2) == reason

    asyncio.run(run())


def test_a_closed_connection_names_the_rank_and_its_node() -> None:
    async def run() -> None:
        head, _, third = await three()
        for peer in third.peers.connected.values():
            peer.writer.close()
        reason = await asyncio.wait_for(head.over, 2)
        assert reason is not None
        assert (reason["rank"], reason["node"]) == (2, "spark3")
        assert "closed its connection" in reason["what"]

    asyncio.run(run())


def test_silence_is_noticed_but_not_ones_own() -> None:
    async def run() -> None:
        head, *_ = await three(silence=3.0)
        now = time.monotonic()
        head.peers.check(now)
        head.peers.shift(10.0)
        head.peers.check(now + 10)
        assert not head.over.done()
        head.peers.check(now + 14)
        reason = head.over.result()
        assert reason is not None
        assert "was silent for 3 s" in reason["what"]
        assert reason["seen"] == "seen by rank 0 on spark1"

    asyncio.run(run())


def test_beats_keep_them_from_silence() -> None:
    async def run() -> None:
        watchers = await three(silence=1.5)
        end = time.monotonic() + 2.2
        while time.monotonic() < end:
            await asyncio.sleep(0.1)
            for one in watchers:
                one.peers.check(time.monotonic())
        assert not any(one.over.done() for one in watchers)

    asyncio.run(run())


def test_who_does_not_come_is_named() -> None:
    async def run() -> None:
        port = free_port()
        head, alone = Watcher(0, port, join=5.0), Watcher(1, free_port(), join=5.0)
        await head.peers.start()
        await alone.peers.start()
        await asyncio.sleep(0.1)
        for one in (head, alone):
            one.peers.check(time.monotonic() + 4)
            assert not one.over.done()
            one.peers.check(time.monotonic() + 6)
        missing, lost = head.over.result(), alone.over.result()
        assert missing is not None
        assert "rank 1, 2 did not come" in missing["what"]
        assert lost is not None
        assert "did not reach rank 0's agent at 127.0.0.1:" in lost["what"]
        assert "refused" in lost["seen"] or "Connect call failed" in lost["seen"]

    asyncio.run(run())


def test_a_taken_port_is_named() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            head = Watcher(0, taken.getsockname()[1])
            with pytest.raises(Trouble, match="cannot listen for the other ranks at"):
                await head.peers.start()

    asyncio.run(run())


def test_strangers_do_not_use_up_what_an_agent_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_STRANGERS", 2)

    async def run() -> None:
        port = free_port()
        head, follower = Watcher(0, port), Watcher(1, port)
        await head.peers.start()
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, _ in strangers:
            assert await asyncio.wait_for(reader.readline(), 3.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), 3.0) == b""
        for _, stranger in [*strangers, (reader, writer)]:
            stranger.close()
        await follower.peers.start()  # once they are gone
        await asyncio.wait_for(head.until_connected(1), 10)

    asyncio.run(run())
