"""A follower ends with rank 0, and takes its worker with it."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from glmspark.engine.follower import RANK_0_GONE
from tests.engine.ranks import Layout, Ranks, left_behind


@pytest.mark.timeout(330)
def test_killed_rank_0_ends_the_follower(checkpoint: Path, tmp_path: Path) -> None:
    with Ranks(checkpoint, Layout(2, 1), tmp_path) as ranks:
        leader, follower = ranks.processes
        workers = psutil.Process(follower.pid).children(recursive=True)
        assert workers
        shared = ranks.shared_memory()
        assert shared
        head = psutil.Process(leader.pid)
        for process in [*head.children(recursive=True), head]:
            # The tracker unlinks the others' shared memory when they are dead.
            if "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):
                process.kill()
        began = time.monotonic()
        assert follower.wait(20) == RANK_0_GONE, ranks.log(1)[-2000:]
        assert time.monotonic() - began < 10
        assert "rank 0 is gone" in ranks.log(1)
        _, alive = psutil.wait_procs(workers, timeout=5)
        assert not alive
        assert not left_behind(shared)
