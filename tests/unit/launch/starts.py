"""Starts of pretended ranks, for tests of what supervises them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from glmspark.launch import lock as locks
from glmspark.launch import up
from glmspark.launch.command import free_port
from glmspark.launch.record import (
    Deployment,
    Endpoint,
    Home,
    Limits,
    RankRecord,
    State,
    Verdict,
    home,
    new_id,
    scratch_of,
)
from glmspark.launch.sweep import HOME_VARIABLE, ID_VARIABLE
from glmspark.nodes import processes
from glmspark.nodes.processes import Identity

PRETEND = Path(__file__).with_name("pretend_rank.py")

RECIPE = {
    "recipe": 1,
    "name": "pretend",
    "model": {"source": "path:/m", "served_name": "m"},
    "engine": {
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory": 1 << 28,
    },
    "canaries": [{"probe": "ranks"}],
}


def make_start(name: str, *behaviours: str, limits: Limits | None = None, keep: bool = False) -> Deployment:
    """The record of a start with one pretended rank for each behaviour. The state directory is the test's."""
    where, deployment_id, port = home(name), new_id(), free_port("127.0.0.1")
    env = {ID_VARIABLE: deployment_id, HOME_VARIABLE: str(where.path), "PYTHONUNBUFFERED": "1"}
    return Deployment(
        id=deployment_id,
        name=name,
        boot_id=processes.boot_id(),
        created=time.time(),
        since=time.time(),
        keep=keep,
        recipe=RECIPE,
        plan={"tp": len(behaviours), "pp": 1},
        endpoint=Endpoint(host="127.0.0.1", port=port, url=f"http://127.0.0.1:{port}/v1", model="m"),
        limits=limits or Limits(start=60, join=60, prove=60),
        scratch=str(scratch_of(where.path)),
        ranks=[
            RankRecord(
                rank=rank,
                node="here",
                argv=[sys.executable, "-S", str(PRETEND), str(rank), behaviour, str(port)],
                env=env,
                log=str(where.rank_log(rank)),
            )
            for rank, behaviour in enumerate(behaviours)
        ],
    )


def launch(deployment: Deployment, key: str | None = None) -> Deployment:
    """Start it and wait until it is ready; raises what `up.follow` raises."""
    where = home(deployment.name)
    lock = locks.take(where.lock_file)
    assert lock is not None
    with lock:
        up.write_start(where, deployment, key)
        supervisor, leash = up.spawn(where, lock)
    return up.follow(where, supervisor, leash, observe)


def observe(deployment: Deployment, verdicts: list[Verdict]) -> None:
    """Watch without a word."""


def wait_state(where: Home, *states: State, seconds: float = 60.0) -> Deployment:
    """Wait until the record says one of the states."""
    end = time.monotonic() + seconds
    while True:
        deployment = where.read()
        if deployment is not None and deployment.state in states:
            return deployment
        assert time.monotonic() < end, f"still {deployment and deployment.state}"
        time.sleep(0.05)


def wait_free(where: Home, seconds: float = 60.0) -> None:
    """Wait until nobody answers for the deployment any more."""
    lock = locks.take(where.lock_file, wait=seconds)
    assert lock is not None, "the lock is still held"
    lock.release()


def workers(where: Home, rank: int) -> int:
    """The pid of a pretended rank's worker, from its log."""
    for line in where.rank_log(rank).read_text().splitlines():
        if line.startswith("worker "):
            return int(line.split()[1])
    raise AssertionError("no worker yet")


def segments(where: Home) -> list[Path]:
    """The shared memory files the pretended ranks made."""
    lines = [line for log in sorted(where.logs.glob("rank-*.log")) for line in log.read_text().splitlines()]
    return [Path("/dev/shm") / line.split()[1] for line in lines if line.startswith("segment ")]


def assert_nothing_left(deployment: Deployment, *pids: int) -> None:
    """No process, no shared memory, no scratch directory of a deployment is left, and no lock."""
    where = home(deployment.name)
    wait_free(where)
    assert processes.marked(HOME_VARIABLE, str(where.path)) == []
    assert [pid for pid in pids if processes.identify(pid) is not None] == []
    assert segments(where), "the pretended ranks made none: the test shows nothing"
    assert [path for path in segments(where) if path.exists()] == []
    assert not Path(deployment.scratch).exists()


def identity(pid: int) -> Identity:
    """The identity of a living process."""
    found = processes.identify(pid)
    assert found is not None
    return found


def halt(pid: int) -> Identity:
    """Stop a process with SIGSTOP and wait until it stands: the signal takes a moment."""
    found = identity(pid)
    processes.send(found, signal.SIGSTOP)
    end = time.monotonic() + 60
    while (stat := processes.read_stat(pid)) is None or stat.state != "T":
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def spoil(path: Path, text: str) -> None:
    """Overwrite a file in place."""
    path.write_text(text)
    os.utime(path)
