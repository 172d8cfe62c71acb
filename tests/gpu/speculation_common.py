"""What the cases of tests/gpu/speculation_cuda.py share: what a case is, whose turn it is, and counters."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 8


@dataclass(frozen=True)
class Case:
    """function(case, work) gives a row: `ok`, `note`, and `tokens` where it generates. needs: the case that
    must have run before. same_as: the case whose tokens must be these. `work` is common to all cases. asked:
    whether it runs only where it is named."""

    function: Callable[[Case, Path], dict[str, Any]]
    env: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    needs: str = ""
    same_as: str = ""
    asked: bool = False


@contextlib.contextmanager
def turn(work: Path, *, alone: bool = False) -> Iterator[None]:
    """While others compute too; or alone, so that times are the GPU's own."""
    with (work / "turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def drafting(work: Path, **more: Any) -> dict[str, Any]:
    return {
        "method": "dspark",
        "model": str(work / more.pop("drafter", "drafter")),
        "num_speculative_tokens": BLOCK,
        **more,
    }


class Counts:
    """vLLM's own counters of drafts, as differences since it was made."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.before = engine, self._read(engine)

    @staticmethod
    def _read(engine: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for metric in engine.get_metrics():
            if "spec_decode_num" in metric.name:
                name = metric.name.rpartition("_num_")[2]
                found[name] = list(metric.values) if hasattr(metric, "values") else metric.value
        return found

    def look(self) -> tuple[int, int, list[float]]:
        """(steps with drafts, tokens accepted, share accepted by place)."""
        now = self._read(self.engine)
        steps = now.get("drafts", 0) - self.before.get("drafts", 0)
        accepted = now.get("accepted_tokens", 0) - self.before.get("accepted_tokens", 0)
        was = self.before.get("accepted_tokens_per_pos") or [0] * BLOCK
        places = [
            (a - b) / max(1, steps) for a, b in zip(now.get("accepted_tokens_per_pos", []), was, strict=False)
        ]
        return steps, accepted, places
