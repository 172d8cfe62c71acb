"""What Ray's workers print: Ray keeps it in files, and a node's log should have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_PATTERNS = (
    "session_2*/logs/worker-*.out",
    "session_2*/logs/worker-*.err",
    "session_2*/logs/raylet.err",
    "session_2*/logs/gcs_server.err",
)
# Lines by which Ray's log monitor tells one task's output from another's.
_MARKS = (":job_id:", ":actor_name:", ":task_name:")


class Output:
    """Prints what is added to the log files of Ray's workers, whole line by whole line."""

    def __init__(self, directory: Path, write: Callable[[str], None]) -> None:
        self._directory, self._write = directory, write
        self._read: dict[Path, int] = {}

    def pump(self, *, last: bool = False) -> None:
        """Print the whole lines that are new; the last time also one that is not finished."""
        for pattern in _PATTERNS:
            for path in sorted(self._directory.glob(pattern)):
                self._take(path, last)

    def _take(self, path: Path, last: bool) -> None:
        try:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
        except OSError:
            return
        if not last:
            text = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(text)
        for line in text.decode(errors="replace").splitlines():
            if line and not line.startswith(_MARKS):
                self._write(line)
