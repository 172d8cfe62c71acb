"""Which stored tensors each rank reads, and how many of their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glmspark.errors import UsageError
from glmspark.models.inspection import Inspection
from glmspark.models.inspection.matrices import Matrix
from glmspark.plan.split import check_layout, layer_ranges

__all__ = ["Holding", "expert_places", "holdings", "needed_tensors", "on_stage", "tensor_name"]


@dataclass(frozen=True)
class Holding:
    """What one rank holds. layers: [first, end) of the trunk. tensors: that it reads any part of. nbytes: of
    the parts it keeps, as stored. shards: files that hold any of them, and their bytes."""

    rank: int
    tp_rank: int
    pp_rank: int
    layers: tuple[int, int]
    tensors: int
    nbytes: int
    shards: int
    shard_bytes: int


def on_stage(
    matrix: Matrix, stage: int, stages: int, ranges: tuple[tuple[int, int], ...], *, mtp: bool
) -> bool:
    """Whether a pipeline stage needs a matrix. Embedding and vision tower are the first's; head, final norm
    and MTP layers the last's, which for MTP or tied embeddings needs the embedding too."""
    layer, last = matrix.spec.layer, stage == stages - 1
    if layer is None:
        if matrix.spec.kind == "vision":
            return stage == 0
        if matrix.spec.kind == "embedding":
            return stage == 0 or (last and mtp)
        return last
    if layer.mtp:
        return last and mtp
    begin, end = ranges[stage]
    return begin <= layer.index < end


def needed_tensors(found: Inspection, stage: int, stages: int, *, mtp: bool = True) -> set[str]:
    """Names of the stored tensors that a pipeline stage reads."""
    ranges = layer_ranges(len(found.architecture.layers), stages)
    mtp = (mtp and found.mtp_stored) or found.architecture.tied_embeddings
    return {
        tensor_name(matrix, part)
        for matrix in found.matrices.stored.values()
        if on_stage(matrix, stage, stages, ranges, mtp=mtp)
        for part in matrix.parts
    }


def tensor_name(matrix: Matrix, part: str) -> str:
    """The name a part has in the checkpoint."""
    return matrix.module if _by_itself(matrix) else f"{matrix.module}.{part}"


def _by_itself(matrix: Matrix) -> bool:
    """Whether it has its own name in the checkpoint, as a bias or A_log has."""
    own = matrix.spec.name.replace("{expert}", str(matrix.expert))
    return own == matrix.module or (matrix.expert is None and matrix.spec.experts > 1)


def holdings(
    found: Inspection, *, tp: int = 1, pp: int = 1, ep: bool = False, mtp: bool = True
) -> list[Holding]:
    """What each rank of a layout reads, rank by rank; TP is the inner dimension.

    ep: routed experts lie whole on the ranks of a TP group, in even runs of their numbers, instead of being
    cut tp ways. Raises PlanError where the model cannot be split so, UsageError where experts do not divide.
    """
    check_layout(found.architecture, tp, pp)
    experts = found.architecture.experts
    if ep and experts % tp:
        raise UsageError(
            f"EP over {tp} ranks does not divide {experts} experts",
            next="choose another --tp, or leave out --ep",
        )
    ranges = layer_ranges(len(found.architecture.layers), pp)
    drafts = (mtp and found.mtp_stored) or found.architecture.tied_embeddings
    order = expert_places(found) if ep else {}
    result: list[Holding] = []
    for stage in range(pp):
        mine = [
            matrix
            for matrix in found.matrices.stored.values()
            if on_stage(matrix, stage, pp, ranges, mtp=drafts)
        ]
        if not ep:  # all ranks of a stage hold as much
            one = _held(found, mine, tp)
            result += [
                replace(one, rank=stage * tp + n, tp_rank=n, pp_rank=stage, layers=ranges[stage])
                for n in range(tp)
            ]
            continue
        common = [matrix for matrix in mine if matrix.expert is None]
        for n in range(tp):
            own = [
                matrix
                for matrix in mine
                if matrix.expert is not None and order.get(matrix.module, -1) * tp // experts == n
            ]
            one = _held(found, common, tp, own)
            result.append(replace(one, rank=stage * tp + n, tp_rank=n, pp_rank=stage, layers=ranges[stage]))
    return result


def _held(found: Inspection, split: Sequence[Matrix], tp: int, whole: Sequence[Matrix] = ()) -> Holding:
    """What a rank holds of matrices that TP splits, or may, and of experts that lie whole on it."""
    tensors = nbytes = 0
    shards: set[str] = set()
    for matrices, ways in ((split, tp), (whole, 1)):
        for matrix in matrices:
            share, by_itself = ways if matrix.spec.tp else 1, _by_itself(matrix)
            tensors += len(matrix.parts)
            for part, info in matrix.parts.items():
                # Scalars (a global scale) lie on every rank.
                nbytes += info.nbytes if info.elements == 1 else info.nbytes // share
                name = matrix.module if by_itself else f"{matrix.module}.{part}"
                shards.add(found.content.tensors[name][0])
    sizes = sum(found.content.shards[shard].size for shard in shards)
    return Holding(0, 0, 0, (0, 0), tensors, nbytes, len(shards), sizes)


def expert_places(found: Inspection) -> dict[str, int]:
    """Each expert matrix's place among its layer's: numbers may have holes after pruning."""
    numbers = {key: sorted(values) for key, values in found.matrices.numbers.items()}
    places = {key: {number: place for place, number in enumerate(values)} for key, values in numbers.items()}
    return {
        matrix.module: places[matrix.spec.layer.index if matrix.spec.layer else -1, matrix.spec.name][
            matrix.expert
        ]
        for matrix in found.matrices.stored.values()
        if matrix.expert is not None
        and matrix.expert
        in places.get((matrix.spec.layer.index if matrix.spec.layer else -1, matrix.spec.name), {})
    }
