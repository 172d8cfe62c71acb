"""The record, the lock, the sweep and the tails: files that other processes and later versions meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.errors import StateError, UsageError
from glmspark.launch import lock as locks
from glmspark.launch.record import (
    Deployment,
    Home,
    Process,
    State,
    Verdict,
    home,
    homes,
    new_id,
    scratch_of,
)
from glmspark.launch.sweep import HOME_VARIABLE, sweep
from glmspark.launch.tail import Tail, last_lines, truncate_large
from glmspark.nodes import processes
from tests.unit.launch.starts import make_start


def test_a_record_is_read_back_as_it_was_written() -> None:
    start = make_start("there", "serves", "serves")
    where = home("there")
    where.prepare()
    where.write(start)
    assert where.read() == start
    assert [one.name for one in homes()] == ["there"]
    assert oct(where.record_file.stat().st_mode & 0o777) == "0o600"


def test_the_longest_name_is_one() -> None:
    assert home("N" + "n" * 62).name == "N" + "n" * 62


def test_no_record_is_none_and_no_directory_is_no_deployment() -> None:
    assert home("nobody").read() is None
    assert list(homes()) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        ".hidden",
        "nul\0",
        "n" * 64,
        "n" * 300,
        "a\nb",
        "a\x1b[31m",
        "-x",
        "\u00e4",
        "a ",
    ],
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(UsageError, match="not a deployment name"):
        home(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON"),
        ("[]", "not a deployment record"),
        ('{"version": 1}', "not a deployment record"),
        ('{"version": 2}', "written by a newer glmspark"),
    ],
)
def test_a_record_that_cannot_be_read_says_why(text: str, said: str) -> None:
    where = home("odd")
    where.prepare()
    where.record_file.write_text(text)
    with pytest.raises(StateError, match=said):
        where.read()


def test_a_record_with_a_field_of_another_version_is_refused() -> None:
    start = make_start("extra", "serves")
    where = home("extra")
    where.prepare()
    where.record_file.write_text(json.dumps({**start.model_dump(mode="json"), "surprise": 1}))
    with pytest.raises(StateError, match="not a deployment record") as caught:
        where.read()
    assert caught.value.seen is not None
    assert caught.value.seen.startswith("surprise: ")


def test_a_new_start_keeps_the_last_one_s_logs_and_nothing_older() -> None:
    where = home("twice")
    for text in ("first", "second", "third"):
        where.prepare()
        where.rank_log(0).write_text(text)
        where.write_key("secret")
        (where.path / ".deployment.json.x.tmp").write_text("of a write that was killed")
    where.prepare()
    assert list(where.logs.iterdir()) == []
    assert [path.read_text() for path in (where.path / "logs.previous").iterdir()] == ["third"]
    assert where.read_key() is None
    assert list(where.path.glob(".*.tmp")) == []


def test_the_key_is_for_the_owner_only() -> None:
    where = home("keyed")
    where.prepare()
    where.write_key("sk-1")
    assert where.read_key() == "sk-1"
    assert oct(where.key_file.stat().st_mode & 0o777) == "0o600"


def test_verdicts_come_and_go_with_their_file() -> None:
    where = home("verdicts")
    where.prepare()
    assert where.read_verdicts() == []
    verdict = Verdict(name="sum", probe="answer", passed=False, seconds=0.1, evidence="'5'", causes=["x"])
    where.write_verdicts([verdict])
    assert where.read_verdicts() == [verdict]
    where.verdicts_file.write_text('[{"name": 1}]')
    with pytest.raises(StateError, match="does not hold verdicts"):
        where.read_verdicts()


def test_processes_of_an_earlier_boot_are_nobody_s_relatives() -> None:
    start = make_start("boot", "serves")
    me = processes.identify(os.getpid())
    assert me is not None
    start.family = [Process.of(me)]
    assert start.relatives == [me]
    start.boot_id = "another"
    assert start.relatives == []


def test_closing_a_record_forgets_what_no_longer_is() -> None:
    start = make_start("closing", "serves")
    start.shared_memory, start.proving = ["/dev/shm/psm_1"], True
    start.close(State.STOPPED, at=7.0)
    assert (start.shared_memory, start.proving, start.state, start.since) == ([], False, State.STOPPED, 7.0)


def test_ids_differ_and_scratch_directories_are_short_and_known() -> None:
    assert len({new_id() for _ in range(100)}) == 100
    directory = Path("/a/very/long/" + "x" * 200)
    assert scratch_of(directory) == scratch_of(directory)
    assert scratch_of(directory) != scratch_of(directory / "y")
    assert len(str(scratch_of(directory))) + 1 + 36 <= 107  # with a socket named by a UUID in it


def test_a_long_temporary_directory_is_not_used_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/" + "t" * 80)
    assert scratch_of(Path("/s")).parent == Path("/tmp")
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    assert scratch_of(Path("/s")).parent == Path("/var/tmp")
    monkeypatch.setenv("TMPDIR", "relative")
    assert scratch_of(Path("/s")).parent == Path("/tmp")


# -- lock ----------------------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    assert not locks.held(path)
    first = locks.take(path)
    assert first is not None
    assert locks.held(path)
    assert locks.take(path) is None
    first.release()
    first.release()
    assert not locks.held(path)
    with pytest.raises(ValueError, match="released"):
        first.fileno()


HOLD = (
    "import sys, time; from pathlib import Path; from glmspark.launch import lock\n"
    "held = lock.take(Path(sys.argv[1])); print(flush=True); time.sleep(0.3)"
)


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            str(path),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert locks.take(path) is None
    taken = locks.take(path, wait=10)
    assert taken is not None
    taken.release()
    holder.stdout.close()
    assert holder.wait() == 0


def test_a_lock_outlives_its_first_holder_in_a_child_and_goes_with_the_last(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = locks.take(path)
    assert lock is not None
    child = subprocess.Popen(["sleep", "60"], pass_fds=(lock.fileno(),))
    lock.release()
    assert locks.held(path)
    child.kill()
    child.wait()
    assert not locks.held(path)


def test_a_lock_of_a_directory_that_was_removed_is_not_taken_for_one(tmp_path: Path) -> None:
    where = Home(tmp_path / "gone")
    lock = locks.take(where.lock_file)
    assert lock is not None
    with lock:
        where.remove_if_empty()
        assert not where.path.exists()
    again = locks.take(where.lock_file)
    assert again is not None
    again.release()


def test_a_directory_with_a_record_is_not_removed(tmp_path: Path) -> None:
    where = Home(tmp_path / "stays")
    where.prepare()
    where.write(make_start("stays", "serves"))
    where.remove_if_empty()
    assert where.record_file.exists()


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError):
        locks.take(tmp_path / "file" / "lock")


# -- sweep ---------------------------------------------------------------------------------------------------


def test_a_sweep_takes_what_is_ours_and_nothing_else(tmp_path: Path) -> None:
    environment = {**os.environ, HOME_VARIABLE: str(tmp_path)}
    ours = subprocess.Popen(["sleep", "60"], env=environment)
    stranger = subprocess.Popen(["sleep", "60"], env={**environment, HOME_VARIABLE: str(tmp_path / "other")})
    left, used = (shared_memory.SharedMemory(create=True, size=4096) for _ in range(2))
    used_path, left_path = f"/dev/shm/{used.name}", f"/dev/shm/{left.name}"
    left.close()  # mapped by nobody any more
    scratch = scratch_of(tmp_path)
    scratch.mkdir()
    (scratch / "socket").write_text("")
    try:
        swept = sweep(tmp_path, scratch, [used_path, left_path, "/dev/shm/../etc/passwd", "/etc/hostname"])
        assert ours.wait(timeout=5) == -9
        assert stranger.poll() is None
        assert [line.split()[0] for line in swept.processes] == [str(ours.pid)]
        assert swept.files == [left_path, str(scratch)]
        assert swept.stubborn == []
        assert Path(used_path).exists()
        assert Path("/etc/hostname").exists()
        assert sweep(tmp_path, scratch, [left_path]).files == []
    finally:
        stranger.kill()
        stranger.wait()
        used.close()
        used.unlink()


def test_a_sweep_does_not_follow_a_path_that_is_no_scratch_directory(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    link = tmp_path / "glmspark-link"
    link.symlink_to(precious)
    assert sweep(tmp_path, precious).files == []
    assert sweep(tmp_path, link).files == []
    assert precious.is_dir()


def test_a_sweep_knows_processes_by_the_record_too(tmp_path: Path) -> None:
    unmarked = subprocess.Popen(["sleep", "60"])
    identity = processes.identify(unmarked.pid)
    assert identity is not None
    older = processes.Identity(os.getpid(), 1)  # a pid that now belongs to someone else: this test
    swept = sweep(tmp_path, None, (), [identity, older])
    assert unmarked.wait(timeout=5) == -9
    assert len(swept.processes) == 1


# -- tails ---------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=12))
def test_a_tail_gives_every_line_once_however_the_file_grows(chunks: list[bytes]) -> None:
    path = Path(f"/dev/shm/glmspark-tail-{os.getpid()}")
    path.write_bytes(b"")
    try:
        tail, seen = Tail(path), []
        for chunk in chunks:
            with path.open("ab") as file:
                file.write(chunk)
            seen += tail.lines()
        whole = b"".join(chunks).replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode("utf-8", "replace")
        seen.append(tail.rest())
        # A line end split over two looks may count twice: an empty line more, never a line less.
        assert [line for line in seen if line] == [line for line in whole.split("\n") if line]
    finally:
        path.unlink()


def test_a_tail_starts_again_when_the_file_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_text("one\ntwo")
    assert tail.lines() == ["one"]
    assert tail.rest() == "two"
    path.write_text("x\n")
    assert tail.lines() == ["x"]
    assert Tail(path, from_end=True).lines() == []


def test_a_large_log_is_cut_and_its_end_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\n" * 50)
    assert not truncate_large(path, 100)
    assert truncate_large(path, 99)
    assert path.read_text() == ""
    assert (tmp_path / "log.1").read_text() == "a\n" * 50
    assert not truncate_large(tmp_path / "none", 1)


def test_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("1\n2\r3\n4\n")
    assert last_lines(path, 2) == ["3", "4"]
    assert last_lines(path, 0) == []
    assert last_lines(path, 99) == ["1", "2", "3", "4"]
    assert last_lines(tmp_path / "none", 5) == []


def test_the_record_of_a_start_is_small(tmp_path: Path) -> None:
    start = make_start("small", *["serves"] * 8)
    assert len(start.model_dump_json()) < 20_000
    assert Deployment.model_validate_json(start.model_dump_json()) == start
    assert time.time() - start.created < 60


def test_the_last_record_has_room_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    where, start = home("full"), make_start("full", "serves")
    where.prepare()
    assert where.reserve_file.stat().st_blocks * 512 >= 256 * 1024
    where.write(start)
    write = Home.write

    def full(self: Home, deployment: Deployment) -> None:
        """No room but for what was set aside."""
        if self.reserve_file.exists():
            raise StateError("no space left")
        write(self, deployment)

    monkeypatch.setattr(Home, "write", full)
    with pytest.raises(StateError):
        where.write(start)
    start.close(State.STOPPED)
    where.write_last(start)
    again = where.read()
    assert again is not None
    assert again.state is State.STOPPED
    assert not where.reserve_file.exists()
    where.prepare()
    assert where.reserve_file.exists()


def test_a_start_that_came_to_nothing_leaves_no_reserve() -> None:
    where = home("nothing")
    where.prepare()
    where.remove_if_empty()
    assert not where.path.exists()
