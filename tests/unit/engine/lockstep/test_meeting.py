"""Ranks come together whatever else knocks at the door, or say why not."""

from __future__ import annotations

import json
import logging
import socket
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.engine.lockstep import LockstepError, meeting
from glmspark.engine.lockstep.handshake import HandshakeError, prove_to_leader
from glmspark.engine.lockstep.link import Frame
from glmspark.engine.lockstep.meeting import DisagreementError, Gathering, differences, join, listen
from glmspark.engine.lockstep.settings import Settings
from tests.engine.ranks import free_port
from tests.unit.engine.lockstep.pairs import Outcome

FACTS = {"software.vllm": "0.32.0", "configuration.model_config.max_model_len": "2048", "checkpoint.a": "1"}


@pytest.fixture
def leader() -> Settings:
    """Rank 0 of 3, on a free port."""
    return Settings(0, 3, 0, "127.0.0.1", free_port(), "127.0.0.1", b"s" * 32, start=5)


def follower(leader: Settings, rank: int, **changes: object) -> Settings:
    return replace(leader, rank=rank, host_ip=f"127.0.0.{rank + 1}", **changes)


def gathering(leader: Settings) -> Outcome:
    return Outcome(Gathering(leader, listen(leader), FACTS).run)


def test_all_come_in_any_order_and_before_rank_0(leader: Settings) -> None:
    late = Outcome(join, follower(leader, 2), FACTS)
    gathered = gathering(leader)
    links = {1: join(follower(leader, 1), FACTS), 2: late.get()}
    found = gathered.get()
    assert sorted(found) == [1, 2]
    for rank, link in found.items():
        assert link.peer == f"rank {rank} on {socket.gethostname()} (127.0.0.{rank + 1})"
        link.send(Frame.of(b"call"))
        assert links[rank].receive() == b"call"
    for link in [*found.values(), *links.values()]:
        link.close()


def test_strangers_hold_up_nobody(leader: Settings, caplog: pytest.LogCaptureFixture) -> None:
    gathered = gathering(leader)
    where = ("127.0.0.1", leader.port)
    silent = [socket.create_connection(where) for _ in range(5)]
    with socket.create_connection(where) as loud:
        loud.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".ljust(200, b"."))
        with caplog.at_level(logging.WARNING, "vllm.glmspark.lockstep"):
            with pytest.raises(HandshakeError, match="has another secret"):
                join(follower(leader, 1, secret=b"t" * 32), FACTS)
            links = [Outcome(join, follower(leader, rank), FACTS) for rank in (1, 2)]
            found = gathered.get()
    assert sorted(found) == [1, 2]
    assert "turned away: 127.0.0.1 does not speak this protocol" in caplog.text
    assert "127.0.0.2 closed the connection instead of proving itself" in caplog.text
    for sock in silent:
        sock.close()
    for link in [*found.values(), *(one.get() for one in links)]:
        link.close()


def test_a_second_one_of_a_rank_is_turned_away(leader: Settings, caplog: pytest.LogCaptureFixture) -> None:
    gathered = gathering(leader)
    first = Outcome(join, follower(leader, 1), FACTS)
    with pytest.raises(AssertionError):
        first.get(0.5)
    with pytest.raises(LockstepError, match="before all ranks had come"):
        join(replace(follower(leader, 1), host_ip="127.0.0.9"), FACTS)
    second = join(follower(leader, 2), FACTS)
    found = gathered.get()
    assert "but rank 1 is here already" in caplog.text
    for link in [*found.values(), first.get(), second]:
        link.close()


@pytest.mark.parametrize("key", FACTS)
def test_ranks_that_differ_are_both_told_in_what(leader: Settings, key: str) -> None:
    gathered = gathering(leader)
    alike = Outcome(join, follower(leader, 1), FACTS)
    with pytest.raises(AssertionError):
        alike.get(0.3)
    with pytest.raises(DisagreementError) as there:
        join(follower(leader, 2), {**FACTS, key: "other"})
    with pytest.raises(DisagreementError) as here:
        gathered.get()
    with pytest.raises(DisagreementError):
        alike.get()
    for told in (str(here.value), str(there.value)):
        assert f"differs from rank 0 in {key.split('.', maxsplit=1)[0]}" in told
        assert f"{key}: {FACTS[key]} on rank 0, other there" in told


def test_who_does_not_come_is_named(leader: Settings) -> None:
    gathered = gathering(replace(leader, start=0.7))
    Outcome(join, follower(leader, 2), FACTS)
    with pytest.raises(LockstepError, match=r"rank 1 did not come to 127.0.0.1"):
        gathered.get()


def test_who_ends_while_others_are_awaited_is_named(leader: Settings) -> None:
    gathered = gathering(leader)
    sock = socket.create_connection(("127.0.0.1", leader.port))
    link = prove_to_leader(sock, leader.secret, 2, "rank 0")
    link.send(Frame.of(json.dumps({"node": "spark-3", "facts": FACTS}).encode()))
    with pytest.raises(AssertionError):
        gathered.get(0.3)
    link.close()
    with pytest.raises(
        LockstepError, match=r"rank 2 on spark-3 \(127.0.0.1\) ended while others were awaited"
    ):
        gathered.get()


def test_rank_0_that_never_comes_is_given_up(leader: Settings) -> None:
    with pytest.raises(HandshakeError, match=r"rank 1 cannot reach rank 0 at 127.0.0.1:\d+ from 127.0.0.2"):
        join(follower(leader, 1, start=0.5), FACTS)


def test_rank_0_that_ends_meanwhile_is_told(leader: Settings) -> None:
    gathered = gathering(replace(leader, start=0.5))
    with pytest.raises(LockstepError, match="closed the connection before all ranks had come"):
        join(follower(leader, 1), FACTS)
    with pytest.raises(LockstepError):
        gathered.get()


def test_the_door_is_on_one_address_only(leader: Settings) -> None:
    with listen(replace(leader, host_ip="127.0.0.5")) as door:
        assert door.getsockname() == ("127.0.0.5", leader.port)
    with (
        socket.create_server(("127.0.0.1", leader.port)),
        pytest.raises(LockstepError, match="Choose another MASTER_PORT"),
    ):
        listen(leader)


@given(st.dictionaries(st.text(min_size=1), st.text()), st.dictionaries(st.text(min_size=1), st.text()))
def test_only_the_same_facts_are_the_same(mine: dict[str, str], theirs: dict[str, str]) -> None:
    assert (differences(mine, theirs, "rank 1") is None) == (mine == theirs)


def test_many_differences_are_counted() -> None:
    told = differences({}, {f"checkpoint.{number}": "x" * 200 for number in range(20)}, "rank 1")
    assert told is not None
    assert told.count("\n") == 9
    assert "and 12 more" in told
    assert max(map(len, told.splitlines())) < 160


def test_names_are_reminded_of_once(leader: Settings, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vllm.glmspark.lockstep"):
        gathered = gathering(replace(leader, start=1))
        for _ in range(5):
            socket.create_connection(("127.0.0.1", leader.port)).close()
        with pytest.raises(LockstepError):
            gathered.get()
    assert caplog.text.count("waiting for rank 1, 2") == 1
    assert meeting.RETRY < 1
