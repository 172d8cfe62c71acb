"""The kernel's log: the lines that tell of trouble, as they come."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

KINDS: Mapping[str, str] = {
    # https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358: seconds before a node is lost
    "nvrm-no-memory": r"NVRM:.*(?:NV_ERR_NO_MEMORY|0x0*51\b|[Oo]ut of memory)|NV_ERR_NO_MEMORY",
    "xid": r"NVRM: Xid|NVRM:.*(?:fell off the bus|GPU has been lost|RmInitAdapter failed)",
    "oom-kill": r"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory: Killed process",
    "pcie-aer": r"AER: .*(?:[Ee]rror|received)|PCIe Bus Error",
    "link-flap": r"mlx5_core .*Link (?:down|up)|NIC Link is (?:Down|Up)|"
    r"mlx5_core.*(?:cmd.*timeout|health poll failed|firmware.*internal error)",
}
"""Lines that count, by what they tell of."""

_COMPILED = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}
_LONGEST = 500
_AT_ONCE = 400
"""Records at most in one look; a kernel that says more is in trouble anyway."""


@dataclass(frozen=True)
class Event:
    """A line that counts. at: seconds after the node's start as the kernel says, None where it does not."""

    kind: str
    at: float | None
    line: str

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def kind_of(line: str) -> str | None:
    """What a line of the kernel tells of, None for one that does not count."""
    for kind, pattern in _COMPILED.items():
        if pattern.search(line):
            return kind
    return None


def parse_record(text: str) -> Event | None:
    """The event in a record of /dev/kmsg (https://docs.kernel.org/admin-guide/abi-testing.html, dev-kmsg:
    `priority,sequence,microseconds,flags;text`), of dmesg or of journalctl; None for any other line."""
    head, semicolon, rest = text.partition(";")
    fields = head.split(",")
    at: float | None = None
    line = text
    if semicolon and len(fields) >= 3 and all(one.isdecimal() and one.isascii() for one in fields[:3]):
        at, line = int(fields[2]) / 1e6, rest
    elif stamp := re.match(r"\[\s*(\d{1,12}\.\d{1,9})\]", text):
        at = float(stamp[1])
    line = line.partition("\n")[0].strip()[:_LONGEST]
    kind = kind_of(line)
    return None if kind is None else Event(kind, at, line)


class KernelLog:
    """Follows /dev/kmsg, or a file that grows (labs), or else `journalctl -k`; from now on."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self.problem: str | None = None
        self._path = path
        self._device = path == "/dev/kmsg"
        self._handle = -1
        self._rest = b""
        self._journal: subprocess.Popen[bytes] | None = None
        self._open(end=True)

    def _open(self, *, end: bool) -> None:
        try:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if end:
                os.lseek(self._handle, 0, os.SEEK_END)
            self.problem = None
        except OSError as error:
            if self._device:
                self._open_journal(error)

    def _open_journal(self, refused: OSError) -> None:
        """Where the log itself is closed to us (kernel.dmesg_restrict) the journal may not be."""
        argv = ["journalctl", "--dmesg", "--follow", "--lines=0", "--output=short-monotonic"]
        try:
            self._journal = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            self.problem = f"{self._path}: {refused.strerror}, and there is no journalctl"
            return
        assert self._journal.stdout is not None  # noqa: S101 - asked for above
        self._handle = self._journal.stdout.fileno()
        os.set_blocking(self._handle, False)

    def read(self) -> list[Event]:
        """The events since the last look."""
        if self._handle < 0:
            if not self._device:
                self._open(end=False)  # the file is there now, or not yet
            return []
        found = []
        for _ in range(_AT_ONCE):
            try:
                data = os.read(self._handle, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before we read them
            except OSError as error:
                self.problem = f"{self._path}: {error.strerror}"
                break
            if not data:
                if self._journal is not None and self._journal.poll() is not None:
                    self.problem = f"journalctl ended with {self._journal.returncode}"
                    self.close()
                break
            found += self._events(data)
        return found

    def _events(self, data: bytes) -> list[Event]:
        if self._device and self._journal is None:
            lines = [data]  # a read of the device is one record, with its own continuation lines
        else:
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-8192:]
        events = (parse_record(line.decode("utf-8", "replace")) for line in lines)
        return [one for one in events if one is not None]

    def close(self) -> None:
        """Let go."""
        if self._journal is not None:
            with contextlib.suppress(OSError):
                self._journal.kill()
            self._journal.wait()
            if self._journal.stdout is not None:
                self._journal.stdout.close()
            self._journal, self._handle = None, -1
        elif self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
