"""Copies on other nodes: taken from guards of the same cluster alone, and whole or not at all."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.guard import peers
from glmspark.guard.config import Config, Peer
from glmspark.guard.files import Trouble
from glmspark.guard.peers import Receiver, Sender, read_secret, send
from glmspark.guard.ring import segment_name
from glmspark.guard.seal import Header, digest_of, new_nonce, parse_header, parse_nonce, thanked

SECRET, OTHER = b"s" * 64, b"o" * 64
NAME = segment_name(time.time())
DATA = b'{"t":1}\n' * 100
TWO = Config("spark2", listen="127.0.0.1", peers=(Peer("spark1", "127.0.0.1"),), peer_port=0)


def header(data: bytes = DATA, node: str = "spark1", name: str = NAME) -> Header:
    return Header(node, name, len(data), digest_of(data))


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    one = Receiver(TWO, SECRET, str(tmp_path / "two"))
    yield one
    one.close()


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "two").rglob("*.jsonl"))


def test_a_copy_arrives_and_is_replaced_by_a_longer_one(receiver: Receiver, tmp_path: Path) -> None:
    peer = Peer("spark2", "127.0.0.1")
    send(peer, receiver.port, SECRET, header(), DATA)
    longer = DATA + b"{}\n"
    send(peer, receiver.port, SECRET, header(longer), longer)
    (file,) = kept(tmp_path)
    assert file.read_bytes() == longer
    assert file.parent.name == "spark1"
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("secret", "said", "data"),
    [
        (OTHER, header(), DATA),
        (SECRET, header(node="spark3"), DATA),
        (SECRET, header(node="../../etc"), DATA),
        (SECRET, header(name="../../../passwd"), DATA),
        (SECRET, replace(header(), digest="0" * 64), DATA),
        (SECRET, replace(header(), size=2**40), DATA),
        (SECRET, header(), DATA[:-9]),
    ],
)
def test_what_is_not_of_this_cluster_or_not_whole_is_refused(
    receiver: Receiver, tmp_path: Path, secret: bytes, said: Header, data: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=5) as connection:
        lines = connection.makefile("rb")
        nonces = (parse_nonce(lines.readline()), new_nonce())
        connection.sendall(said.sealed(secret, nonces) + data)
        connection.shutdown(socket.SHUT_WR)
        assert lines.readline() == b""
    assert kept(tmp_path) == []


def test_a_recorded_copy_cannot_be_sent_again(receiver: Receiver, tmp_path: Path) -> None:
    nonces = (new_nonce(), new_nonce())
    line = header().sealed(SECRET, nonces)
    assert parse_header(line, SECRET, nonces[0])[0] == header()
    with pytest.raises(Trouble, match="stranger"):
        parse_header(line, SECRET, new_nonce())


def test_thanks_are_for_this_copy() -> None:
    nonces = (new_nonce(), new_nonce())
    right = json.dumps({"thanks": header().seal(SECRET, nonces, "thanks")}).encode() + b"\n"
    assert thanked(right, header(), SECRET, nonces)
    echo = json.dumps({"thanks": header().seal(SECRET, nonces, "copy")}).encode() + b"\n"
    assert not thanked(echo, header(), SECRET, nonces)


@given(
    st.binary(max_size=200)
    | st.text(max_size=80).map(lambda text: json.dumps({"nonce": text}).encode() + b"\n")
)
def test_any_line_is_understood_or_refused(line: bytes) -> None:
    for parse in (parse_nonce, lambda one: parse_header(one, SECRET, "0" * 32)):
        try:
            parse(line)
        except Trouble:
            continue


def test_a_flood_of_nonsense_does_not_end_the_receiver(receiver: Receiver, tmp_path: Path) -> None:
    for noise in (b"", b"\n", b"{" * 5000, b"\x00" * 100, b'{"node":1}\n'):
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=5) as connection:
            connection.sendall(noise)
            connection.shutdown(socket.SHUT_WR)
            connection.makefile("rb").read()
    send(Peer("spark2", "127.0.0.1"), receiver.port, SECRET, header(), DATA)
    assert len(kept(tmp_path)) == 1


def test_the_next_peer_gets_what_the_first_does_not_take(receiver: Receiver, tmp_path: Path) -> None:
    ring = tmp_path / "one/ring"
    ring.mkdir(parents=True)
    (ring / NAME).write_bytes(DATA)
    # Nobody listens at 127.0.0.2; the second peer takes the copy.
    peers = (Peer("gone", "127.0.0.2"), Peer("spark2", "127.0.0.1"))
    sender = Sender(Config("spark1", peers=peers, peer_port=receiver.port), SECRET, str(ring))
    sender.add(NAME)
    sender.add("20010101T0000.jsonl")  # it has left the ring
    end = time.monotonic() + 60
    while time.monotonic() < end and sender.sent is None:
        time.sleep(0.01)
    assert sender.sent is not None
    assert sender.sent["to"] == "spark2"
    assert [file.read_bytes() for file in kept(tmp_path)] == [DATA]


def test_a_receiver_that_does_not_thank_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(json.dumps({"nonce": new_nonce()}).encode() + b"\n")
                connection.recv(65536)
                connection.sendall(b'{"thanks":"x"}\n')

        threading.Thread(target=pretend, daemon=True).start()
        with pytest.raises(Trouble, match="did not thank"):
            send(Peer("spark2", "127.0.0.1"), server.getsockname()[1], SECRET, header(), DATA)


def test_the_secret_is_private_and_long(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for text, mode, said in ((b"x" * 64, 0o640, "read by others"), (b"x" * 8, 0o600, "less than 32")):
        path.write_bytes(text)
        path.chmod(mode)
        with pytest.raises(Trouble, match=said):
            read_secret(str(path))
    with pytest.raises(Trouble, match="No such file"):
        read_secret(str(tmp_path / "none"))
    path.write_bytes(SECRET + b"\n")
    assert read_secret(str(path)) == SECRET


def test_a_stranger_that_takes_his_time_keeps_nobody_out(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_TIMEOUT", 0.3)
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=10) as stranger:
        begin = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - begin < 5:  # a byte now and then
                stranger.sendall(b" ")
                time.sleep(0.05)
        assert time.monotonic() - begin < 4
    monkeypatch.setattr(peers, "_TIMEOUT", 5.0)
    send(Peer("spark2", "127.0.0.1"), receiver.port, SECRET, header(), DATA)
    assert len(kept(tmp_path)) == 1


def test_copies_of_a_node_whose_clock_is_wrong_are_kept(receiver: Receiver, tmp_path: Path) -> None:
    for minute in range(3):
        name = segment_name(1e6 + 60 * minute)  # of 1970
        send(Peer("spark2", "127.0.0.1"), receiver.port, SECRET, header(name=name), DATA)
    assert len(kept(tmp_path)) == 3
