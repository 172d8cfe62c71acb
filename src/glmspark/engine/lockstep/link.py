"""A connection between two ranks that have proven themselves: whole frames, each authenticated.

A frame is a header of 72 bytes and a payload:

    length of the payload (8 bytes, big endian) | SHA-256 of the payload | code

with code = HMAC-SHA256(key, counter | length | SHA-256). Each direction has a key of its own, and a counter
that is not sent but kept by both sides, so a frame that is altered, left out, repeated or out of order
fails. The header is checked before a byte of the payload is read or room is made for it, the payload before
it is handed on: nothing of a stranger's is ever interpreted. The digest is made once for a frame that goes to
several ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import struct
from dataclasses import dataclass

from glmspark.engine.lockstep import LockstepError

HEADER = struct.Struct("!Q32s32s")
_SIGNED = struct.Struct("!QQ32s")

MOST = 1 << 30
"""Bytes of the largest payload. A step's calls are some kilobytes; images and profiles are larger."""

STALL = 30
"""Seconds a peer may take within a frame, in either direction."""

KEEPALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 4}
"""Silence of idle + interval * count = 7 seconds from its kernel means that a peer's machine is gone."""

UNSENT = 8000
"""Milliseconds after which data that no machine has confirmed means the same."""


class LinkError(LockstepError):
    """A connection is of no use any more: the message says what was seen."""


class ClosedError(LinkError):
    """The peer has closed the connection, or has died."""


@dataclass(frozen=True)
class Frame:
    """A payload and its digest, to be sent on any number of links."""

    payload: bytes
    digest: bytes

    @classmethod
    def of(cls, payload: bytes) -> Frame:
        """Digest `payload`. Raises LinkError where it is larger than any peer would take."""
        if len(payload) > MOST:
            raise LinkError(f"a call of {len(payload)} bytes; at most {MOST} can be sent")
        return cls(payload, hashlib.sha256(payload).digest())


class Link:
    """One side of a connection. key_out, key_in: this side's and the other's. peer: for messages."""

    def __init__(self, sock: socket.socket, key_out: bytes, key_in: bytes, peer: str) -> None:
        self.sock = sock
        self.peer = peer
        self._key_out, self._key_in = key_out, key_in
        self._sent = self._received = 0
        sock.settimeout(None)
        limit = struct.pack("ll", STALL, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        if sock.family in {socket.AF_INET, socket.AF_INET6}:
            tune(sock)

    def fileno(self) -> int:
        """The socket's, for poll."""
        return self.sock.fileno()

    def send(self, frame: Frame) -> None:
        """Send one frame. Raises LinkError where the peer is gone or takes nothing for STALL seconds."""
        size = len(frame.payload)
        code = _code(self._key_out, self._sent, size, frame.digest)
        self._sent += 1
        parts = [memoryview(HEADER.pack(size, frame.digest, code)), memoryview(frame.payload)]
        try:
            while parts:
                taken = self.sock.sendmsg(parts)
                while parts and taken >= len(parts[0]):
                    taken -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][taken:]
        except BlockingIOError:
            raise LinkError(f"{self.peer} took nothing for {STALL} s") from None
        except OSError as error:
            raise ClosedError(f"{self.peer}{_reason(error)}") from error

    def last(self, frame: Frame, seconds: int) -> None:
        """Send a last frame, within `seconds`, and end this direction. Raises LinkError as `send` does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, 0))
        self.send(frame)
        with contextlib.suppress(OSError):  # the peer has gone since
            self.sock.shutdown(socket.SHUT_WR)

    def receive(self) -> bytes:
        """The payload of the next frame; waits for its beginning as long as the peer lives.

        Raises ClosedError where the connection ends between frames, LinkError where it ends within one or
        stalls there, or where a frame is not what the peer sent next.
        """
        size, digest, code = HEADER.unpack(self._read(HEADER.size, begin=True))
        expected = _code(self._key_in, self._received, size, digest)
        if not hmac.compare_digest(code, expected):
            raise LinkError(
                f"frame {self._received} from {self.peer} is not authentic: "
                f"altered, repeated, out of order, or not from that rank"
            )
        if size > MOST:
            raise LinkError(f"{self.peer} announces a frame of {size} bytes; at most {MOST} are taken")
        payload = self._read(size)
        if not hmac.compare_digest(hashlib.sha256(payload).digest(), digest):
            raise LinkError(f"frame {self._received} from {self.peer} was altered on its way")
        self._received += 1
        return bytes(payload)

    def _read(self, size: int, *, begin: bool = False) -> bytearray:
        """Exactly `size` bytes. begin: nothing of the frame has come yet, so waiting is no stall."""
        data = bytearray(size)
        view, have = memoryview(data), 0
        while have < size:
            try:
                got = self.sock.recv_into(view[have:])
            except BlockingIOError:
                if begin and not have:
                    continue
                raise LinkError(f"{self.peer} stalled for {STALL} s within a frame") from None
            except OSError as error:
                raise ClosedError(f"{self.peer}{_reason(error)}") from error
            if not got:
                if begin and not have:
                    raise ClosedError(f"{self.peer} closed the connection")
                raise LinkError(f"{self.peer} closed the connection within a frame")
            have += got
        return data

    def close(self) -> None:
        """End the connection, in both directions."""
        with contextlib.suppress(OSError):  # the peer was first
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def tune(sock: socket.socket) -> None:
    """Send at once, and notice a machine that has vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT)


def _code(key: bytes, counter: int, size: int, digest: bytes) -> bytes:
    return hmac.digest(key, _SIGNED.pack(counter, size, digest), "sha256")


def _reason(error: OSError) -> str:
    """What a message says after the peer's name. A killed process closes, or resets, its connections."""
    text = (error.strerror or str(error)).lower()
    return f" closed the connection ({text})" if isinstance(error, ConnectionError) else f": {text}"
