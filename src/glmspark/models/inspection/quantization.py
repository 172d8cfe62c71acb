"""Rules about what the quantization config says beside what is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from glmspark.models.errors import CheckpointError
from glmspark.models.inspection.matrices import Matrices, Matrix
from glmspark.models.inspection.patterns import Declared, read_declared
from glmspark.models.inspection.problem import Problem, Severity, some

__all__ = ["check_quantization"]

_PLAIN = ("norm", "embedding", "vision", "hyper_connections", "router")
"""What no format quantizes by a config's default target: no linear layers, or never taken for one."""


def check_quantization(
    config: Mapping[str, Any], beside: Mapping[str, Any] | None, matrices: Matrices
) -> Iterator[Problem]:
    """Contradictions between config.json, hf_quant_config.json (`beside`) and the stored tensors."""
    try:
        declared = read_declared(config, beside)
        yield from _check(declared, matrices)
    except CheckpointError as error:
        yield Problem(
            Severity.ERROR, "quantization-config", error.message,
            "the engine stops, or loads quantized weights as if they were not",
            error.next or "fetch config.json again", "config.json",
        )  # fmt: skip
        return
    if declared is not None and beside is not None:
        yield from _beside(declared, beside)


def _check(declared: Declared | None, matrices: Matrices) -> Iterator[Problem]:
    stored = [
        one for one in matrices.stored.values() if one.scheme.quantized and one.scheme.label != "no weight"
    ]
    if declared is None:
        if stored:
            yield Problem(
                Severity.ERROR, "quantization-undeclared",
                f"{len(stored)} matrices are quantized, and config.json has no quantization_config",
                "packed bytes are loaded as weights: a shape error, or garbage",
                "fetch the config.json that belongs to these weights",
                some([one.module for one in stored]),
            )  # fmt: skip
        return
    yield from _contradictions(declared, matrices)
    yield from _activations(declared, stored)
    for kind, what in (("router", "routers"), ("indexer", "indexers"), ("embedding", "the embedding")):
        if found := [one.module for one in stored if one.spec.kind == kind]:
            yield Problem(
                Severity.WARNING, "quantizes-what-it-should-not",
                f"{what}: {len(found)} matrices are quantized",
                "routing and index choice depend on small differences: quality drops, or the loader refuses",
                "use a checkpoint that leaves router, indexer and embedding as they were",
                some(found),
            )  # fmt: skip


def _contradictions(declared: Declared, matrices: Matrices) -> Iterator[Problem]:
    """Stored quantized and excluded, or stored plain and not excluded. Experts of a layer that are stored
    alike are looked at once."""
    seen: dict[tuple[str, bool], Matrix] = {}
    counts: dict[tuple[str, bool], int] = {}
    for matrix in matrices.stored.values():
        if matrix.spec.kind in _PLAIN and not matrix.scheme.quantized:
            continue
        if len(matrix.spec.shape) != 2 or not matrix.spec.name.endswith(".weight"):
            continue
        key = (matrix.spec.name, matrix.scheme.quantized)
        seen.setdefault(key, matrix)
        counts[key] = counts.get(key, 0) + 1
    excluded = declared.excluded([matrix.module for matrix in seen.values()])
    lost: list[str] = []
    plain: list[str] = []
    for key, matrix in seen.items():
        if matrix.scheme.quantized and matrix.module in excluded:
            lost += [matrix.module] * counts[key]
        elif not matrix.scheme.quantized and matrix.module not in excluded:
            plain += [matrix.module] * counts[key]
    if lost:
        yield Problem(
            Severity.ERROR, "excludes-quantized",
            f"config.json excludes {len(lost)} matrices from quantization that are stored quantized",
            "packed bytes are loaded as weights: a shape error, or garbage",
            "take them out of the exclusions in quantization_config (ignore, exclude_modules)",
            some(list(dict.fromkeys(lost))),
        )  # fmt: skip
    # vLLM makes no linear layer of eh_proj's copies and such; what is left plain beyond that is an error.
    if plain:
        yield Problem(
            Severity.ERROR, "targets-unquantized",
            f"config.json says that {len(plain)} matrices are quantized which are stored as they were",
            "the engine looks for packed weights and scales that are not there: it stops while loading",
            "add them to the exclusions in quantization_config (ignore, exclude_modules)",
            some(list(dict.fromkeys(plain))),
        )  # fmt: skip


def _activations(declared: Declared, stored: list[Matrix]) -> Iterator[Problem]:
    if declared.activations is None or declared.activations > 4:
        return
    four = [one for one in stored if one.scheme.label.startswith("nvfp4")]
    without = [one.module for one in four if not ({"input_scale", "input_global_scale"} & one.parts.keys())]
    if without:
        yield Problem(
            Severity.ERROR, "w4a4-without-input-scale",
            f"4-bit activations are declared (W4A4), and {len(without)} of {len(four)} NVFP4 matrices have "
            "no input_scale",
            "FlashInfer's CUTLASS experts multiply with scales that were never set: garbage; Marlin, which "
            "leaves activations alone, answers rightly",
            'set "quant_algo": "W4A16_NVFP4" in config.json and hf_quant_config.json, or serve with '
            "moe_backend: marlin",
            some(without),
        )  # fmt: skip


def _beside(declared: Declared, beside: Mapping[str, Any]) -> Iterator[Problem]:
    inner = beside.get("quantization")
    if not isinstance(inner, dict):
        return
    algorithm = inner.get("quant_algo")
    if isinstance(algorithm, str) and declared.algorithm is not None and algorithm != declared.algorithm:
        yield Problem(
            Severity.WARNING, "quantization-files-differ",
            f"config.json says {declared.algorithm[:40]}, hf_quant_config.json {algorithm[:40]}",
            "which of them counts depends on the engine",
            "make both say the same",
            "config.json, hf_quant_config.json",
        )  # fmt: skip
