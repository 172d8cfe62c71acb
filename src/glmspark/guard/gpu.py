"""The GPU: one nvidia-smi that goes on printing, rather than one a second."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

FIELDS = (
    "index",
    "utilization.gpu",
    "power.draw",
    "clocks.sm",
    "temperature.gpu",
    "memory.used",
    "memory.total",
)
QUERY = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits", "--loop=1")
"""Prints a row per GPU and second until it is ended."""

_AGAIN = 60.0
"""Seconds until a query that has ended is begun anew; a node without the program is asked no more often."""
_STALE = 10.0
"""Seconds after which a row tells nothing any more: the query itself hangs where the driver does."""
_MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One GPU. util: per cent; None for what the driver does not say (memory on unified-memory GPUs)."""

    index: int
    util: float | None
    power_w: float | None
    clock_mhz: float | None
    temp_c: float | None
    memory_used: int | None
    memory_total: int | None

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    @property
    def unified(self) -> bool:
        """Whether it shares the host's memory: then the driver knows no memory of its own."""
        return self.memory_total is None


def parse_row(text: str) -> Gpu:
    """The GPU in one row. Raises ValueError; a field `[N/A]` or `[Not Supported]` is None."""
    words = [word.strip() for word in text.split(",")]
    if len(words) != len(FIELDS) or not (words[0].isdecimal() and words[0].isascii()):
        raise ValueError(f"not a row of nvidia-smi: {text[:120]!r}")

    def number(word: str) -> float | None:
        return None if word.startswith("[") else float(word)

    util, power, clock, temperature, used, total = (number(word) for word in words[1:])
    sizes = [None if size is None else int(size * _MIB) for size in (used, total)]
    return Gpu(int(words[0]), util, power, clock, temperature, *sizes)


class GpuReader:
    """Runs the query and keeps each GPU's last row. argv: other than nvidia-smi in tests."""

    def __init__(self, argv: Sequence[str] = QUERY) -> None:
        self.problem: str | None = None
        self._argv = list(argv)
        self._process: subprocess.Popen[bytes] | None = None
        self._handle = -1
        self._begun = -_AGAIN
        self._ending: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._seen: dict[int, tuple[float, Gpu]] = {}

    def read(self, now: float) -> list[Gpu]:
        """The GPUs as of their last rows. now: monotonic seconds. Waits for nothing."""
        self._bury()
        if self._process is None:
            if now - self._begun >= _AGAIN and self._ending is None:
                self._begin(now)
        else:
            self._take(now)
        found = [gpu for at, gpu in self._seen.values() if now - at < _STALE]
        if self._seen and not found and self._process is not None:
            silent = now - max(self._begun, *(at for at, _ in self._seen.values()))
            if silent >= _STALE:
                self.problem = f"nvidia-smi has said nothing for {silent:.0f} s: does the driver hang?"
        return found

    def _begin(self, now: float) -> None:
        self._begun = now
        libc = ctypes.CDLL(None)
        # A terminal for its output: into a pipe a program may print a row only when it has many.
        try:
            handle, its_end = os.openpty()
        except OSError as error:
            self.problem = f"nvidia-smi: no terminal for its output: {error.strerror}"
            return
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=its_end,
                stderr=subprocess.DEVNULL,
                preexec_fn=lambda: libc.prctl(1, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509 - it ends with us
            )
        except OSError as error:
            # No driver is no fault: a CPU node has none.
            self.problem = None if isinstance(error, FileNotFoundError) else f"nvidia-smi: {error.strerror}"
            os.close(handle)
            return
        finally:
            os.close(its_end)
        os.set_blocking(handle, False)
        self._handle, self.problem, self._rest = handle, None, b""

    def _take(self, now: float) -> None:
        try:
            while data := os.read(self._handle, 8192):
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._rest = self._rest[-8192:]
                for line in lines:
                    self._note(line.decode("utf-8", "replace"), now)
        except BlockingIOError:
            return
        except OSError:
            pass  # nobody holds the other end of the terminal any more
        # Its output is closed before its devices are, and where the driver hangs those never are: to wait for
        # it would be the end of the guard.
        self._ending = self._process
        self.problem = "nvidia-smi closed its output and does not end: does the driver hang?"
        self._close()
        self._bury()

    def _bury(self) -> None:
        if self._ending is not None and (code := self._ending.poll()) is not None:
            self.problem = f"nvidia-smi ended with {code}"
            self._ending = None

    def _note(self, line: str, now: float) -> None:
        if line.strip():
            try:
                gpu = parse_row(line)
            except (ValueError, OverflowError) as error:
                self.problem = str(error)
                return
            self._seen[gpu.index] = (now, gpu)
            self.problem = None

    def _close(self) -> None:
        os.close(self._handle)
        self._process, self._handle = None, -1

    def close(self) -> None:
        """End the query."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._close()
