"""The command answers at once, and the package is what it says it is."""

import subprocess
import sys
import time
from pathlib import Path

import glmspark

COMMAND = Path(sys.executable).with_name("glmspark")


def test_help_answers_within_four_tenths_of_a_second() -> None:
    taken = []
    for _ in range(7):
        begin = time.monotonic()
        done = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=True)
        taken.append(time.monotonic() - begin)
        assert "Usage: glmspark" in done.stdout
    # The best of some runs: the command's own time, not that of others on this machine.
    assert min(taken) <= 0.4, f"glmspark --help took {min(taken):.2f} s at best"


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, glmspark.cli; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "glmspark" in loaded
    assert not loaded & {"torch", "vllm", "transformers", "numpy", "openai", "huggingface_hub"}


def test_version_is_told() -> None:
    done = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"glmspark {glmspark.__version__}"
