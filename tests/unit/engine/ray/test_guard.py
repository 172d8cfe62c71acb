"""What cleans up after a ray node does so to the end."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """\
import os, signal, types
from glmspark.engine.ray import family, guard

def sweep(directory):
    os.kill(os.getpid(), signal.SIGTERM)  # told to stop just when the node has ended by itself
    print("swept", flush=True)
    return []

guard.live = lambda life: 1
family.sweep = sweep
raise SystemExit(guard.guard(types.SimpleNamespace(directory=None)))
"""


def test_a_signal_does_not_interrupt_the_sweep() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "swept\n", done.stderr
    assert done.returncode == 1  # how the node ended by itself
