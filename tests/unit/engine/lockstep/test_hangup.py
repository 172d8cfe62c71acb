"""A worker ends with rank 0, on a signal, and with its parent, even when it does not look."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import get_context

import pytest

from glmspark.engine.lockstep import hangup
from glmspark.engine.lockstep.hangup import RANK_0_GONE, STOPPED, end_with_parent, watch

# A main thread in native code that never comes back: Python runs no handler there.
STUCK = """
import ctypes, os, socket, sys
from glmspark.engine.lockstep.hangup import signal_bytes, watch
sock = socket.socket(fileno=int(sys.argv[1]))
watch(sock.fileno(), signal_bytes(), os._exit)
print("stuck", flush=True)
while True: ctypes.CDLL(None).pause()
"""


def stuck(sock: socket.socket) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(sock.fileno())],
        pass_fds=[sock.fileno()],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    return process


def test_a_stuck_rank_ends_when_rank_0_is_gone() -> None:
    here, there = socket.socketpair()
    with there:
        process = stuck(there)
    here.close()
    assert process.wait(5) == RANK_0_GONE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stuck_rank_ends_when_it_is_told_to(number: signal.Signals) -> None:
    here, there = socket.socketpair()
    with here, there:
        process = stuck(there)
        process.send_signal(number)
        assert process.wait(5) == STOPPED


def test_data_is_no_hangup_and_stays_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangup, "GRACE", 0.0)
    here, there = socket.socketpair()
    codes: list[int] = []
    ended = threading.Event()
    with there:
        watch(there.fileno(), None, lambda code: (codes.append(code), ended.set()))
        here.sendall(b"a call")
        assert not ended.wait(0.3)
        assert there.recv(10) == b"a call"
        here.close()
        assert ended.wait(2)
    assert codes == [RANK_0_GONE]


def test_what_rank_0_said_last_can_still_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangup, "GRACE", 0.5)
    here, there = socket.socketpair()
    ended = threading.Event()
    with there:
        watch(there.fileno(), None, lambda code: ended.set())
        here.sendall(b"bye")
        here.close()
        assert there.recv(10) == b"bye"
        assert not ended.is_set()
        assert ended.wait(2)


def outlive_parent(report: int) -> None:
    """A child of a child, which is to end with its parent."""
    end_with_parent(os._exit)
    os.write(report, b"%d\n" % os.getpid())
    time.sleep(60)


def parent(report: int) -> None:
    get_context("fork").Process(target=outlive_parent, args=(report,)).start()
    time.sleep(60)


def test_a_child_ends_when_its_parent_is_killed() -> None:
    read, write = os.pipe()
    process = get_context("fork").Process(target=parent, args=(write,))
    process.start()
    child = int(os.read(read, 20))
    handle = os.pidfd_open(child)
    process.kill()
    process.join()
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    assert poll.poll(5000), "it has outlived its parent"
    for descriptor in (read, write, handle):
        os.close(descriptor)


def test_a_process_of_its_own_has_no_such_parent() -> None:
    end_with_parent(lambda code: pytest.fail("it has no parent to end with"))
