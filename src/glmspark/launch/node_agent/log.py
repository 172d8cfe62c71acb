"""The rank's log: written so that it hurts nobody, read as it grows."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from pathlib import Path

_TROUBLE = re.compile(r"\b(ERROR|CRITICAL)\b|^Traceback |\bFatal Python error\b|^\w*(Error|Exception): ")
_LONGEST = 1000  # characters of a line that tells why: it goes over the watch, and into every state.json
MOST = 64 << 20
"""Bytes of one log file; what is older moves to NAME.1."""


class Log:
    """The rank's log file: of bounded size, and never the reason that a rank ends.

    tail: the last lines, for whoever must say why. dropped: bytes that a full disk did not take.
    """

    def __init__(self, path: Path, most: int = MOST) -> None:
        self._path, self._most = path, most
        self._size, self._rest = 0, b""
        self.tail: deque[str] = deque(maxlen=60)
        self.dropped = 0
        self.reason: str | None = None

    def note(self, text: str) -> None:
        """A line of the agent's own. What the rank said before it says nothing of what follows."""
        cut, self._rest = bool(self._rest), b""
        self.tail.clear()
        self.add(("\n" if cut else "").encode() + f"[glmspark: {text}]\n".encode())
        self.tail.clear()

    def add(self, data: bytes) -> None:
        """Append what the rank printed."""
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[-8192:]
        self.tail.extend(line.decode("utf-8", "replace") for line in lines if line.strip())
        note = f"[glmspark: {self.dropped} bytes were lost: {self.reason}]\n" if self.dropped else ""
        try:
            if self._size > self._most:
                self._path.replace(f"{self._path}.1")
                self._size = 0
            with self._path.open("ab") as file:
                file.write(note.encode() + data)
                self._size = file.tell()
        except OSError as error:
            self.dropped, self.reason = self.dropped + len(data), error.strerror
        else:
            self.dropped = 0


def evidence(tail: list[str], most: int = 12) -> list[str]:
    """Of a log's last lines those that tell why: from the first that sounds of an error, else the last."""
    found = tail[-most:]
    for number, line in enumerate(tail):
        if _TROUBLE.search(line):
            found = tail[number:][:most]
            break
    return [line[:_LONGEST] for line in found]


class Reader:
    """Complete lines of a log as it grows, also over its rotation; `at` says where to go on another time."""

    def __init__(self, path: Path, at: str = "") -> None:
        self._path = path
        inode, _, offset = at.partition(":")
        self._inode, self._offset = int(inode or 0), int(offset or 0)

    @property
    def at(self) -> str:
        """Where the next line begins."""
        return f"{self._inode}:{self._offset}"

    def skip_to_last(self, count: int) -> None:
        """Go on with the last `count` lines there are now."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            self._inode, size = os.fstat(file.fileno()).st_ino, file.seek(0, 2)
            begin = max(0, size - (4 << 20))
            file.seek(begin)
            data = file.read()
            starts = [0, *(at + 1 for at, sign in enumerate(data) if sign == 10)]
            starts = starts[:-1] if starts[-1] == len(data) and len(data) else starts
            self._offset = begin + starts[-count] if 0 < count < len(starts) else begin if count else size

    def lines(self, *, final: bool = False, most: int = 1 << 18) -> list[str]:
        """The new lines, of at most `most` bytes. final: also what has no line end."""
        for path in (Path(f"{self._path}.1"), self._path):
            try:
                with path.open("rb") as file:
                    inode = os.fstat(file.fileno()).st_ino
                    if path != self._path and inode != self._inode:
                        continue  # an older log than the one read so far
                    if inode != self._inode:
                        self._inode, self._offset = inode, 0
                    file.seek(self._offset)
                    data = file.read(most)
            except OSError:
                continue
            ends = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1  # progress bars write nothing but the latter
            whole = data if final or len(data) == most else data[:ends]
            if whole:
                self._offset += len(whole)
                text = whole.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
                return text.removesuffix("\n").split("\n")
        return []
