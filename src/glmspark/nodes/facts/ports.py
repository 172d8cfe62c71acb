"""Which TCP ports of a node are listened on, and by which process.

The kernel's socket table names each listener's address and socket inode; the owner is the process that has
that inode open. Without root only one's own processes can be looked into, so an owner may stay unknown.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from dataclasses import dataclass

from glmspark.nodes.facts import Fact

LISTEN = "0A"


@dataclass(frozen=True)
class Listener:
    """One listening TCP socket. address: as text, '0.0.0.0' and '::' mean all. uid: the owning user."""

    address: str
    port: int
    uid: int
    inode: int

    def covers(self, address: str) -> bool:
        """Whether binding `address` at the same port would fail because of this socket.

        A wildcard on either side is in the way. '::' also takes IPv4 (Linux sockets are dual by default).
        """
        mine, wanted = ipaddress.ip_address(self.address), ipaddress.ip_address(address)
        mapped = getattr(mine, "ipv4_mapped", None)
        mine = mapped or mine
        if mine.version == wanted.version:
            return mine == wanted or mine.is_unspecified or wanted.is_unspecified
        return (mine.is_unspecified and mine.version == 6) or (wanted.is_unspecified and wanted.version == 6)


@dataclass(frozen=True)
class Owner:
    """A process that has a socket open."""

    pid: int
    inode: int


def _address(field: str) -> tuple[str, int]:
    host, _, port = field.partition(":")
    words = bytes.fromhex(host)
    if len(words) not in (4, 16):
        raise ValueError(f"not an address of the socket table: {field!r}")
    if sys.byteorder == "little":  # the table prints each 32-bit word in the machine's own byte order
        words = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    return str(ipaddress.ip_address(words)), int(port, 16)


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Listening sockets from the text of /proc/net/tcp and /proc/net/tcp6, one after the other.

    Raises ValueError for a row that is not one of that table.
    """
    found = []
    for line in text.splitlines():
        fields = line.split()
        if not fields or fields[0] == "sl":
            continue
        if len(fields) < 10 or not fields[0].endswith(":"):
            raise ValueError(f"not a row of the socket table: {line.strip()!r}")
        if fields[3] == LISTEN:
            address, port = _address(fields[1])
            found.append(Listener(address, port, uid=int(fields[7]), inode=int(fields[9])))
    return tuple(found)


_LINK = re.compile(r"^/proc/(\d+)/fd/\d+ socket:\[(\d+)\]$")


def parse_socket_owners(text: str) -> tuple[Owner, ...]:
    """Owners from lines `/proc/PID/fd/N socket:[INODE]`. Other lines are skipped: processes come and go."""
    found = []
    for line in text.splitlines():
        match = _LINK.match(line.strip())
        if match:
            found.append(Owner(pid=int(match[1]), inode=int(match[2])))
    return tuple(dict.fromkeys(found))


LISTENERS = Fact("listening ports", ("cat", "/proc/net/tcp", "/proc/net/tcp6"), parse_listeners, partial=(1,))


def socket_owners(inodes: list[int]) -> Fact[tuple[Owner, ...]]:
    """The fact "which processes have these socket inodes open". Raises ValueError for an empty list."""
    if not inodes:
        raise ValueError("no socket inode given")
    names: list[str] = []
    for inode in inodes:
        names += ["-o", "-lname", rf"socket:\[{inode}\]"]
    command = ("find", "/proc", "-maxdepth", "3", "-path", "/proc/[0-9]*/fd/*", "(", *names[1:], ")")
    return Fact("socket owners", (*command, "-printf", r"%p %l\n"), parse_socket_owners, partial=(1,))


def command_line(pid: int) -> Fact[str]:
    """The fact "what is this process": its argv joined by blanks, or '' when it has ended."""
    return Fact(
        f"command of process {pid}", ("cat", f"/proc/{pid}/cmdline"), parse_command_line, partial=(1,)
    )


def parse_command_line(text: str) -> str:
    """The text of /proc/PID/cmdline for people: NUL bytes become blanks."""
    return text.replace("\0", " ").strip()
