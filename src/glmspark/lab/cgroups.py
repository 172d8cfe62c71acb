"""The control groups that the nodes' Docker Engines make for containers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def places(name: str, *, root: Path = ROOT) -> list[Path]:
    """Where a control group of this name stands: once with version 2, once per hierarchy with version 1."""
    return [path for path in (root / name, *(each / name for each in _hierarchies(root))) if path.is_dir()]


def _hierarchies(root: Path) -> list[Path]:
    try:
        return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink())
    except OSError:
        return []


def _depth_first(path: Path) -> Iterator[Path]:
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            yield from _depth_first(entry)
    yield path


def remove(name: str, *, root: Path = ROOT, seconds: float = 5.0) -> list[str]:
    """Remove a control group and those below it. Returns those that would not go, with the reason.

    The kernel lets go of a group some time after its last process has ended.
    """
    end = time.monotonic() + seconds
    while True:
        failed = [f"{path}: {reason}" for place in places(name, root=root) for path, reason in _try(place)]
        if not failed or time.monotonic() > end:
            return failed
        time.sleep(0.05)


def _try(place: Path) -> list[tuple[Path, str]]:
    failed = []
    try:
        groups = list(_depth_first(place))
    except FileNotFoundError:
        return []
    for group in groups:
        try:
            group.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            failed.append((group, error.strerror or str(error)))
    return failed
