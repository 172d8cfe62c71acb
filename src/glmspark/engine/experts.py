"""Which numbers a checkpoint gives its experts, and what that means for a model that has them from 0 to n-1.

Pruning (REAP, arXiv 2510.13999) leaves n of a layer's experts. Published checkpoints number them from 0 to
n-1, or as they were numbered before pruning, with holes; and their routers have the rows of the kept experts,
or of all. Which of these it is shows in the names and shapes on disk, and nothing else is believed.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLAN = "reap-prune-plan-full.json"

_EXPERT = re.compile(r"^(.*\blayers\.(\d+)\.mlp\.experts\.)(\d+)(\..+)$", re.ASCII)
_ROUTER = re.compile(r"^.*\blayers\.(\d+)\.mlp\.gate\.(weight|e_score_correction_bias)$", re.ASCII)


class ExpertsContradictError(ValueError):
    """A checkpoint's expert numbers, router rows, config and pruning plan cannot all be true."""


@dataclass(frozen=True)
class Kept:
    """A pruned checkpoint that numbers its experts as before pruning.

    numbers: of each layer, the original numbers in rising order; an expert's new number is its place there.
    """

    numbers: Mapping[int, tuple[int, ...]]
    whole_router: bool

    def rename(self, name: str) -> str:
        """The tensor's name with the expert's new number; every other name as it is."""
        match = _EXPERT.match(name)
        if match is None:
            return name
        return f"{match[1]}{self.numbers[int(match[2])].index(int(match[3]))}{match[4]}"

    def rows(self, name: str) -> tuple[int, ...] | None:
        """For a router's tensor that has the rows of all experts: those to keep, in order. Else None."""
        match = _ROUTER.match(name) if self.whole_router else None
        return self.numbers[int(match[1])] if match else None


def read_plan(directory: Path) -> Any:
    """The pruning plan beside a checkpoint, or None. Raises ExpertsContradictError where it is no JSON."""
    path = directory / PLAN
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ExpertsContradictError(f"{path} is not JSON: {str(error)[:120]}") from None


def kept_experts(shapes: Mapping[str, tuple[int, ...]], experts: int, plan: Any = None) -> Kept | None:
    """What pruning left, from tensor names and shapes; None where experts are numbered 0 to `experts` - 1.

    plan: the content of reap-prune-plan-full.json, `{"<layer>": {"kept": [numbers]}}`, if there is one.
    Raises ExpertsContradictError, saying which facts cannot both be true, for anything else.
    """
    found: dict[int, set[int]] = defaultdict(set)
    routers: dict[int, dict[str, int]] = defaultdict(dict)
    for name, shape in shapes.items():
        if expert := _EXPERT.match(name):
            found[int(expert[2])].add(int(expert[3]))
        elif router := _ROUTER.match(name):
            routers[int(router[1])][router[2]] = shape[0] if shape else 0
    if not found:
        return None  # no experts, or a layer's in one tensor, whose order is the router's
    for layer, unordered in sorted(found.items()):
        if len(unordered) != experts:
            raise ExpertsContradictError(
                f"layer {layer} has {len(unordered)} experts on disk, config.json says {experts}"
            )
    listed = _listed(plan, found, experts)
    plain = tuple(range(experts))
    by_layer = {layer: tuple(sorted(numbers)) for layer, numbers in sorted(found.items())}
    if all(numbers == plain for numbers in by_layer.values()) and listed != by_layer:
        _check_rows(routers, by_layer, experts, whole=False)
        return None
    for layer, numbers in by_layer.items():
        if listed is not None and listed[layer] != numbers:
            raise ExpertsContradictError(
                f"layer {layer}: {PLAN} keeps {_few(listed[layer])}, on disk are {_few(numbers)}"
            )
    whole = _check_rows(routers, by_layer, experts, whole=True)
    return Kept(by_layer, whole)


def _listed(plan: Any, found: Mapping[int, set[int]], experts: int) -> dict[int, tuple[int, ...]] | None:
    """The plan's kept numbers of each layer that has experts on disk; None without a plan."""
    if plan is None:
        return None
    listed = {}
    for layer in sorted(found):
        try:
            kept = tuple(sorted(map(int, plan[str(layer)]["kept"])))
        except (KeyError, TypeError, ValueError):
            raise ExpertsContradictError(f"{PLAN} lists no kept experts for layer {layer}") from None
        if len(set(kept)) != experts:
            raise ExpertsContradictError(
                f"layer {layer}: {PLAN} keeps {len(set(kept))} experts, config.json says {experts}"
            )
        listed[layer] = kept
    return listed


def _check_rows(
    routers: Mapping[int, Mapping[str, int]],
    by_layer: Mapping[int, tuple[int, ...]],
    experts: int,
    *,
    whole: bool,
) -> bool:
    """Whether routers have the rows of all experts. Raises where rows and numbers contradict each other.

    whole: whether they may (original numbers say which rows to keep; numbers from 0 do not).
    """
    seen = {rows for layer in by_layer for rows in routers.get(layer, {}).values()}
    if not seen:
        raise ExpertsContradictError(f"there are experts, but no router in layers {_few(tuple(by_layer))}")
    if seen == {experts}:
        return False
    if len(seen) > 1:
        raise ExpertsContradictError(f"routers and correction biases have {_few(tuple(sorted(seen)))} rows")
    rows = seen.pop()
    highest = max(numbers[-1] for numbers in by_layer.values())
    if not whole:
        raise ExpertsContradictError(
            f"experts are numbered 0 to {experts - 1}, but routers have {rows} rows: which of them belong to "
            f"the experts that are left is not said"
        )
    if rows <= highest:
        raise ExpertsContradictError(
            f"routers have {rows} rows: neither the {experts} of the experts that are left nor all of them, "
            f"for the highest number is {highest}"
        )
    return True


def _few(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown + (f", ... ({len(numbers)})" if len(numbers) > 8 else "")
