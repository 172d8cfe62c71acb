"""Following a file that grows, line by line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class Tail:
    """Gives the complete lines a file got since the last look.

    A carriage return ends a line too: progress bars write nothing else. A file that is not there yet is
    empty; one that became shorter is read from its start again. from_end: only what comes from now on.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0
        self._rest = b""

    def lines(self, *, most: int = 1 << 20) -> list[str]:
        """The new lines without their ends, from at most `most` bytes."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                data = file.read(most)
        except OSError:
            return []
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > most:
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode("utf-8", "replace") for line in whole]

    def rest(self) -> str:
        """What stands after the last line end, once nothing more will come."""
        return self._rest.decode("utf-8", "replace")


def truncate_large(path: Path, most: int) -> bool:
    """Keep a log from filling the disk: above `most` bytes its content moves to NAME.1 and it starts again.

    The writer has the file open to append, so it is copied and cut, not renamed; lines written between the
    two are lost. False where nothing was done.
    """
    try:
        if path.stat().st_size <= most:
            return False
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
    except OSError:
        return False
    return True


def last_lines(path: Path, count: int, *, most: int = 4 << 20) -> list[str]:
    """The last `count` lines of a file, of its last `most` bytes; none where there is no file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            data = file.read()
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").splitlines()
    return lines[-count:] if count else []
