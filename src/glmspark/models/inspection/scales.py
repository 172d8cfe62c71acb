"""The few small scale tensors, read for what their values give away."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from glmspark.models.errors import CheckpointError
from glmspark.models.files import CheckpointFiles, Span
from glmspark.models.inspection.content import Content
from glmspark.models.inspection.matrices import Matrices
from glmspark.models.inspection.problem import Problem, Severity, some

__all__ = ["check_scales", "coalesce"]

_SECOND = ("weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale")
_TOGETHER = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
_TOGETHER |= {"q_a_proj": "fused_qkv_a_proj", "kv_a_proj_with_mqa": "fused_qkv_a_proj"}
"""What vLLM runs as one matrix, with one global scale."""
_GAP = 512
"""Bytes read in vain between two scales at most: a reader over a network joins more by itself."""


def check_scales(files: CheckpointFiles, content: Content, matrices: Matrices) -> Iterator[Problem]:
    """Problems of the per-matrix scales of NVFP4: unusable ones, and pairs that must be equal and are not."""
    wanted: dict[str, list[str]] = defaultdict(list)
    for matrix in matrices.stored.values():
        for part in _SECOND:
            info = matrix.parts.get(part)
            if info is not None and info.dtype == "F32" and info.elements == 1:
                name = f"{matrix.module}.{part}"
                wanted[content.tensors[name][0]].append(name)
    values: dict[str, float] = {}
    for shard, names in wanted.items():
        try:
            values |= _read(files, content, shard, names)
        except CheckpointError as error:
            yield Problem(
                Severity.ERROR, "scales-unreadable", error.message,
                "the engine stops while loading", error.next or f"fetch {shard} again", shard,
            )  # fmt: skip
    bad = sorted(name for name, value in values.items() if not math.isfinite(value) or value <= 0)
    if bad:
        yield Problem(
            Severity.ERROR, "scale-impossible",
            f"{len(bad)} scales are zero, negative or not numbers, e.g. {values[bad[0]]}",
            "those matrices answer nothing or NaN: '!!!!' or empty text",
            "fetch the shards again; if they came so, the checkpoint is broken",
            some(bad),
        )  # fmt: skip
    yield from _pairs(values)


def _pairs(values: Mapping[str, float]) -> Iterator[Problem]:
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for name, value in values.items():
        module, _, part = name.rpartition(".")
        parent, _, last = module.rpartition(".")
        if last in _TOGETHER and part in ("weight_scale_2", "weight_global_scale"):
            groups[parent, _TOGETHER[last], part].append(value)
    pairs = {key: found for key, found in groups.items() if len(found) > 1}
    differing = {key: found for key, found in pairs.items() if len(set(found)) > 1}
    if not differing:
        return
    worst = max(differing.values(), key=lambda found: max(found) / min(found) if min(found) > 0 else 0)
    ratio = max(worst) / min(worst) if min(worst) > 0 else math.inf
    names = sorted(f"{parent}.{joined}" for parent, joined, _ in differing)
    yield Problem(
        Severity.ERROR, "joined-scales-differ",
        f"{len(differing)} of {len(pairs)} pairs of matrices that run as one have global scales of their "
        f"own, apart by up to {ratio:.3g} times",
        "vLLM takes one scale for both: one half of each is scaled wrongly, and text degenerates "
        "(https://github.com/vllm-project/vllm/issues/54150)",
        "use a checkpoint with shared gate/up scales (RedHatAI's or nvidia's), or requantize",
        some(names),
    )  # fmt: skip


def _read(files: CheckpointFiles, content: Content, shard: str, names: Sequence[str]) -> dict[str, float]:
    data = content.shards[shard].data
    places = sorted((data + content.tensors[name][1].begin, name) for name in names)
    if places and places[-1][0] + 4 > content.shards[shard].size:
        raise CheckpointError(f"{shard} is truncated before its scales", next=f"fetch {shard} again")
    spans = coalesce([(begin, begin + 4) for begin, _ in places])
    read = files.read(shard, spans)
    values: dict[str, float] = {}
    at = 0
    for begin, name in places:
        while begin >= spans[at][1]:
            at += 1
        (values[name],) = struct.unpack_from("<f", read[at], begin - spans[at][0])
    return values


def coalesce(spans: Sequence[Span], gap: int = _GAP) -> list[Span]:
    """Sorted spans joined where less than `gap` bytes lie between them, so that few reads fetch them all."""
    found: list[Span] = []
    for begin, end in spans:
        if found and begin - found[-1][1] < gap:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
