"""Processes read from /proc: parsers on made-up text, and real processes that this test starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.nodes import processes
from glmspark.nodes.processes import Identity, Stat, descendants, parse_stat


def line(
    name: str = "python3", state: str = "S", parent: int = 1, started: int = 4711, status: int = 0
) -> str:
    fields = [state, str(parent), "7", "8", *["0"] * 15, str(started), "0", "250", *["0"] * 27, str(status)]
    return f"42 ({name}) {' '.join(fields)}\n"


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=15))
def test_any_name_is_read(name: str) -> None:
    stat = parse_stat(line(name))
    assert (stat.pid, stat.name, stat.parent, stat.group, stat.session) == (42, name, 1, 7, 8)
    assert (stat.started, stat.resident) == (4711, 250 * os.sysconf("SC_PAGE_SIZE"))


def test_an_ended_process_has_its_status() -> None:
    stat = parse_stat(line(state="Z", status=9))
    assert stat.ended
    assert os.WTERMSIG(stat.wait_status) == signal.SIGKILL


@pytest.mark.parametrize("text", ["", "42", "42 python S 1", "42 (python) S 1 2", "x (python) " + "0 " * 60])
def test_what_is_no_status(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a process status|invalid literal"):
        parse_stat(text)


def stat(pid: int, parent: int) -> Stat:
    return Stat(pid, "x", "S", parent, 0, 0, 0, 0, 0)


def test_descendants_are_found_once_and_roots_are_left_out() -> None:
    table = [stat(2, 1), stat(3, 2), stat(4, 3), stat(5, 1), stat(6, 5)]
    assert [one.pid for one in descendants([2], table)] == [3, 4]
    assert [one.pid for one in descendants([2, 3], table)] == [4]
    assert {one.pid for one in descendants([2, 5], table)} == {3, 4, 6}
    assert descendants([99], table) == []


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), unique_by=lambda pair: pair[0]))
def test_descendants_end_even_where_parents_go_round(pairs: list[tuple[int, int]]) -> None:
    found = descendants([1], [stat(pid, parent) for pid, parent in pairs])
    assert len({one.pid for one in found}) == len(found)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, "GLMSPARK_TEST_MARK": f"m{os.getpid()}"})
    yield process
    process.kill()
    process.wait()


def test_a_living_process(sleeper: subprocess.Popen[bytes]) -> None:
    identity = processes.identify(sleeper.pid)
    assert identity is not None
    assert processes.is_alive(identity)
    assert 0 <= processes.age(identity) < 60
    assert processes.command(sleeper.pid) == "sleep 60"
    assert processes.title(sleeper.pid) == "sleep"
    assert processes.memory(sleeper.pid) > 0
    assert identity in processes.marked("GLMSPARK_TEST_MARK", f"m{os.getpid()}")
    assert processes.marked("GLMSPARK_TEST_MARK", "m") == []
    assert sleeper.pid in {one.pid for one in processes.all_stats()}


def test_another_process_with_the_same_pid_is_not_taken_for_it(sleeper: subprocess.Popen[bytes]) -> None:
    identity = processes.identify(sleeper.pid)
    assert identity is not None
    older = Identity(identity.pid, identity.started - 1)
    assert not processes.is_alive(older)
    assert processes.send(older, signal.SIGKILL) is False
    assert sleeper.poll() is None
    assert processes.send(identity, signal.SIGKILL) is True
    assert processes.wait_gone([identity], 5) == []
    assert processes.identify(sleeper.pid) is None  # not reaped yet, but ended
    assert sleeper.wait() == -signal.SIGKILL
    assert processes.send(identity, signal.SIGKILL) is False


def test_waiting_is_bounded(sleeper: subprocess.Popen[bytes]) -> None:
    identity = processes.identify(sleeper.pid)
    assert identity is not None
    begin = time.monotonic()
    assert processes.wait_gone([identity], 0.1) == [identity]
    assert time.monotonic() - begin < 5


def test_what_is_not_there() -> None:
    nobody = 2**22 + 1  # above the kernel's largest pid
    assert processes.read_stat(nobody) is None
    assert processes.identify(nobody) is None
    assert processes.command(nobody) == ""
    assert processes.memory(nobody) == 0
    assert processes.shared_memory([nobody]) == set()
    assert processes.send(Identity(nobody, 1), signal.SIGTERM) is False


def test_shared_memory_of_a_process_is_found_by_its_mapping_and_by_its_open_file() -> None:
    mapped = shared_memory.SharedMemory(create=True, size=8192)
    opened = Path("/dev/shm") / f"glmspark-test-{os.getpid()}"
    try:
        with opened.open("wb"):
            found = processes.shared_memory([os.getpid()])
        assert {f"/dev/shm/{mapped.name}", str(opened)} <= found
    finally:
        mapped.close()
        mapped.unlink()
        opened.unlink()
    assert f"/dev/shm/{mapped.name}" not in processes.shared_memory([os.getpid()])


def test_a_semaphore_is_found_though_the_kernel_shows_another_name() -> None:
    before = set(Path("/dev/shm").glob("sem.mp-*"))
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    made = {str(path) for path in set(Path("/dev/shm").glob("sem.mp-*")) - before}
    assert made & processes.shared_memory([os.getpid()])
    del semaphore


def test_mappings_of_another_file_system_do_not_count() -> None:
    maps = (
        "7f0000000000-7f0000001000 rw-s 00000000 00:1a 55 /dev/shm/psm_1\n"
        "7f0000001000-7f0000002000 rw-s 00000000 00:1a 56 /dev/shm/sem.x (deleted)\n"
        "7f0000002000-7f0000003000 rw-s 00000000 00:2b 57 /dev/shm/psm_2\n"
        "7f0000003000-7f0000004000 r-xp 00000000 fd:01 58 /usr/lib/libc.so.6\n"
        "7f0000004000-7f0000005000 rw-p 00000000 00:00 0\n"
    )
    assert processes.parse_shared_memory(maps, os.makedev(0, 0x1A)) == {55, 56}
