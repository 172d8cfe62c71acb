"""What started engines said of their memory, against what was planned: corrections for the next plan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from glmspark.config.files import write_atomic
from glmspark.config.paths import state_dir
from glmspark.plan.study import Held, Study, largest_context

__all__ = ["Lesson", "Said", "apply_lessons", "lesson_of", "load_lessons", "read_log", "save_lesson"]

_GIB = 2**30
_PATTERNS = {
    "weights": re.compile(r"Model loading took (\d{1,6}(?:\.\d{1,6})?) GiB"),
    "graphs": re.compile(r"Graph capturing finished in \d+ secs, took (\d{1,6}(?:\.\d{1,6})?) GiB"),
}
_TOKENS = re.compile(r"KV cache size: (\d[\d,]{0,19}) tokens")
_MOST_FACTOR = 1.5
"""A correction beyond this says that two different things were compared."""


@dataclass(frozen=True)
class Said:
    """What vLLM's log says of one rank, in bytes; None for what it does not say. tokens: of the KV cache."""

    weights: int | None
    graphs: int | None
    tokens: int | None


@dataclass(frozen=True)
class Lesson:
    """Factors by which a start was off the plan. recipe: of which; platform. weights, graphs, tokens: said
    by the engine over planned, 1 where it does not say."""

    recipe: str
    platform: str
    weights: float
    graphs: float
    tokens: float

    def to_json(self) -> dict[str, Any]:
        """Data."""
        return asdict(self)


def read_log(text: str) -> Said:
    """What a rank's log says. The last of each counts: a log may hold several starts."""

    def last(name: str) -> int | None:
        found = _PATTERNS[name].findall(text)
        return int(float(found[-1]) * _GIB) if found else None

    tokens = _TOKENS.findall(text)
    return Said(last("weights"), last("graphs"), int(tokens[-1].replace(",", "")) if tokens else None)


def lesson_of(recipe: str, plan: dict[str, Any], logs: Iterable[str]) -> Lesson | None:
    """What a deployment's start teaches. plan: of its record. logs: of its ranks. None where none says
    anything."""
    said = [read_log(text) for text in logs]
    ranks = plan.get("ranks")
    memory = ranks[0].get("memory", {}) if isinstance(ranks, list) and ranks else {}
    weights = _factor([one.weights for one in said], memory.get("weights", 0) + memory.get("drafter", 0))
    graphs = _factor([one.graphs for one in said], memory.get("graphs", 0))
    tokens = _factor([one.tokens for one in said], plan.get("kv_tokens", 0))
    if weights is graphs is tokens is None:
        return None
    platform = str(plan.get("platform", "cpu"))
    return Lesson(recipe, platform, weights or 1.0, graphs or 1.0, tokens or 1.0)


def _factor(said: list[int | None], planned: int) -> float | None:
    """The largest of what ranks say over what was planned, within reason."""
    known = [one for one in said if one]
    if not known or planned <= 0:
        return None
    factor = max(known) / planned
    return factor if 1 / _MOST_FACTOR <= factor <= _MOST_FACTOR else None


def _file() -> Path:
    return state_dir() / "learned.json"


def load_lessons() -> list[Lesson]:
    """The lessons kept on this machine; none where there are none or the file cannot be read."""
    try:
        data = json.loads(_file().read_bytes())
        factors = ("weights", "graphs", "tokens")
        return [
            Lesson(str(one["recipe"]), str(one["platform"]), *(float(one[name]) for name in factors))
            for one in data["lessons"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def save_lesson(lesson: Lesson) -> None:
    """Keep a lesson in place of an earlier one of the same recipe. Raises StateError where it cannot be
    written."""
    kept = [one for one in load_lessons() if (one.recipe, one.platform) != (lesson.recipe, lesson.platform)]
    data = {"version": 1, "lessons": [one.to_json() for one in [*kept, lesson]][-100:]}
    _file().parent.mkdir(parents=True, exist_ok=True)
    write_atomic(_file(), json.dumps(data, indent=2).encode())


def apply_lessons(found: Study, lessons: list[Lesson]) -> Study:
    """The study with memory as starts said it is: those of this recipe, else of the others on this
    platform."""
    own = [one for one in lessons if one.recipe == found.recipe.name]
    used = own or [one for one in lessons if one.platform == found.site.platform]
    if not used:
        return found
    weights = sum(one.weights for one in used) / len(used)
    graphs = sum(one.graphs for one in used) / len(used)
    tokens = sum(one.tokens for one in own) / len(own) if own else 1.0
    ranks = tuple(_corrected(rank, weights, graphs) for rank in found.ranks)
    longest = int(largest_context(found.recipe, found.outline, found.site, ranks) * tokens)
    context = min(longest, found.outline.architecture.max_position)
    return replace(found, ranks=ranks, tokens=int(found.tokens * tokens), context=context)


def _corrected(rank: Held, weights: float, graphs: float) -> Held:
    memory = rank.memory
    changes = {
        "weights": int(memory.weights * weights),
        "graphs": int(memory.graphs * graphs),
        "by_class": {kind: int(size * weights) for kind, size in memory.by_class.items()},
    }
    changed = memory.model_copy(update=changes)
    more = changed.total - memory.total
    load = memory.load + changed.weights - memory.weights
    needed = (
        max(memory.needed + more, load)
        if memory.needed == memory.total
        else max(memory.needed, changed.total)
    )
    final = changed.model_copy(update={"needed": needed, "load": load})
    return replace(rank, memory=final, left=rank.left - (needed - memory.needed))
