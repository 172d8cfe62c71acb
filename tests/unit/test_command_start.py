"""The command answers at once, and the package is what it says it is."""

import resource
import subprocess
import sys
from pathlib import Path

import glmspark

COMMAND = Path(sys.executable).with_name("glmspark")


def test_help_answers_within_four_tenths_of_a_second() -> None:
    """It waits for nothing, so on an idle machine it takes its CPU time, and on a busy one more."""
    taken = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert {"up", "status", "logs", "chat", "down", "recipe"} <= set(done.stdout.split())
        if taken[-1] <= 0.4:
            return
    raise AssertionError(f"glmspark --help took {min(taken):.2f} s at best")


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, glmspark.cli; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "glmspark" in loaded
    assert not loaded & {"torch", "vllm", "transformers", "numpy", "openai", "huggingface_hub"}
    # What only some commands need: each costs the others 20 ms and more.
    assert not loaded & {"asyncio", "asyncssh", "httpx", "pydantic", "ruamel"}


def test_version_is_told() -> None:
    done = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"glmspark {glmspark.__version__}"
