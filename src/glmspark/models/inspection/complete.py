"""Rules about what must be there: weights, experts, shapes, indexers, the MTP layer."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from glmspark.models.inspection.content import Content
from glmspark.models.inspection.matrices import Matrices
from glmspark.models.inspection.problem import Problem, Severity, some

__all__ = ["REAP_PLAN", "check_complete", "read_kept"]

REAP_PLAN = "reap-prune-plan-full.json"
_FETCH = "fetch the missing shards, or the config.json that belongs to these weights"


def check_complete(
    content: Content, matrices: Matrices, plan: Mapping[int, tuple[int, ...]] | None
) -> Iterator[Problem]:
    """Every problem of missing, extra or misshapen weights. plan: experts kept by layer, after pruning."""
    if not content.shards:
        return
    missing = _missing(content, matrices)
    yield from _trunk(missing)
    yield from _mtp(matrices, missing["mtp"])
    yield from _indexers(matrices, missing["indexer"], content.config)
    if content.index is not None or not content.broken:
        yield from _experts(matrices, plan, content.lost)
    yield from _shapes(matrices)
    yield from _lacking(matrices)
    if matrices.unknown:
        yield Problem(
            Severity.WARNING, "extra-tensors",
            f"{len(matrices.unknown)} tensors are none of {matrices.architecture.name}'s",
            "vLLM stops at names it does not know, or leaves them out",
            "see whether config.json belongs to these weights",
            some(sorted(matrices.unknown)),
        )  # fmt: skip
    for why, names in sorted(matrices.unused.items()):
        if why.startswith("indexers"):
            yield Problem(
                Severity.NOTE, "unused-indexers",
                f"{len(names)} tensors are {why}",
                "they take space on disk only; engines that ignore the pattern would run them untrained",
                "nothing",
                some(sorted(names)),
            )  # fmt: skip


def _missing(content: Content, matrices: Matrices) -> dict[str, list[str]]:
    """Names of specs without a stored matrix: of "trunk", "mtp" and (the trunk's) "indexer"."""
    present = {matrix.spec.name for matrix in matrices.stored.values()} | matrices.whole_experts
    # What is in a shard that cannot be read is not missing as well.
    lost = {re.sub(r"\.experts\.\d+\.", ".experts.{expert}.", name) for name in content.lost}
    hidden = {name.rpartition(".")[0] for name in lost} | lost
    found: dict[str, list[str]] = {"trunk": [], "mtp": [], "indexer": []}
    if content.index is None and content.broken:
        return found
    for spec in matrices.architecture.specs:
        if spec.name in present or spec.name in hidden or spec.module in hidden:
            continue
        if spec.layer is not None and spec.layer.mtp:
            found["mtp"].append(spec.name)
        else:
            found["indexer" if spec.kind == "indexer" else "trunk"].append(spec.name)
    return found


def _trunk(missing: Mapping[str, list[str]]) -> Iterator[Problem]:
    if names := missing["trunk"]:
        yield Problem(
            Severity.ERROR, "missing-tensors",
            f"{len(names)} weights that config.json calls for are missing",
            "the engine stops while loading, or answers from weights that were never set",
            _FETCH,
            some(names),
        )  # fmt: skip


def _mtp(matrices: Matrices, missing: list[str]) -> Iterator[Problem]:
    architecture = matrices.architecture
    wanted = [spec for spec in architecture.specs if spec.layer is not None and spec.layer.mtp]
    first = len(architecture.layers)
    if not wanted:
        beyond = [
            name
            for name in matrices.unknown
            if (m := re.search(r"\blayers\.(\d{1,6})\.", name)) and int(m[1]) >= first
        ]
        if beyond:
            yield Problem(
                Severity.WARNING, "mtp-undeclared",
                f"{len(beyond)} tensors belong to layers after the last, {first - 1}; "
                "config.json declares no MTP layer",
                "speculation with MTP cannot be used",
                'set "num_nextn_predict_layers" in config.json',
                some(sorted(beyond)),
            )  # fmt: skip
        return
    if not missing:
        return
    # A checkpoint without indexers (pruned for dense attention) has none in the MTP layer either.
    serious = [name for name in missing if ".indexer." not in name]
    if len(missing) == len(wanted):
        yield Problem(
            Severity.WARNING, "mtp-absent",
            f"config.json declares {len(architecture.mtp_layers)} MTP layer, and no weight of it is there",
            "speculation with method mtp fails or drafts noise; without it nothing changes",
            'draft with n-grams or a drafter model; or set "num_nextn_predict_layers": 0',
        )  # fmt: skip
    elif serious:
        yield Problem(
            Severity.ERROR, "mtp-half",
            f"{len(serious)} of the MTP layer's weights are missing",
            "drafts are noise: every token is rejected",
            _FETCH,
            some(serious),
        )  # fmt: skip


def _indexers(matrices: Matrices, missing: list[str], config: Mapping[str, Any]) -> Iterator[Problem]:
    inner = config.get("text_config")
    text: Mapping[str, Any] = inner if isinstance(inner, dict) else config
    architecture = matrices.architecture
    full = [layer for layer in architecture.layers if layer.indexer == "full"]
    if not full:
        return
    without = sorted({int(m[1]) for name in missing if (m := re.search(r"\blayers\.(\d+)\.", name))})
    linear = any(layer.linear for layer in architecture.layers)
    shared = [layer for layer in architecture.layers if layer.indexer == "shared"]
    silent = (
        "index_topk_pattern" in text and text["index_topk_pattern"] is None and not text.get("indexer_types")
    )
    if without and len(without) == len(full):
        yield Problem(
            Severity.WARNING, "indexer-absent",
            "config.json has an indexer (index_topk), and no layer has weights for one",
            f"sparse attention cannot run; dense attention is exact up to {architecture.index_topk} tokens "
            "and costs more beyond",
            "serve it with engine.dense_attention: true",
        )  # fmt: skip
    elif without:
        said = "says nothing of which layers share" if not shared else "gives them indexers of their own"
        yield Problem(
            Severity.ERROR, "indexer-pattern",
            f"{len(without)} of {len(full)} layers with an indexer of their own have no weights for it, and "
            f"config.json {said}",
            "sparse attention runs untrained indexers there: answers fall apart beyond "
            f"{architecture.index_topk} tokens",
            'write the released "index_topk_pattern" into config.json (F: own indexer, S: shared), or serve '
            "with engine.dense_attention: true",
            "layers " + some([str(layer) for layer in without], 12),
        )  # fmt: skip
    elif silent and shared and not linear:
        yield Problem(
            Severity.WARNING, "indexer-pattern-null",
            f'"index_topk_pattern" is null and no "indexer_types" are given; {len(shared)} of '
            f"{len(architecture.layers)} layers share by index_topk_freq alone",
            "vLLM before 0.27 runs untrained indexers on those layers: coherent only under "
            f"{architecture.index_topk} tokens; newer ones derive the pattern",
            "write the pattern into config.json: "
            + "".join("F" if layer.indexer == "full" else "S" for layer in architecture.layers),
        )  # fmt: skip


def read_kept(plan: object) -> dict[int, tuple[int, ...]]:
    """Experts kept by layer from a pruning plan, `{"<layer>": {"kept": [numbers]}}`. Raises ValueError."""
    if not isinstance(plan, dict):
        raise ValueError("it is not a JSON object")
    found: dict[int, tuple[int, ...]] = {}
    for layer, entry in plan.items():
        kept = entry.get("kept") if isinstance(entry, dict) else None
        if not str(layer).isdecimal() or len(str(layer)) > 6 or not isinstance(kept, list):
            raise ValueError(f"layer {str(layer)[:40]!r} has no list of kept experts")
        if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**20 for n in kept):
            raise ValueError(f"layer {layer} keeps something that is no expert's number")
        found[int(layer)] = tuple(sorted(kept))
    return found


def _experts(
    matrices: Matrices, plan: Mapping[int, tuple[int, ...]] | None, lost: set[str]
) -> Iterator[Problem]:
    said = matrices.architecture.experts
    wrong: list[str] = []
    numbers: dict[int, list[set[int]]] = defaultdict(list)
    unread: dict[int, set[int]] = defaultdict(set)
    for name in lost:
        if match := re.search(r"\blayers\.(\d{1,6})\.mlp\.experts\.(\d{1,6})\.", name):
            unread[int(match[1])].add(int(match[2]))
    for (layer, _), found in matrices.numbers.items():
        numbers[layer].append(found | unread[layer])
    gaps: list[int] = []
    as_planned = 0
    uneven: list[str] = []
    rows = _router_rows(matrices)
    for layer, sets in sorted(numbers.items()):
        union: set[int] = set().union(*sets)
        if any(one != union for one in sets):
            partial = sorted(union - union.intersection(*sets))
            uneven.append(f"layer {layer}: experts {some([str(n) for n in partial], 5)}")
        if len(union) != said:
            wrong.append(f"layer {layer} has {len(union)}")
        if union != set(range(len(union))):
            gaps.append(layer)
        planned = None if plan is None or layer not in plan else set(plan[layer])
        as_planned += planned == union
        if planned is not None and planned != union and union != set(range(said)):
            uneven.append(f"layer {layer}: {REAP_PLAN} keeps others than are there")
    if uneven:
        yield Problem(
            Severity.ERROR, "experts-incomplete",
            f"in {len(uneven)} layers some experts are not whole, or not those of the pruning plan",
            "the engine stops while loading, or those experts answer noise",
            _FETCH,
            some(uneven),
        )  # fmt: skip
    if wrong:
        yield Problem(
            Severity.ERROR, "expert-count",
            f"config.json says n_routed_experts {said}; {len(wrong)} layers have other numbers of experts",
            "the engine stops while loading, or routes to experts that were never set",
            "fetch the config.json that belongs to these weights",
            some(wrong),
        )  # fmt: skip
    if gaps and not wrong:
        yield Problem(
            Severity.NOTE, "experts-numbered-as-before-pruning",
            f"{len(gaps)} layers number their {said} experts as before pruning, with holes",
            "stock vLLM stops with KeyError: 'layers...experts...'; glmspark's engine renumbers them",
            "nothing with glmspark",
        )  # fmt: skip
    unclear = sorted(layer for layer, count in rows.items() if count != said)
    # Numbers as before pruning say which rows are meant, in every layer.
    if unclear and not wrong and not gaps and as_planned < len(numbers):
        yield Problem(
            Severity.ERROR, "router-rows",
            f"routers of {len(unclear)} layers have {rows[unclear[0]]} rows for {said} experts, and nothing "
            "says which belong to the experts that are left",
            "tokens go to the wrong experts, or the engine stops",
            "use a checkpoint whose routers were pruned too, or whose experts keep their numbers",
            "layers " + some([str(layer) for layer in unclear], 12),
        )  # fmt: skip


def _router_rows(matrices: Matrices) -> dict[int, int]:
    return {
        matrix.spec.layer.index: matrix.scheme.shape[0]
        for matrix in matrices.each("router")
        if matrix.spec.layer is not None and matrix.scheme.shape
    }


def _shapes(matrices: Matrices) -> Iterator[Problem]:
    wrong: list[str] = []
    for matrix in matrices.stored.values():
        shape = matrix.scheme.shape
        if (
            matrix.spec.kind == "router"
            or shape is None
            or matrix.module.endswith(("gate_up_proj", "experts.down_proj"))
        ):
            continue
        if shape != matrix.spec.shape:
            wrong.append(f"{matrix.module} is {list(shape)}, not {list(matrix.spec.shape)}")
    if wrong:
        yield Problem(
            Severity.ERROR, "shape",
            f"{len(wrong)} weights do not have the shape that config.json implies",
            "the engine stops while loading, or computes garbage",
            "fetch the config.json that belongs to these weights",
            some(wrong),
        )  # fmt: skip


def _lacking(matrices: Matrices) -> Iterator[Problem]:
    parts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for matrix in matrices.stored.values():
        for part in matrix.scheme.lacking:
            parts[part] += 1
            first.setdefault(part, matrix.module)
    for part, count in sorted(parts.items()):
        yield Problem(
            Severity.ERROR, "missing-scales",
            f"{count} quantized matrices have no {part}",
            "the engine stops while loading, or multiplies with scales that were never set",
            "fetch the shards again; if they came so, the checkpoint is broken",
            first[part],
        )  # fmt: skip
