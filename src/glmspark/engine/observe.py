"""What a rank shows to whoever watches over it: where it stands in its steps, and its stacks on request.

With GLMSPARK_OBSERVE_DIR set (a directory of the deployment's own on the node) every vLLM process of a rank

- writes the stacks of all its threads into `stacks-PID` there on SIGUSR2, also while it is stuck in C code;
- keeps in `steps-PID`, once it runs steps, two numbers of 8 bytes, little endian: steps begun, steps ended.

PID is as the process itself sees it. Nothing of it waits for a disk: the steps are written through a map of
the file's pages.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import mmap
import os
import signal
import struct
from pathlib import Path
from typing import Any, BinaryIO

DIRECTORY = "GLMSPARK_OBSERVE_DIR"
STEPS = struct.Struct("<QQ")
"""Steps begun and ended, as `steps-PID` holds them."""

_open: list[BinaryIO] = []  # faulthandler keeps the number of the file only
_registered: list[int] = []


def register() -> None:
    """Make this process, and those forked from it, show themselves; nothing without the directory."""
    directory = os.environ.get(DIRECTORY)
    if not directory or os.getpid() in _registered:
        return
    first = not _registered
    _registered[:] = [os.getpid()]
    with contextlib.suppress(OSError, ValueError):  # not having it costs evidence, never a start
        file = (Path(directory) / f"stacks-{os.getpid()}").open("wb")
        _open[:] = [file]
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
    if first:
        os.register_at_fork(after_in_child=register)
        _count_steps()


def _count_steps() -> None:
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    upstream = WorkerWrapperBase.execute_model
    steps: list[Steps] = []

    @functools.wraps(upstream)
    def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not steps or steps[0].pid != os.getpid():
            steps[:] = [Steps(Path(os.environ[DIRECTORY]))]
        steps[0].begin()
        try:
            return upstream(self, *args, **kwargs)
        finally:
            steps[0].end()

    WorkerWrapperBase.execute_model = execute_model


class Steps:
    """The steps of this process, in a file of the directory that others read; in memory where it cannot be
    made."""

    def __init__(self, directory: Path) -> None:
        self.pid = os.getpid()
        self._begun = self._ended = 0
        self._map: mmap.mmap | bytearray = bytearray(STEPS.size)
        with contextlib.suppress(OSError, ValueError), (directory / f"steps-{self.pid}").open("w+b") as file:
            file.write(bytes(STEPS.size))
            file.flush()
            self._map = mmap.mmap(file.fileno(), STEPS.size)

    def begin(self) -> None:
        """A step begins."""
        self._begun += 1
        STEPS.pack_into(self._map, 0, self._begun, self._ended)

    def end(self) -> None:
        """It has ended, well or not."""
        self._ended += 1
        STEPS.pack_into(self._map, 0, self._begun, self._ended)
