"""What a rank is doing, read from the lines vLLM prints. Pure: no clock, no files.

Each phase is known by what vLLM says when it begins. Lines of several processes of one rank are interleaved,
so a rank only ever goes forward; what is not known changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum

FOLLOWING = "following rank 0"
"""What another rank does once rank 0 serves; it prints nothing that says so."""


class Phase(IntEnum):
    """The steps of a start, in order. Only rank 0 goes beyond CACHE."""

    STARTING = 0
    IMPORTING = 1
    CONFIGURING = 2
    ENGINE = 3
    JOINING = 4
    LOADING = 5
    CACHE = 6
    WARMING = 7
    ROUTES = 8
    SERVING = 9

    @property
    def label(self) -> str:
        """What people read."""
        return _LABELS[self]


_LABELS = {
    Phase.STARTING: "starting Python",
    Phase.IMPORTING: "importing vLLM",
    Phase.CONFIGURING: "reading the model's configuration",
    Phase.ENGINE: "starting the engine",
    Phase.JOINING: "joining the group",
    Phase.LOADING: "loading weights",
    Phase.CACHE: "building the KV cache",
    Phase.WARMING: "warming up",
    Phase.ROUTES: "opening the API",
    Phase.SERVING: "serving",
}

# The message part of vLLM's line, after "(Process pid=N) LEVEL MM-DD HH:MM:SS [file.py:123] ". Where versions
# differ, any of several lines will do: the phase is the furthest one seen.
_SIGNS: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    (Phase.CONFIGURING, re.compile(r"\bResolved architecture: ")),
    (Phase.ENGINE, re.compile(r"\bInitializing a V1 LLM engine |\bOpenMP thread binding info\b")),
    (Phase.JOINING, re.compile(r"\bworld_size=\d+ rank=\d+ .*distributed_init_method=")),
    (Phase.JOINING, re.compile(r"\blockstep: (?:waiting for|rank \d+ is looking for) rank ")),
    (Phase.LOADING, re.compile(r"\bStarting to load model |\bLoading safetensors checkpoint shards: ")),
    (Phase.CACHE, re.compile(r"\bLoading weights took |\bModel loading took |\bfor KV cache\b")),
    (Phase.WARMING, re.compile(r"\bKV cache size: [\d,]+ tokens|\bCapturing CUDA graphs")),
    (Phase.ROUTES, re.compile(r"\bStarting vLLM server on |\bStarted server process ")),
    (Phase.SERVING, re.compile(r"\bApplication startup complete\b")),
)
_SHARDS = re.compile(r"Loading safetensors checkpoint shards:\s+(\d+)% Completed \| (\d+)/(\d+)")
_KV = re.compile(r"KV cache size: ([\d,]+) tokens")


@dataclass(frozen=True)
class Progress:
    """How far one rank is. detail: what more is known ('3/8 shards'), '' for nothing."""

    phase: Phase = Phase.STARTING
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.phase.label}, {self.detail}" if self.detail else self.phase.label


def advance(progress: Progress, line: str) -> Progress:
    """The progress after one more line of the rank's output; the same object where it tells nothing new."""
    if not line.strip():
        return progress
    phase = max((phase for phase, sign in _SIGNS if sign.search(line)), default=Phase.IMPORTING)
    if phase > progress.phase:
        progress = Progress(phase)
    if progress.phase is Phase.LOADING and (shards := _SHARDS.search(line)):
        progress = replace(progress, detail=f"{shards[2]} of {shards[3]} shards")
    elif progress.phase is Phase.WARMING and (tokens := _KV.search(line)):
        progress = replace(progress, detail=f"room for {tokens[1]} tokens")
    return progress
