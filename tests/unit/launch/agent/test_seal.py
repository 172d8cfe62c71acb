"""Agents prove who they are, and what they say cannot be forged, repeated or left out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.launch.node_agent.seal import Peer, Seal, greet, introduce
from glmspark.launch.node_agent.spec import Spec
from tests.unit.launch.agent.specs import spec

KEY = "cd" * 32
MESSAGES = st.lists(
    st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers()), min_size=1, max_size=4
)


@given(MESSAGES)
def test_what_is_sealed_opens(messages: list[dict[str, Any]]) -> None:
    mine, theirs = Seal(KEY, "client"), Seal(KEY, "client")
    for message in messages:
        line = mine.seal(message)
        assert line.count(b"\n") == 1
        assert theirs.open(line) == message


@given(MESSAGES, st.data())
def test_a_changed_line_does_not(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    line = bytearray(Seal(KEY, "client").seal(messages[0]))
    at = data.draw(st.integers(0, len(line) - 2))
    line[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="seal"):
        Seal(KEY, "client").open(bytes(line))


def test_nor_a_repeated_a_mirrored_or_a_foreign_one() -> None:
    mine, theirs = Seal(KEY, "client"), Seal(KEY, "client")
    first, second = mine.seal({"beat": 1}), mine.seal({"beat": 1})
    with pytest.raises(ValueError, match="seal"):
        theirs.open(second)  # the first was left out
    assert theirs.open(first) == {"beat": 1}
    with pytest.raises(ValueError, match="seal"):
        theirs.open(first)
    for other in (Seal(KEY, "server"), Seal("ef" * 32, "client")):
        with pytest.raises(ValueError, match="seal"):
            other.open(first)


async def meet(server: Spec, client: Spec) -> tuple[Peer | ValueError, Peer | ValueError]:
    """Let two agents greet one another over a socket; what each thinks of the other."""
    told: asyncio.Future[Peer | ValueError] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            told.set_result(await greet(reader, writer, server))
        except ValueError as error:
            told.set_result(error)
            writer.close()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    mine: Peer | ValueError
    try:
        mine = await introduce(reader, writer, client)
    except ValueError as error:
        mine = error
    theirs = await told
    writer.close()
    listener.close()
    return theirs, mine


def test_two_of_one_deployment_meet() -> None:
    theirs, mine = asyncio.run(meet(spec(world=3), spec(world=3, rank=2, node="spark3")))
    assert isinstance(theirs, Peer)
    assert isinstance(mine, Peer)
    assert (theirs.rank, theirs.node) == (2, "spark3")
    assert (mine.rank, mine.node) == (0, "spark1")
    assert theirs.theirs.open(mine.mine.seal({"beat": 1})) == {"beat": 1}
    assert mine.theirs.open(theirs.mine.seal({"end": None})) == {"end": None}


@pytest.mark.parametrize(
    "stranger",
    [
        {"secrets": {"watch": "00" * 32}},
        {"id": "another start of it"},
        {"rank": 3},
        {"rank": 0},
    ],
)
def test_strangers_are_refused(stranger: dict[str, Any]) -> None:
    client = spec(**{"world": 3, "rank": 1, "node": "spark2", **stranger})
    theirs, mine = asyncio.run(meet(spec(world=3), client))
    assert isinstance(theirs, ValueError)
    assert isinstance(mine, ValueError)


def test_one_who_only_listens_learns_nothing() -> None:
    async def run() -> None:
        async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'{"nonce": "00"}\n')
            await reader.readline()
            writer.write(b'{"node": "spark1", "proof": "00"}\n')

        listener = await asyncio.start_server(pretend, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        with pytest.raises(ValueError, match="a stranger answers there"):
            await introduce(reader, writer, spec(world=2, rank=1))
        listener.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "said", ['{"rank": 1, "proof": "\u00e9"}', '{"rank": 1, "proof": "\\ud800"}', "[" * 99_999]
)
def test_whatever_a_stranger_says_is_refused_as_such(said: str) -> None:
    async def run() -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await greet(reader, writer, spec(world=3))
            except ValueError:
                writer.write(b"refused\n")
            writer.close()

        listener = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 18)
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        await reader.readline()
        writer.write(said.encode() + b"\n")
        async with asyncio.timeout(5):
            assert await reader.readline() == b"refused\n"
        writer.close()
        listener.close()

    asyncio.run(run())
