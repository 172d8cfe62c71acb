"""Nodes that come, do not come, go, or are none of ours."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from glmspark.engine.ray import roll_call
from glmspark.engine.ray.roll_call import (
    Caller,
    EndedError,
    GoneError,
    Line,
    RefusedError,
    RollCall,
    RollCallError,
    call,
)

SECRET = b"0123456789abcdef0123456789abcdef"
HEAD = Caller("127.0.0.2", "lo", {"ray": "2.60.0"})
NODE = Caller("127.0.0.3", "lo", {"ray": "2.60.0"})
CONTROL = "127.0.0.2:6379"


def with_roll(
    work: Callable[[RollCall], Awaitable[None]], nodes: int = 2, expected: tuple[str, ...] = ()
) -> None:
    """Run `work` with a roll call that listens and has announced itself."""

    async def run() -> None:
        with socket.socket() as probe:
            probe.bind((HEAD.address, 0))
            port = probe.getsockname()[1]
        roll = RollCall(HEAD, port, nodes, SECRET, expected)
        await roll.listen()
        roll.announce(CONTROL)
        try:
            async with asyncio.timeout(10):
                await work(roll)
        finally:
            await roll.close("over")

    asyncio.run(run())


async def joined(roll: RollCall, caller: Caller = NODE, secret: bytes = SECRET) -> Line:
    line, control = await call((HEAD.address, roll.port), caller, secret, 5)
    assert control == CONTROL
    await line.send(joined=True)
    return line


def test_all_meet() -> None:
    async def work(roll: RollCall) -> None:
        lines = await asyncio.gather(joined(roll), joined(roll, replace(NODE, address="127.0.0.4")))
        await roll.complete(5)
        assert sorted(roll.present) == ["127.0.0.3", "127.0.0.4"]
        await asyncio.gather(*(line.close() for line in lines))

    with_roll(work, nodes=3)


def test_a_node_may_call_before_the_head_listens() -> None:
    async def run() -> None:
        with socket.socket() as probe:
            probe.bind((HEAD.address, 0))
            port = probe.getsockname()[1]
        early = asyncio.create_task(call((HEAD.address, port), NODE, SECRET, 5))
        await asyncio.sleep(0.4)
        roll = RollCall(HEAD, port, 2, SECRET)
        await roll.listen()
        await asyncio.sleep(0.4)
        roll.announce(CONTROL)
        line, control = await early
        assert control == CONTROL
        await line.close()
        await roll.close(None)

    asyncio.run(run())


def test_who_is_missing_is_named() -> None:
    async def work(roll: RollCall) -> None:
        line = await joined(roll)
        with pytest.raises(RollCallError) as error:
            await roll.complete(0.3)
        assert str(error.value) == (
            "2 of 3 nodes are here after 0 s: 127.0.0.2, 127.0.0.3; missing: 127.0.0.4"
        )
        await line.close()

    with_roll(work, nodes=3, expected=("127.0.0.2", "127.0.0.3", "127.0.0.4"))


def test_without_a_plan_the_missing_are_counted_and_the_slow_are_named() -> None:
    async def work(roll: RollCall) -> None:
        line, _ = await call((HEAD.address, roll.port), NODE, SECRET, 5)  # and never says that it has joined
        with pytest.raises(RollCallError) as error:
            await roll.complete(0.3)
        assert "1 of 4 nodes are here" in str(error.value)
        assert "2 did not call" in str(error.value)
        assert "called, but Ray has not started there: 127.0.0.3" in str(error.value)
        await line.close()

    with_roll(work, nodes=4)


@pytest.mark.parametrize(
    ("caller", "secret", "why"),
    [
        (NODE, b"another" * 8, "its secret is not this deployment's"),
        (replace(NODE, versions={"ray": "2.59.0"}), SECRET, "ray is 2.59.0 there and 2.60.0 on the head"),
        (replace(NODE, address="127.0.0.9"), SECRET, "127.0.0.9 is not among the plan's nodes"),
    ],
)
def test_who_is_none_of_ours_is_refused_and_told_why(caller: Caller, secret: bytes, why: str) -> None:
    async def work(roll: RollCall) -> None:
        with pytest.raises(RefusedError, match=why):
            await call((HEAD.address, roll.port), caller, secret, 5)
        assert not roll.present

    with_roll(work, expected=("127.0.0.2", "127.0.0.3"))


def test_an_address_is_taken_once() -> None:
    async def work(roll: RollCall) -> None:
        line = await joined(roll)
        with pytest.raises(RefusedError, match=r"a node with the address 127.0.0.3 is here already"):
            await call((HEAD.address, roll.port), NODE, SECRET, 5)
        await line.close()

    with_roll(work, nodes=3)


def test_a_stranger_disturbs_nobody() -> None:
    async def work(roll: RollCall) -> None:
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", json.dumps({"address": 1}).encode() + b"\n"):
            _, writer = await asyncio.open_connection(HEAD.address, roll.port)
            writer.write(words)
            writer.close()
        line = await joined(roll)
        await roll.complete(5)
        await line.close()

    with_roll(work)


def test_a_head_that_does_not_know_the_secret_is_not_trusted() -> None:
    async def run() -> None:
        async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'{"challenge": "00"}\n')
            await reader.readline()
            writer.write(b'{"proof": "00"}\n{"control": "127.0.0.2:1"}\n')
            await writer.drain()

        server = await asyncio.start_server(pretend, HEAD.address, 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RefusedError, match="does not know this deployment's secret"):
            await call((HEAD.address, port), NODE, SECRET, 5)
        server.close()

    asyncio.run(run())


def test_a_head_that_is_not_there() -> None:
    async def run() -> None:
        with pytest.raises(GoneError, match=r"the head at 127.0.0.2:\d+ did not answer within 1 s .*refused"):
            await call((HEAD.address, 9), NODE, SECRET, 0.7)

    asyncio.run(run())


def test_a_node_that_goes_is_named_with_its_reason() -> None:
    async def work(roll: RollCall) -> None:
        line = await joined(roll)
        await roll.complete(5)
        await line.close(end="Ray's raylet ended")
        with pytest.raises(GoneError, match=r"node 127.0.0.3 has ended: Ray's raylet ended"):
            await roll.lost_raises()

    with_roll(work)


def test_a_node_that_goes_before_all_are_there_ends_the_wait() -> None:
    async def work(roll: RollCall) -> None:
        line = await joined(roll)
        await line.close()
        with pytest.raises(GoneError, match=r"node 127.0.0.3 closed the connection"):
            await roll.complete(5)

    with_roll(work, nodes=3)


def test_silence_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "SILENCE", 0.5)
    monkeypatch.setattr(roll_call, "BEAT", 5.0)

    async def work(roll: RollCall) -> None:
        line = await joined(roll)
        with pytest.raises(GoneError, match="silent for"):
            await roll.lost_raises()
        await line.close()

    with_roll(work)


def test_signs_of_life_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_call, "SILENCE", 0.5)
    monkeypatch.setattr(roll_call, "BEAT", 0.1)

    async def work(roll: RollCall) -> None:
        line = await joined(roll)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await roll.lost_raises()
        await line.close()

    with_roll(work)


@pytest.mark.parametrize(("reason", "error"), [(None, EndedError), ("the server ended with 1", GoneError)])
def test_the_head_says_why_it_ends(reason: str | None, error: type[Exception]) -> None:
    async def work(roll: RollCall) -> None:
        line = await joined(roll)
        await roll.complete(5)
        _, raised = await asyncio.gather(roll.close(reason), line.receive(), return_exceptions=True)
        assert type(raised) is error
        assert (reason or "was stopped") in str(raised)
        await line.close()

    with_roll(work)
