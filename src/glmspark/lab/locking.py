"""One command at a time changes a lab."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from glmspark.lab.record import LabHome
from glmspark.lab.run import LabError
from glmspark.launch import lock

_WAIT = 2.0


@contextmanager
def locked(home: LabHome) -> Iterator[None]:
    """Hold the lab's lock. LabError where another command has it."""
    held = lock.take(home.lock_file, wait=_WAIT)
    if held is None:
        raise LabError(
            "another `glmspark lab` command is changing this lab",
            step=f"lock {home.lock_file}",
            next="wait for it to end",
        )
    with held:
        yield
