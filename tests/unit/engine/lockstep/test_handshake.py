"""Ranks prove that they share the secret; whoever has another, or replays, gets nowhere."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.engine.lockstep import handshake as module
from glmspark.engine.lockstep.handshake import MAGIC, HandshakeError, prove_to_follower, prove_to_leader
from glmspark.engine.lockstep.link import Frame, Link, LinkError
from tests.unit.engine.lockstep.pairs import Outcome

SECRET = b"s" * 32
HELLO = module._HELLO.size
ANSWER = module._ANSWER.size


def meet(
    leader_secret: bytes, follower_secret: bytes, rank: int = 1, world: int = 2
) -> tuple[Outcome, Outcome]:
    """Both sides on a socket pair: rank 0's outcome and the follower's."""
    here, there = socket.socketpair()
    leader = Outcome(closing(prove_to_follower), here, leader_secret, world, "198.18.0.2")
    return leader, Outcome(closing(prove_to_leader), there, follower_secret, rank, "198.18.0.1")


def closing(function):
    """As the callers do: a connection on which the proof failed is closed."""

    def run(sock: socket.socket, *args: object):
        try:
            return function(sock, *args)
        except HandshakeError:
            sock.close()
            raise

    return run


@given(st.binary(min_size=32, max_size=64), st.integers(1, 7))
def test_the_same_secret_makes_a_link(secret: bytes, rank: int) -> None:
    leader, follower = meet(secret, secret, rank, 8)
    found, near = leader.get()
    far = follower.get()
    assert found == rank
    near.send(Frame.of(b"call"))
    assert far.receive() == b"call"
    far.send(Frame.of(b"answer"))
    assert near.receive() == b"answer"
    near.close()
    far.close()


@given(st.binary(min_size=32, max_size=40), st.binary(min_size=32, max_size=40))
def test_another_secret_is_told_to_the_follower_and_turned_away(one: bytes, two: bytes) -> None:
    if one == two:
        return
    leader, follower = meet(one, two)
    with pytest.raises(HandshakeError, match=r"rank 0 at 198.18.0.1 has another secret"):
        follower.get()
    with pytest.raises(HandshakeError, match=r"198.18.0.2 closed the connection instead of proving itself"):
        leader.get()


def test_a_follower_that_only_pretends_is_found_out() -> None:
    here, there = socket.socketpair()
    leader = Outcome(prove_to_follower, here, SECRET, 2, "198.18.0.2")
    with there:
        there.sendall(module._HELLO.pack(MAGIC, 1, b"n" * 32))
        there.recv(ANSWER)
        there.sendall(b"p" * 32)
        with pytest.raises(HandshakeError, match="says it is rank 1 and has another secret"):
            leader.get()
    here.close()


def test_a_recorded_follower_cannot_be_replayed() -> None:
    """Rank 0's nonce is fresh, so what a follower has sent once proves nothing later."""
    recorded = []
    for again in (False, True):
        here, there = socket.socketpair()
        leader = Outcome(prove_to_follower, here, SECRET, 2, "198.18.0.2")
        if again:
            there.sendall(recorded[0])
            there.recv(ANSWER)
            there.sendall(recorded[1])
            with pytest.raises(HandshakeError, match="another secret"):
                leader.get()
        else:
            middle, far = socket.socketpair()
            follower = Outcome(prove_to_leader, far, SECRET, 1, "198.18.0.1")
            recorded.append(middle.recv(HELLO))
            there.sendall(recorded[0])
            middle.sendall(there.recv(ANSWER))
            recorded.append(middle.recv(32))
            there.sendall(recorded[1])
            leader.get()[1].close()
            follower.get().close()
            middle.close()
        here.close()
        there.close()


def test_rank_0s_own_proof_cannot_be_sent_back() -> None:
    here, there = socket.socketpair()
    leader = Outcome(prove_to_follower, here, SECRET, 2, "198.18.0.2")
    there.sendall(module._HELLO.pack(MAGIC, 1, b"n" * 32))
    proof = module._ANSWER.unpack(there.recv(ANSWER))[2]
    there.sendall(proof)
    with pytest.raises(HandshakeError, match="another secret"):
        leader.get()
    here.close()
    there.close()


def test_who_relays_a_proof_cannot_speak_afterwards() -> None:
    """A machine between two ranks may pass on their proofs, but has no key of their link."""
    here, near = socket.socketpair()
    far, there = socket.socketpair()
    leader = Outcome(prove_to_follower, here, SECRET, 2, "198.18.0.2")
    follower = Outcome(prove_to_leader, there, SECRET, 1, "198.18.0.1")
    near.sendall(far.recv(HELLO))
    far.sendall(near.recv(ANSWER))
    near.sendall(far.recv(32))
    leader.get()
    link = follower.get()
    Link(far, b"guess" * 6, b"guess" * 6, "rank 1").send(Frame.of(b"do as I say"))
    with pytest.raises(LinkError, match="not authentic"):
        link.receive()
    for sock in (here, near, far, there):
        sock.close()


@given(st.binary(min_size=HELLO, max_size=HELLO))
def test_other_protocols_are_turned_away(data: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(data)
        with pytest.raises(HandshakeError):
            prove_to_follower(here, SECRET, 2, "198.18.0.9")


@pytest.mark.parametrize("rank", [0, 2, 4_000_000_000])
def test_ranks_that_are_none(rank: int) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(module._HELLO.pack(MAGIC, rank, b"n" * 32))
        with pytest.raises(HandshakeError, match=f"says it is rank {rank}; there are ranks 1 to 1"):
            prove_to_follower(here, SECRET, 2, "198.18.0.9")


def test_the_silent_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    for side in (
        lambda sock: prove_to_follower(sock, SECRET, 2, "198.18.0.9"),
        lambda sock: prove_to_leader(sock, SECRET, 1, "198.18.0.9"),
    ):
        here, there = socket.socketpair()
        with here, there, pytest.raises(HandshakeError, match="did not prove itself within"):
            side(here)


def test_a_web_server_is_not_rank_0() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"HTTP/1.1 400 Bad Request\r\n".ljust(ANSWER, b"."))
        with pytest.raises(HandshakeError, match="it is not rank 0 of this deployment"):
            prove_to_leader(here, SECRET, 1, "198.18.0.9:80")
