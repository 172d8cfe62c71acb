"""Whether a Python environment on a node can run ranks: it imports the engine and this very glmspark."""

from __future__ import annotations

import json
from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class Environment:
    """Versions in an environment."""

    vllm: str
    glmspark: str


# Imported, not only looked up: an environment of another machine's libraries is there and does not work.
PROBE = """\
import json
import glmspark.engine.serve
import vllm
print(json.dumps({"vllm": vllm.__version__, "glmspark": glmspark.__version__}))
"""


def parse_environment(text: str) -> Environment:
    """An Environment from what the probe printed last. Raises ValueError for anything else."""
    try:
        data = json.loads(text.strip().splitlines()[-1])
        return Environment(str(data["vllm"]), str(data["glmspark"]))
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the environment's probe printed something else: {error!r}") from None


def environment(prefix: str) -> Fact[Environment]:
    """The fact "engine in the environment at this directory"."""
    command = ("env", "VLLM_LOGGING_LEVEL=ERROR", f"{prefix}/bin/python", "-c", PROBE)
    return Fact(f"engine in {prefix}", command, parse_environment)
