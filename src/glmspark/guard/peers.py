"""Copies of the ring on another node, so that what a node saw outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import stat
import threading
import time
from collections.abc import Callable

from .config import Config, Peer
from .files import Trouble, make_dir, say, write_whole
from .ring import segment_time, trim
from .seal import LARGEST, Header, digest_of, new_nonce, parse_header, parse_nonce, thanked

_TIMEOUT, _WHOLE = 5.0, 30.0
_LINE = 4096
_AGAIN = 15.0


def read_secret(path: str) -> bytes:
    """The cluster's secret. Raises Trouble for a file that others can read, or that holds too little."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            about = os.fstat(handle)
            secret = os.read(handle, 4096).strip()
        finally:
            os.close(handle)
    except OSError as error:
        raise Trouble(f"{path}: {error.strerror}") from error
    if stat.S_IMODE(about.st_mode) & 0o077:
        raise Trouble(f"{path} can be read by others", next=f"chmod 600 {path}")
    if len(secret) < 32:
        raise Trouble(f"{path} holds less than 32 bytes", next="`glmspark tune apply --only guard` writes it")
    return secret


def send(peer: Peer, port: int, secret: bytes, header: Header, data: bytes) -> None:
    """Give a copy to a peer. Raises OSError, or Trouble where it does not take it."""
    connection = socket.create_connection((peer.address, port), timeout=_TIMEOUT)
    with connection, connection.makefile("rb") as lines:
        nonces = (parse_nonce(lines.readline(_LINE)), new_nonce())
        connection.sendall(header.sealed(secret, nonces) + data)
        if not thanked(lines.readline(_LINE), header, secret, nonces):
            raise Trouble(f"{peer.node} did not thank for the copy as a guard of this cluster does")


def receive(
    connection: socket.socket, secret: bytes, known: frozenset[str], keep: Callable[[Header, bytes], None]
) -> None:
    """Take a copy from whoever has connected, keep it, and give thanks. known: nodes that may send.

    Raises OSError or Trouble.
    """
    mine = new_nonce()
    connection.sendall(json.dumps({"version": 1, "nonce": mine}).encode() + b"\n")
    end = time.monotonic() + _TIMEOUT
    line = b""
    while b"\n" not in line and len(line) < _LINE:
        line += _some(connection, 1 << 16, end)
    line, ends, rest = line.partition(b"\n")
    header, nonces = parse_header(line[:_LINE] + ends, secret, mine)
    if header.node not in known:
        raise Trouble(f"{header.node} is none of this cluster's other nodes")
    end = time.monotonic() + _WHOLE
    came = bytearray(rest)
    while len(came) < header.size:
        came += _some(connection, header.size - len(came), end)
    data = bytes(came)
    if digest_of(data) != header.digest:
        raise Trouble(f"the copy from {header.node} did not arrive whole")
    keep(header, data)
    connection.sendall(json.dumps({"thanks": header.seal(secret, nonces, "thanks")}).encode() + b"\n")


def _some(connection: socket.socket, most: int, end: float) -> bytes:
    """More bytes, until a moment: whoever sends one now and then must not keep all others out."""
    left = end - time.monotonic()
    connection.settimeout(max(0.001, left))
    data = connection.recv(min(most, 1 << 16))
    if not data:
        raise Trouble("the connection was closed")
    return data


class Sender:
    """Sends the ring's files to the first peer that takes them, in a thread. ring: their directory."""

    def __init__(self, config: Config, secret: bytes, ring: str) -> None:
        self.sent: dict[str, object] | None = None
        self.problem: str | None = None
        self._config = config
        self._secret = secret
        self._ring = ring
        self._work: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, name: str) -> None:
        """Have a file sent."""
        self._work.put(name)

    def _run(self) -> None:
        left: list[str] = []
        while True:
            with contextlib.suppress(queue.Empty):  # then it is time to try those again that nobody took
                left.append(self._work.get(timeout=_AGAIN if left else None))
            left = [name for name in dict.fromkeys(left[-60:]) if not self._give(name)]

    def _give(self, name: str) -> bool:
        """Whether the file needs no more sending."""
        try:
            with open(f"{self._ring}/{name}", "rb") as file:  # noqa: PTH123
                data = file.read(LARGEST)
        except OSError:
            return True  # it has left the ring
        header = Header(self._config.node, name, len(data), digest_of(data))
        for peer in self._config.peers:
            try:
                send(peer, self._config.peer_port, self._secret, header, data)
            except (OSError, ValueError, Trouble) as error:
                self.problem = f"{peer.node}: {error}"
                continue
            self.sent = {"to": peer.node, "name": name, "time": round(time.time(), 1)}
            self.problem = None
            return True
        return False


class Receiver:
    """Takes copies from peers, in a thread. home: the guard's directory."""

    def __init__(
        self, config: Config, secret: bytes, home: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self._secret = secret
        self._home = home
        self._clock = clock
        self._known = frozenset(peer.node for peer in config.peers)
        self._said: dict[str, float] = {}
        self._socket = socket.create_server((config.listen or "127.0.0.1", config.peer_port), backlog=8)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(_TIMEOUT)
                try:
                    receive(connection, self._secret, self._known, self._keep)
                except (OSError, Trouble) as error:
                    self._complain(str(address[0]), str(error))

    def _keep(self, header: Header, data: bytes) -> None:
        directory = f"{self._home}/peers/{header.node}"
        make_dir(f"{self._home}/peers", group=self._config.group)
        make_dir(directory, group=self._config.group)
        write_whole(f"{directory}/{header.name}", data, group=self._config.group)
        # By the sender's clock: where that is wrong, its copies are no older for it.
        trim(directory, now=segment_time(header.name))

    def _complain(self, address: str, what: str) -> None:
        """Once a minute and address: whoever knocks must not fill the log."""
        now = time.monotonic()
        if now - self._said.get(address, -60.0) >= 60.0:
            self._said = {one: at for one, at in self._said.items() if now - at < 60.0} | {address: now}
            say(f"refused a copy from {address}: {what}")

    def close(self) -> None:
        """Take no more."""
        self._socket.close()
