"""Frames arrive whole, in order and unaltered, or not at all."""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.engine.lockstep import link as module
from glmspark.engine.lockstep.link import HEADER, KEEPALIVE, ClosedError, Frame, Link, LinkError
from tests.unit.engine.lockstep.pairs import KEYS, Outcome, link_pair, tcp_pair


def wire(payloads: list[bytes]) -> list[bytes]:
    """The bytes of frames as they are sent from rank 0, one item each."""
    here, there = socket.socketpair()
    frames = []
    with here, there:
        sender = Link(here, *KEYS, "rank 1")
        for payload in payloads:
            sender.send(Frame.of(payload))
            frames.append(there.recv(1 << 20))
    return frames


def receive(data: bytes) -> list[bytes]:
    """The payloads that a follower takes from these bytes; raises as soon as one is not right."""
    here, there = socket.socketpair()
    with here, there:
        here.sendall(data)
        here.shutdown(socket.SHUT_WR)
        receiver = Link(there, *reversed(KEYS), "rank 0")
        found = []
        try:
            while True:
                found.append(receiver.receive())
        except ClosedError:
            return found


@given(st.lists(st.binary(max_size=2000), max_size=5))
def test_frames_come_as_they_were_sent(payloads: list[bytes]) -> None:
    assert receive(b"".join(wire(payloads))) == payloads


def test_both_directions_are_independent() -> None:
    leader, follower = link_pair()
    for number in range(3):
        leader.send(Frame.of(b"call %d" % number))
        assert follower.receive() == b"call %d" % number
        follower.send(Frame.of(b"answer %d" % number))
        assert leader.receive() == b"answer %d" % number
    leader.close()
    follower.close()


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3), st.data())
def test_no_bit_can_be_changed(payloads: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(b"".join(wire(payloads)))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(LinkError):
        receive(bytes(whole))


@given(st.binary(max_size=300), st.data())
def test_a_cut_frame_is_an_error_and_nothing_is_handed_on(payload: bytes, data: st.DataObject) -> None:
    (frame,) = wire([payload])
    kept = data.draw(st.integers(1, len(frame) - 1))
    with pytest.raises(LinkError, match="within a frame"):
        receive(frame[:kept])


@given(st.permutations(range(4)))
def test_frames_out_of_order_are_refused(order: list[int]) -> None:
    frames = wire([b"0", b"1", b"2", b"3"])
    data = b"".join(frames[number] for number in order)
    if order == [0, 1, 2, 3]:
        assert len(receive(data)) == 4
        return
    with pytest.raises(LinkError, match="not authentic"):
        receive(data)


def test_a_repeated_frame_is_refused() -> None:
    (frame,) = wire([b"step"])
    with pytest.raises(LinkError, match="frame 1 from rank 0 is not authentic"):
        receive(frame + frame)


def test_a_frame_sent_back_is_refused() -> None:
    """Each direction has its own key: rank 0's words are not a follower's."""
    (frame,) = wire([b"step"])
    here, there = socket.socketpair()
    with here, there:
        here.sendall(frame)
        with pytest.raises(LinkError, match="not authentic"):
            Link(there, *KEYS, "rank 1").receive()


def test_the_payload_is_not_waited_for_when_the_header_is_false() -> None:
    """A stranger's header makes no room and holds up nobody."""
    here, there = socket.socketpair()
    with here, there:
        here.sendall(HEADER.pack(1 << 40, b"d" * 32, b"c" * 32))
        with pytest.raises(LinkError, match="not authentic"):
            Link(there, *KEYS, "rank 1").receive()


def test_an_authentic_frame_that_is_too_large_is_refused() -> None:
    size, digest = module.MOST + 1, hashlib.sha256(b"").digest()
    code = hmac.digest(KEYS[0], struct.pack("!QQ32s", 0, size, digest), "sha256")
    here, there = socket.socketpair()
    with here, there:
        here.sendall(HEADER.pack(size, digest, code))
        with pytest.raises(LinkError, match="at most"):
            Link(there, *reversed(KEYS), "rank 0").receive()


def test_a_call_that_no_peer_would_take_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    with pytest.raises(LinkError, match="11 bytes"):
        Frame.of(b"x" * 11)


@settings(deadline=None, max_examples=5)
@given(st.integers(1, 4))
def test_large_frames_are_sent_whole_through_small_buffers(megabytes: int) -> None:
    leader, follower = link_pair()
    payload = bytes(range(256)) * (megabytes << 12)
    got = Outcome(follower.receive)
    leader.send(Frame.of(payload))
    assert got.get() == payload
    leader.close()
    follower.close()


def test_a_peer_that_stalls_within_a_frame_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL", 1)
    (frame,) = wire([b"step"])
    here, there = socket.socketpair()
    with here, there:
        receiver = Link(there, *reversed(KEYS), "rank 0")
        here.sendall(frame[:-1])
        with pytest.raises(LinkError, match="stalled for 1 s within a frame"):
            receiver.receive()


def test_silence_between_frames_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL", 1)
    (frame,) = wire([b"step"])
    here, there = socket.socketpair()
    with here, there:
        receiver = Link(there, *reversed(KEYS), "rank 0")
        got = Outcome(receiver.receive)
        with pytest.raises(AssertionError, match="does not end"):
            got.get(1.5)
        here.sendall(frame)
        assert got.get() == b"step"


def test_a_peer_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL", 1)
    leader, follower = link_pair()
    with pytest.raises(LinkError, match="took nothing for 1 s"):
        leader.send(Frame.of(b"x" * (8 << 20)))
    leader.close()
    follower.close()


def test_tcp_links_send_at_once_and_notice_a_machine_that_vanished() -> None:
    one, other = tcp_pair()
    with one, other:
        Link(one, *KEYS, "rank 1")
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for name, value in KEEPALIVE.items():
            assert one.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        idle, interval, count = KEEPALIVE.values()
        assert idle + interval * count <= 8
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8000


def test_a_closed_link_says_so() -> None:
    leader, follower = link_pair()
    leader.close()
    with pytest.raises(ClosedError, match="rank 0 closed the connection"):
        follower.receive()
    with pytest.raises(ClosedError, match=r"closed the connection \(broken pipe\)"):
        follower.send(Frame.of(b"answer"))
    follower.close()


def test_the_last_word_is_heard_before_the_end() -> None:
    leader, follower = link_pair()
    leader.last(Frame.of(b"bye"), 1)
    assert follower.receive() == b"bye"
    with pytest.raises(ClosedError):
        follower.receive()
    leader.close()
    follower.close()
