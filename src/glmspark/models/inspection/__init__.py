"""A checkpoint looked into: what it is, what it holds, what it weighs, and all that is wrong with it.

`inspect_checkpoint` stops at the first fault, as a start must; `inspect` goes on and says them all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from glmspark.models.architecture import Architecture
from glmspark.models.errors import CheckpointError
from glmspark.models.families import known_architecture
from glmspark.models.files import CheckpointFiles
from glmspark.models.inspection.complete import REAP_PLAN, check_complete, read_kept
from glmspark.models.inspection.content import Content, read_content, read_json
from glmspark.models.inspection.matrices import Matrices, Matrix, sort_tensors
from glmspark.models.inspection.problem import Problem, Severity
from glmspark.models.inspection.quantization import check_quantization
from glmspark.models.inspection.scales import check_scales
from glmspark.models.inspection.tokenizer import check_tokenizer_files

__all__ = ["Inspection", "Problem", "Severity", "Share", "inspect"]

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


@dataclass(frozen=True)
class Share:
    """What one class of weights amounts to. schemes: bytes by the way they are stored."""

    parameters: int
    nbytes: int
    matrices: int
    schemes: Mapping[str, int]


@dataclass(frozen=True)
class Inspection:
    """kept: experts left a layer by pruning, where a plan says so."""

    where: str
    architecture: Architecture
    content: Content = field(repr=False)
    matrices: Matrices = field(repr=False)
    kept: Mapping[int, tuple[int, ...]] | None
    problems: tuple[Problem, ...]

    @property
    def parameters(self) -> int:
        """Parameters of all stored matrices, unpacked."""
        return sum(share.parameters for share in self.classes.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(info.nbytes for _, info in self.content.tensors.values())

    @cached_property
    def classes(self) -> dict[str, Share]:
        """By class, as Architecture.parameters has them; "mtp" is all of the MTP layers."""
        parameters: Counter[str] = Counter()
        count: Counter[str] = Counter()
        schemes: dict[str, Counter[str]] = defaultdict(Counter)
        for matrix in self.matrices.stored.values():
            kind = class_of(matrix)
            parameters[kind] += parameters_of(matrix)
            count[kind] += 1
            schemes[kind][matrix.scheme.label] += matrix.nbytes
        return {
            kind: Share(parameters[kind], sum(schemes[kind].values()), count[kind], dict(schemes[kind]))
            for kind in sorted(count, key=lambda one: -sum(schemes[one].values()))
        }

    @property
    def mtp_stored(self) -> bool:
        """Whether any weight of the MTP layers is there."""
        return "mtp" in self.classes

    def worst(self) -> Severity | None:
        """The highest severity among the problems."""
        return min((problem.severity for problem in self.problems), key=_ORDER.index, default=None)


def class_of(matrix: Matrix) -> str:
    """The class a stored matrix is counted in."""
    layer = matrix.spec.layer
    return "mtp" if layer is not None and layer.mtp else matrix.spec.kind


def parameters_of(matrix: Matrix) -> int:
    """Parameters that a stored matrix stands for."""
    if not matrix.scheme.quantized:
        return sum(info.elements for info in matrix.parts.values())
    return prod(matrix.spec.shape)


def inspect(files: CheckpointFiles) -> Inspection:
    """Look into a checkpoint: config, index, headers, and the per-matrix scales.

    Raises CheckpointError where there is no config.json of a known architecture; everything else that is
    wrong is one of the problems.
    """
    content = read_content(files)
    architecture = known_architecture(content.config, "config.json")
    matrices = sort_tensors(architecture, content.tensors)
    problems = list(content.problems)
    kept = _kept(files, problems)
    problems += check_complete(content, matrices, kept) if content.part is None else [_part(content.part)]
    problems += check_quantization(content.config, _beside(files, problems), matrices)
    problems += check_scales(files, content, matrices)
    problems += check_tokenizer_files(files, architecture)
    problems.sort(key=lambda problem: _ORDER.index(problem.severity))
    return Inspection(files.where, architecture, content, matrices, kept, tuple(problems))


def _part(part: str) -> Problem:
    return Problem(
        Severity.NOTE, "part-of-a-model", f"the index says that this is {part}, and no more",
        "it serves as one node's share of a deployment of that layout",
        "for all of it, or another layout: `glmspark fetch`",
    )  # fmt: skip


def _kept(files: CheckpointFiles, problems: list[Problem]) -> dict[int, tuple[int, ...]] | None:
    if REAP_PLAN not in files.entries():
        return None
    try:
        return read_kept(read_json(files, REAP_PLAN))
    except (CheckpointError, ValueError) as error:
        problems.append(
            Problem(
                Severity.WARNING, "reap-plan", f"{REAP_PLAN} cannot be used: {error}",
                "which experts were kept is taken from the tensors' names alone", f"fetch {REAP_PLAN} again",
            )
        )  # fmt: skip
        return None


def _beside(files: CheckpointFiles, problems: list[Problem]) -> dict[str, Any] | None:
    name = "hf_quant_config.json"
    if name not in files.entries():
        return None
    try:
        return read_json(files, name, 16 * 2**20)
    except CheckpointError as error:
        problems.append(
            Problem(
                Severity.WARNING, "quantization-files-differ", error.message,
                "engines that read it stop", f"fetch {name} again", name,
            )
        )  # fmt: skip
        return None
