"""Readings of a Spark for tests of the guard, and files of a pretended /proc and /sys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from glmspark.guard.config import Thresholds
from glmspark.guard.deployments import Deployed
from glmspark.guard.memory import Memory
from glmspark.guard.processes import Process

GIB = 2**30
TOTAL = 121 * GIB
MEMORY = Memory(total=TOTAL, free=20 * GIB, available=24 * GIB, page_cache=4 * GIB, huge_free=18 * GIB)
LIMITS = Thresholds(low=4 * GIB, critical=2 * GIB, load_need=90 * GIB, unified=True)


def memory(**more: float) -> Memory:
    """The Spark's memory with some sizes (GiB) or shares changed."""
    sizes = {"free", "available", "page_cache", "huge_free"}
    return replace(MEMORY, **{name: int(one * GIB) if name in sizes else one for name, one in more.items()})


def deployed(phase: str = "serving", name: str = "glm", *, resident: int = GIB, **more: Any) -> Deployed:
    """A deployment with one process."""
    family = (Process(100, "python3", "S", 1, 5, 1.0, resident),)
    fields: dict[str, Any] = {"thresholds": LIMITS, "family": family, "rank": 0} | more
    return Deployed(name=name, home=f"/home/me/ranks/{name}", state=phase, phase=phase, **fields)


def put(root: Path, path: str, text: str) -> None:
    """A file of the pretended system."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def stat_line(pid: int, name: str = "python3", state: str = "S", parent: int = 1, started: int = 77) -> str:
    """A row of /proc/PID/stat."""
    rest = [state, str(parent), "1", "1", "0", "-1", "4194560", "9", "0", "0", "0", "250", "50"]
    rest += ["0", "0", "20", "0", "1", "0", str(started), "1000000", "500"]
    return f"{pid} ({name}) {' '.join(rest)} 18446744073709551615 1 1\n"
