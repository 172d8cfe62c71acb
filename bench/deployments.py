"""glm-tiny on this machine's CPU under each executor, for side-by-side measurements."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import glmspark
from tests.engine.lockstep_ranks import LockstepRanks
from tests.engine.ranks import Layout, Ranks

CHECKPOINT = Path(glmspark.__file__).parent / "recipes" / "checkpoints" / "glm-tiny"


@dataclass
class OneNode(Ranks):
    """vLLM's own form on one machine: one command, all workers below it, over shared memory."""

    def command(self, rank: int) -> list[str]:
        """`vllm serve -tp N`; there is no second command."""
        words = super().command(rank)
        if "--nnodes" in words:
            place = words.index("--nnodes")
            words[place : place + 8] = ["--distributed-executor-backend", "mp"]
        return words

    def start(self) -> None:
        """Start the one command, with every rank's cores."""
        cores = sorted(os.sched_getaffinity(0))
        mine = "|".join(str(cores[rank % len(cores)]) for rank in range(self.layout.world))
        self.environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", mine)
        self.start_rank(0)


EXECUTORS: dict[str, type[Ranks]] = {"mp": OneNode, "mp-nodes": Ranks, "lockstep": LockstepRanks}
"""mp: vLLM on one machine. mp-nodes: the same as for several machines (--nnodes). lockstep: ours."""


@contextmanager
def serving(executor: str, layout: Layout, flags: dict[str, str] | None = None) -> Iterator[Ranks]:
    """The layout, answering; its logs are kept for as long as it runs."""
    with tempfile.TemporaryDirectory(prefix="glmspark-bench-") as logs:
        ranks = EXECUTORS[executor](CHECKPOINT, layout, Path(logs), flags=dict(flags or {}))
        with ranks:
            shared = ranks.shared_memory()
            yield ranks
        for path in shared:  # vLLM's CPU communicator leaves its names behind
            path.unlink(missing_ok=True)
