"""A follower notices that rank 0 is gone."""

from __future__ import annotations

import socket
import threading

import pytest

from glmspark.engine.follower import KEEPALIVE, connect, watch


@pytest.fixture
def rank_0():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def watched(server: socket.socket) -> tuple[socket.socket, threading.Event, threading.Thread]:
    """Rank 0's end of the link, an event set when the follower ends, and the watching thread."""
    link = connect(*server.getsockname())
    end, _ = server.accept()
    gone = threading.Event()
    thread = threading.Thread(target=watch, args=(link, gone.set))
    thread.start()
    return end, gone, thread


def test_it_stays_while_rank_0_is_there_whatever_is_said(rank_0: socket.socket) -> None:
    end, gone, thread = watched(rank_0)
    end.sendall(b"a store may send something")
    assert not gone.wait(0.3)
    end.close()
    assert gone.wait(5)
    thread.join(5)
    assert not thread.is_alive()


def test_a_reset_counts_as_gone(rank_0: socket.socket) -> None:
    end, gone, thread = watched(rank_0)
    # Linger 0: closing sends a reset, as a killed machine's successor would.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    end.close()
    assert gone.wait(5)
    thread.join(5)


def test_the_link_notices_a_machine_that_vanished(rank_0: socket.socket) -> None:
    with connect(*rank_0.getsockname()) as link:
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for name, value in KEEPALIVE.items():
            assert link.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        idle, interval, count = KEEPALIVE.values()
        assert idle + interval * count <= 15


def test_no_rank_0_is_an_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    with pytest.raises(OSError, match="refused"):
        connect(*address)
