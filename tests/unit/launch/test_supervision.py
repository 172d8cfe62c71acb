"""Supervision with pretended ranks: real processes, signals, locks and shared memory, no engine."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glmspark.errors import GlmsparkError
from glmspark.launch import lock as locks
from glmspark.launch import up
from glmspark.launch.down import Ending, stop
from glmspark.launch.record import Limits, State, home
from glmspark.launch.say import say
from glmspark.launch.status import LOST, look, unfinished
from glmspark.nodes import processes
from tests.unit.launch.starts import (
    assert_nothing_left,
    halt,
    identity,
    launch,
    make_start,
    spoil,
    wait_free,
    wait_state,
    workers,
)


def test_ready_then_down_leaves_nothing() -> None:
    start = make_start("one", "serves", "serves")
    ready = launch(start, key="sk-1")
    where = home("one")
    assert ready.state is State.READY
    assert where.read_key() == "sk-1"
    assert [(verdict.name, verdict.passed) for verdict in ready.verdicts] == [("ranks", True)]
    assert ready.verdicts[0].evidence == "2 ranks: Worker_TP0, Worker_TP1"
    assert [rank.phase for rank in ready.ranks] == ["serving", "following rank 0"]
    status = look(where, sample=0.01)
    assert status is not None
    assert (status.state, status.exit_code) == ("ready", 0)
    assert all(rank.alive and rank.memory > 0 for rank in status.ranks)
    pids = [rank.process.pid for rank in ready.ranks if rank.process] + [workers(where, 0), workers(where, 1)]

    begin = time.monotonic()
    assert stop(where).ending is Ending.STOPPED
    assert time.monotonic() - begin < 15
    assert_nothing_left(start, *pids)
    assert where.read_key() is None  # it goes with what asked for it
    assert wait_state(where, State.STOPPED).reason is None
    assert stop(where).ending is Ending.NOTHING


def test_ranks_that_ignore_sigterm_are_killed_within_five_seconds() -> None:
    start = make_start("deaf", "stubborn", "stubborn")
    launch(start)
    begin = time.monotonic()
    stop(home("deaf"))
    assert time.monotonic() - begin < 15
    assert_nothing_left(start)


def test_killed_rank_stops_all_and_is_named() -> None:
    start = make_start("killed", "serves", "serves")
    ready = launch(start)
    assert ready.ranks[1].process is not None
    os.kill(ready.ranks[1].process.pid, signal.SIGKILL)
    ended = wait_state(home("killed"), State.FAILED)
    assert ended.reason is not None
    assert (ended.reason.rank, ended.reason.signal) == (1, "SIGKILL")
    assert f"rank 1 (pid {ready.ranks[1].process.pid}) was killed by SIGKILL" == ended.reason.what
    assert ended.reason.symptom == "killed-from-outside"
    assert_nothing_left(start)
    status = look(home("killed"))
    assert status is not None
    assert (status.state, status.exit_code) == ("failed", 1)


def test_killed_worker_stops_all_and_its_rank_is_named() -> None:
    start = make_start("worker", "serves", "serves")
    launch(start)
    os.kill(workers(home("worker"), 1), signal.SIGKILL)
    ended = wait_state(home("worker"), State.FAILED)
    assert ended.reason is not None
    assert ended.reason.rank == 1
    assert "Worker_TP1" in ended.reason.what
    assert_nothing_left(start)


def test_a_rank_that_breaks_while_it_starts_is_named_with_its_first_error() -> None:
    start = make_start("broken", "serves", "breaks")
    with pytest.raises(up.StartError) as caught:
        launch(start)
    reason = caught.value.deployment.reason
    assert reason is not None
    assert (reason.rank, reason.exit_code) == (1, 1)
    assert caught.value.seen is not None
    assert caught.value.seen.startswith("ValueError: the weights of layer 3 are missing\n  at File ")
    assert_nothing_left(start)


@pytest.mark.parametrize(
    ("behaviour", "limits", "said"),
    [
        ("joins forever", Limits(start=60, join=1, prove=9), "the ranks did not find one another within 1 s"),
        ("loads forever", Limits(start=2, join=60, prove=9), r"not serving within 2 s: rank \d is still"),
    ],
)
def test_a_start_that_takes_too_long_is_stopped(behaviour: str, limits: Limits, said: str) -> None:
    start = make_start("slow", behaviour, behaviour, limits=limits)
    with pytest.raises(up.StartError, match=said):
        launch(start)
    assert_nothing_left(start)


def test_a_rank_that_cannot_start_is_an_error() -> None:
    start = make_start("nothing", "serves")
    start.ranks[0].argv[0] = "/no/such/python"
    with pytest.raises(up.StartError, match="cannot start /no/such/python: No such file or directory"):
        launch(start)
    wait_free(home("nothing"))
    assert not Path(start.scratch).exists()


def test_a_scratch_directory_that_is_there_already_is_not_used(state: Path) -> None:
    start = make_start("squat", "serves")
    link = Path(start.scratch)
    link.symlink_to(state)
    try:
        with pytest.raises(up.StartError, match=r"cannot make .*: File exists"):
            launch(start)
        wait_free(home("squat"))
        assert link.is_symlink()
        assert state.is_dir()
    finally:
        link.unlink()


def test_killed_supervisor_takes_its_ranks_along() -> None:
    start = make_start("orphans", "serves", "stubborn")
    ready = launch(start, key="sk-2")
    where = home("orphans")
    pids = [rank.process.pid for rank in ready.ranks if rank.process] + [workers(where, 0), workers(where, 1)]
    assert ready.supervisor is not None
    os.kill(ready.supervisor.pid, signal.SIGKILL)
    ended = wait_state(where, State.FAILED)
    assert ended.reason is not None
    assert ended.reason.what == "the supervisor ended unexpectedly"
    assert where.read_key() is None
    assert_nothing_left(start, *pids)


def test_supervisor_and_reaper_killed_at_once_are_cleaned_up_after() -> None:
    start = make_start("double", "serves", "serves")
    ready = launch(start)
    where = home("double")
    assert ready.supervisor is not None
    reaper = _children(ready.supervisor.pid) - {rank.process.pid for rank in ready.ranks if rank.process}
    assert len(reaper) == 1
    os.kill(reaper.pop(), signal.SIGSTOP)  # so that it cannot act before it is killed too
    worker = workers(where, 0)
    reaper = _children(ready.supervisor.pid) - {rank.process.pid for rank in ready.ranks if rank.process}
    os.kill(ready.supervisor.pid, signal.SIGKILL)
    os.kill(reaper.pop(), signal.SIGKILL)
    wait_free(where)
    identity(worker)  # the kernel took the ranks along, their workers still live
    status = look(where)
    assert status is not None
    assert (status.state, status.exit_code) == (LOST, 1)
    assert unfinished(where)

    stopped = stop(where)
    assert stopped.ending is Ending.CLEANED
    assert_nothing_left(start, worker)
    ended = wait_state(where, State.FAILED)
    assert ended.reason is not None
    assert "left behind" in ended.reason.what


def test_a_killed_reaper_is_replaced() -> None:
    start = make_start("reaper", "serves", "serves")
    ready = launch(start)
    assert ready.supervisor is not None
    ranks = {rank.process.pid for rank in ready.ranks if rank.process}
    (first,) = _children(ready.supervisor.pid) - ranks
    os.kill(first, signal.SIGKILL)
    end = time.monotonic() + 60
    while not (second := _children(ready.supervisor.pid) - ranks - {first}):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(ready.supervisor.pid, signal.SIGKILL)
    wait_state(home("reaper"), State.FAILED)
    assert len(second) == 1
    assert_nothing_left(start)


def test_a_damaged_record_is_set_aside_and_its_processes_are_stopped() -> None:
    start = make_start("damaged", "serves", "serves")
    ready = launch(start)
    where = home("damaged")
    assert ready.supervisor is not None
    reaper = _children(ready.supervisor.pid) - {rank.process.pid for rank in ready.ranks if rank.process}
    os.kill(reaper.pop(), signal.SIGKILL)
    os.kill(ready.supervisor.pid, signal.SIGKILL)
    wait_free(where)
    spoil(where.record_file, '{"version": 1, "id"')
    with pytest.raises(GlmsparkError, match="not valid JSON"):
        look(where)
    assert stop(where).ending is Ending.CLEANED
    assert not where.record_file.exists()
    assert (where.path / "deployment.json.damaged").exists()
    assert_nothing_left(start)


def test_up_that_is_killed_takes_an_unfinished_start_along(state: Path) -> None:
    start = make_start("leash", "loads forever", "loads forever")
    where = home("leash")
    code = (
        "import sys; from glmspark.launch.record import Deployment;"
        "from tests.unit.launch.starts import launch;"
        "launch(Deployment.model_validate_json(sys.argv[1]))"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, start.model_dump_json()])
    deployment = wait_state(where, State.STARTING)
    while (
        deployment.ranks[1].phase != "loading weights"
        and deployment.ranks[1].phase != "building the KV cache"
    ):
        deployment = wait_state(where, State.STARTING)
    starter.kill()
    starter.wait()
    ended = wait_state(where, State.FAILED)
    assert ended.reason is not None
    assert ended.reason.what == "`glmspark up` ended before the deployment was ready"
    assert_nothing_left(start)


def test_interrupt_during_start_stops_everything(state: Path) -> None:
    start = make_start("interrupt", "loads forever", "loads forever")
    where = home("interrupt")

    def interrupt(deployment: object, verdicts: object) -> None:
        if (record := where.read()) and record.ranks[0].phase == "building the KV cache":
            raise KeyboardInterrupt

    lock = locks.take(where.lock_file)
    assert lock is not None
    with lock:
        up.write_start(where, start, None)
        supervisor, leash = up.spawn(where, lock)
    with pytest.raises(up.CancelledError) as caught:
        up.follow(where, supervisor, leash, interrupt)
    assert caught.value.exit_code == 130
    assert_nothing_left(start)
    assert wait_state(where, State.STOPPED).reason is None


def test_a_full_disk_for_the_record_is_tried_again(state: Path) -> None:
    start = make_start("full", "serves", "serves")
    launch(start)
    where = home("full")
    where.path.chmod(0o500)
    try:
        if os.geteuid() == 0:  # root writes anyway: make the record a directory, which no file replaces
            where.record_file.rename(where.path / "aside")
            where.record_file.mkdir()
        os.kill(workers(where, 1), signal.SIGKILL)
        end = time.monotonic() + 60
        while "cannot write the record" not in where.supervisor_log.read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        where.path.chmod(0o700)
        if where.record_file.is_dir():
            where.record_file.rmdir()
    ended = wait_state(where, State.FAILED)
    assert ended.reason is not None
    assert ended.reason.rank == 1
    assert_nothing_left(start)


def test_a_log_that_takes_no_line_ends_nothing(state: Path) -> None:
    """A limit on the supervisor's files stands in for a full disk: neither record nor log can be written."""
    start = make_start("mute", "serves", "serves")
    ready = launch(start)
    assert ready.supervisor is not None
    unlimited = resource.prlimit(ready.supervisor.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    os.kill(workers(home("mute"), 1), signal.SIGKILL)
    end = time.monotonic() + 60
    while Path(start.scratch).exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    resource.prlimit(ready.supervisor.pid, resource.RLIMIT_FSIZE, unlimited)
    ended = wait_state(home("mute"), State.FAILED)
    assert ended.reason is not None
    assert ended.reason.rank == 1, ended.reason.what
    assert_nothing_left(start)


def test_a_line_that_cannot_be_written_is_lost_and_no_more(capfd: pytest.CaptureFixture[str]) -> None:
    say("heard")
    assert capfd.readouterr().err == "heard\n"
    before = os.dup(2)
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), 2)
    try:
        say("lost")
    finally:
        os.dup2(before, 2)
        os.close(before)


def test_a_halted_rank_is_not_ready_and_all_goes_on_without_the_starter() -> None:
    launch(make_start("halted", "serves", "serves"))
    where = home("halted")
    worker = halt(workers(where, 1))
    status = look(where, sample=0.01)
    assert status is not None
    assert (status.state, status.exit_code) == ("ready", 1)
    assert [rank.stopped for rank in status.ranks] == [[], [f"Worker_TP1 (pid {worker.pid})"]]
    processes.send(worker, signal.SIGCONT)
    time.sleep(1.5)
    status = look(where, sample=0.01)
    assert status is not None
    assert (status.exit_code, status.answers) == (0, True)


def test_a_clock_that_was_set_back_gives_no_negative_uptime() -> None:
    start = make_start("clock", "serves")
    where = home("clock")
    start.turn(State.READY, at=time.time() + 3600)
    lock = locks.take(where.lock_file)
    assert lock is not None
    with lock:
        where.write(start)
        status = look(where, sample=0.01)
    assert status is not None
    assert status.uptime == 0
    where.record_file.unlink()


def _children(pid: int) -> set[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {int(word) for word in text.split()}
