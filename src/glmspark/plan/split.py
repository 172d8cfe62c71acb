"""Which TP and PP a model can be split by, and which rank then holds what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glmspark.models.architecture import Architecture
from glmspark.plan.errors import PlanError

__all__ = ["Place", "check_layout", "check_stages", "layer_ranges", "padded_vocab", "places", "valid_tps"]

_VOCAB_PAD = 64
_MAX_TP = 1024


@dataclass(frozen=True)
class Place:
    """Where a rank stands: TP is the inner dimension, as in vLLM's process groups. layers: [start, end)."""

    rank: int
    tp_rank: int
    pp_rank: int
    layers: tuple[int, int]
    first_stage: bool
    last_stage: bool


def padded_vocab(vocab_size: int) -> int:
    """Rows of the embedding as vLLM holds it: the vocabulary rounded up to a multiple of 64
    (`vllm.model_executor.layers.vocab_parallel_embedding.pad_vocab_size`)."""
    return -(-vocab_size // _VOCAB_PAD) * _VOCAB_PAD


def _divided(architecture: Architecture) -> dict[str, int]:
    """What tensor parallelism has to divide, by the name people know it under."""
    shared = architecture.shared_experts * architecture.moe_intermediate_size
    moe = any(layer.moe for layer in architecture.layers)
    dense = any(not layer.moe for layer in architecture.layers)
    sizes = {
        "attention heads": architecture.heads,
        "padded vocabulary": padded_vocab(architecture.vocab_size),
    }
    if moe:
        sizes["routed expert width"] = architecture.moe_intermediate_size
    if moe and shared:
        sizes["shared expert width"] = shared
    if dense:
        sizes["dense MLP width"] = architecture.intermediate_size
    return sizes


def valid_tps(architecture: Architecture) -> tuple[int, ...]:
    """Every TP that divides all that has to be divided."""
    sizes = _divided(architecture).values()
    return tuple(
        tp for tp in range(1, min(architecture.heads, _MAX_TP) + 1) if all(size % tp == 0 for size in sizes)
    )


def check_layout(architecture: Architecture, tp: int, pp: int) -> None:
    """Raises PlanError unless the model can be split tp ways within layers and pp ways between them."""
    valid = valid_tps(architecture)
    if tp not in valid:
        failed = [f"{size} {name}" for name, size in _divided(architecture).items() if tp > 0 and size % tp]
        why = f"does not divide {failed[0]}" if failed else "is not possible"
        raise PlanError(
            f"TP {tp} {why}; TP {_listed(valid)} {'does' if len(valid) == 1 else 'do'}",
            step="plan the layout",
            next=f"choose --tp from {_listed(valid)}",
        )
    count = len(architecture.layers)
    if not 1 <= pp <= count:
        raise PlanError(
            f"PP {pp} is not possible with {count} layers; PP 1 to {count} are",
            step="plan the layout",
            next=f"choose --pp from 1 to {count}",
        )


def layer_ranges(layers: int, pp: int) -> tuple[tuple[int, int], ...]:
    """The layers [start, end) of each stage, as vLLM splits them.

    An even share each; what remains goes one by one to the stages before the last, from the back, so that
    the last stage, which has the lm_head, and then the first are spared
    (`vllm.distributed.utils.get_pp_indices`).
    """
    shares = [layers // pp] * pp
    for i in range(layers % pp):
        shares[-2 - i] += 1
    ranges, start = [], 0
    for share in shares:
        ranges.append((start, start + share))
        start += share
    return tuple(ranges)


def places(layers: int, tp: int, pp: int) -> tuple[Place, ...]:
    """All ranks in order."""
    ranges = layer_ranges(layers, pp)
    return tuple(
        Place(
            rank=rank,
            tp_rank=rank % tp,
            pp_rank=rank // tp,
            layers=ranges[rank // tp],
            first_stage=rank < tp,
            last_stage=rank >= tp * (pp - 1),
        )
        for rank in range(tp * pp)
    )


def check_stages(architecture: Architecture, where: Sequence[Place]) -> None:
    """Raises PlanError for a stage that begins with a layer without its own indexer: it reads what the last
    full layer chose, which another stage has."""
    for place in where:
        start = place.layers[0]
        if start and architecture.layers[start].indexer == "shared":
            full = [layer.index for layer in architecture.indexed_layers]
            before = max((index for index in full if index < start), default=0)
            pp = 1 + where[-1].pp_rank
            good = [n for n in range(1, 9) if _stages_fit(architecture, n)]
            raise PlanError(
                f"PP {pp}: stage {place.pp_rank} would begin with layer {start}, which has no indexer of its "
                f"own: it uses what layer {before} chose",
                step="plan the layout",
                next=f"choose --pp from {', '.join(map(str, good))}, or set engine.dense_attention if meant",
            )


def _stages_fit(architecture: Architecture, pp: int) -> bool:
    if pp > len(architecture.layers):
        return False
    starts = [place.layers[0] for place in places(len(architecture.layers), 1, pp)]
    return all(architecture.layers[start].indexer != "shared" for start in starts)


def _listed(numbers: tuple[int, ...]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    shown = numbers if len(numbers) <= 12 else numbers[:12]
    if len(shown) < len(numbers):
        return ", ".join(map(str, shown)) + ", ..."
    return ", ".join(map(str, shown[:-1])) + f" and {shown[-1]}"
