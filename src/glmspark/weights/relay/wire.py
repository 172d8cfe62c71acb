"""The data path: a TCP connection between two nodes' fabric addresses, proven by the transfer's secret.

Encrypted, both sides show the transfer's one certificate, made for it and trusted alone (TLS 1.3). Where both
have the cryptography package, TLS then carries one key for each direction, and the data goes in records of
AES-GCM that are sixteen times as large as TLS's: a fifth of its processor time. On a fabric said to be
trusted, both prove with HMAC that they know the secret, and the data goes as it is. What says which data it
is (requests, chunks' numbers and hashes) is authenticated there too: a bit that turns over in these would put
right bytes into a wrong place.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any

from .store import TransferError

_LINE = 1 << 26
_NONCE = 32
TIMEOUT = 30.0
"""Seconds without a byte after which a connection is given up."""
_MARK = 32
_TAG = 16
_RECORD = (1 << 14) + 512
"""Bytes of a TLS record at most (RFC 8446, 5.2: 2^14 + 256, and its header)."""
PIECE = 1 << 18
"""Bytes encrypted, sent or received in one go."""


class Wire:
    """One connection. key: {"pem": certificate and key} or {"secret": hex}."""

    def __init__(self, plain: socket.socket, key: Mapping[str, str], *, server: bool) -> None:
        self.socket = plain
        plain.settimeout(TIMEOUT)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._marks: tuple[_Marks, _Marks] | None = None  # of what is sent, of what is received
        if "pem" in key:
            context = _context(key["pem"], server=server)
            encrypted = _Encrypted(plain, context, server=server)
            self._link: _Plain | _Encrypted | _Sealed = sealed(encrypted) or encrypted
        else:
            self._link = _Plain(plain)
            self._marks = self._prove(bytes.fromhex(key["secret"]), server=server)
        # From here on the kernel keeps the time: one call waits for all of its bytes, without Python's poll.
        self.patience(TIMEOUT)
        self.socket.settimeout(None)

    def patience(self, seconds: float) -> None:
        """How long to wait for the other side, 0: for ever."""
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(seconds), 0))

    def _prove(self, secret: bytes, *, server: bool) -> tuple[_Marks, _Marks]:
        mine = secrets.token_bytes(_NONCE)
        self._link.send(mine)
        theirs = bytes(self.receive(_NONCE))
        sides = (b"server", b"client") if server else (b"client", b"server")
        self._link.send(hmac.digest(secret, sides[0] + mine + theirs, "sha256"))
        if not hmac.compare_digest(self.receive(32), hmac.digest(secret, sides[1] + theirs + mine, "sha256")):
            raise ConnectionError("the other side does not know this transfer's secret")
        own, other = b"marks of " + sides[0], b"marks of " + sides[1]
        return (
            _Marks(hmac.digest(secret, own + mine + theirs, "sha256")),
            _Marks(hmac.digest(secret, other + theirs + mine, "sha256")),
        )

    def receive(self, count: int, into: bytearray | None = None) -> memoryview:
        """Exactly so many bytes. Raises ConnectionError or OSError where the connection ends before."""
        view = memoryview(into if into is not None else bytearray(count))[:count]
        self._link.fill(view)
        return view

    def send(self, *parts: bytes | memoryview) -> None:
        """All of it."""
        for part in parts:
            self._link.send(part)

    def say(self, data: bytes) -> None:
        """Bytes that come as they are or not at all, on a trusted fabric as well."""
        self.send(data if self._marks is None else data + self._marks[0].next(data))

    def hear(self, count: int) -> memoryview:
        """So many bytes that were said. Raises ConnectionError where they are not those."""
        return self._checked(self.receive(count))

    def _checked(self, data: memoryview) -> memoryview:
        if self._marks is not None and not hmac.compare_digest(
            self.receive(_MARK), self._marks[1].next(data)
        ):
            raise ConnectionError("a message was changed on the way")
        return data

    def send_json(self, value: Any) -> None:
        """A message: four bytes of length, then JSON."""
        raw = json.dumps(value).encode()
        self.say(len(raw).to_bytes(4, "little") + raw)

    def receive_json(self) -> Any:
        """A message. Raises ConnectionError for what is none."""
        head = bytes(self.receive(4))
        length = int.from_bytes(head, "little")
        if length > _LINE:
            raise ConnectionError(f"a message of {length} bytes")
        raw = self._checked(memoryview(head + bytes(self.receive(length))))[4:]
        try:
            return json.loads(bytes(raw))
        except ValueError:
            raise ConnectionError("a message that is not JSON") from None

    def close(self) -> None:
        """Let go of it."""
        try:
            self.socket.close()
        except OSError:
            return


class _Marks:
    """One direction's authentication: of each message with its number, so that none is left out, repeated or
    of another connection."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def next(self, data: bytes | memoryview) -> bytes:
        """The mark of the next message."""
        self._count += 1
        return hmac.digest(self._key, self._count.to_bytes(8, "little") + bytes(data), "sha256")


class _Plain:
    """Bytes as they are."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain

    def fill(self, view: memoryview) -> None:
        """Receive until the view is full."""
        while view:
            done = self._socket.recv_into(view, len(view), socket.MSG_WAITALL)
            if done == 0:
                raise ConnectionError("the connection ended")
            view = view[done:]

    def send(self, data: bytes | memoryview) -> None:
        """All of it."""
        self._socket.sendall(data)


class _Encrypted:
    """TLS over buffers of ours: Python's own socket makes two system calls for every 16 KiB of it."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        self._socket = plain
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)
        self._buffer = bytearray(PIECE)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._more()
            except ssl.SSLError:
                self._flush()  # the alert that says why
                raise
            else:
                self._flush()
                return

    @property
    def socket(self) -> socket.socket:
        """What it goes over."""
        return self._socket

    def rest(self) -> bytes:
        """What was received and is not TLS's any more."""
        return self._in.read()

    def fill(self, view: memoryview) -> None:
        """Receive until the view is full."""
        while view:
            try:
                done = self._tls.read(len(view), view)  # type: ignore[arg-type]
            except ssl.SSLWantReadError:
                self._flush()
                # What is encrypted is no shorter than what it says, and OpenSSL holds a part of a record at
                # most: so much comes in any case.
                self._more(len(view) - self._in.pending - _RECORD)
                continue
            if not done:
                raise ConnectionError("the connection ended")
            view = view[int(done) :]

    def send(self, data: bytes | memoryview) -> None:
        """All of it."""
        view = memoryview(data)
        for at in range(0, len(view), PIECE):
            self._tls.write(view[at : at + PIECE])  # type: ignore[arg-type]
            self._flush()

    def _flush(self) -> None:
        if self._out.pending:
            self._socket.sendall(self._out.read())

    def _more(self, at_least: int = 0) -> None:
        """Receive what is there; or so many bytes in one call: a slow link brings little at a time."""
        if at_least > 0:
            count = self._socket.recv_into(self._buffer, min(at_least, PIECE), socket.MSG_WAITALL)
        else:
            count = self._socket.recv_into(self._buffer)
        if count == 0:
            raise ConnectionError("the connection ended")
        self._in.write(memoryview(self._buffer)[:count])


def sealed(tls: _Encrypted) -> _Sealed | None:
    """What goes on with keys of this connection's own, which both sides make and TLS carries; None where one
    side cannot."""
    algorithm = aes_gcm()
    mine = secrets.token_bytes(32)
    tls.send(bytes([algorithm is not None]) + mine)
    theirs = bytearray(33)
    tls.fill(memoryview(theirs))
    if algorithm is None or not theirs[0]:
        return None
    from cryptography.exceptions import InvalidTag

    return _Sealed(tls, algorithm(mine), algorithm(bytes(theirs[1:])), InvalidTag)


def aes_gcm() -> Any:
    """The cryptography package's AES-GCM, None where this Python has none that writes into given memory."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return None
    return AESGCM if hasattr(AESGCM, "encrypt_into") and hasattr(AESGCM, "decrypt_into") else None


class _Sealed:
    """Records: four bytes of length, the data, and its tag. Each direction has a key of its own, used for
    this connection alone, and counts its records: none can be left out, repeated or moved."""

    def __init__(self, tls: _Encrypted, mine: Any, theirs: Any, invalid: type[Exception]) -> None:
        self._invalid = invalid
        self._socket = tls.socket
        self._mine, self._theirs = mine, theirs
        self._sent = self._received = 0
        self._out = bytearray(4 + PIECE + _TAG)
        self._in = bytearray(PIECE + _TAG)
        self._opened = bytearray(PIECE)
        self._left = memoryview(b"")
        # The other side may have begun while TLS still read.
        self._raw = memoryview(tls.rest())

    def send(self, data: bytes | memoryview) -> None:
        """All of it."""
        view = memoryview(data)
        out = memoryview(self._out)
        for at in range(0, len(view), PIECE):
            piece = view[at : at + PIECE]
            end = 4 + len(piece) + _TAG
            out[:4] = len(piece).to_bytes(4, "little")
            nonce = self._sent.to_bytes(12, "little")
            self._mine.encrypt_into(nonce, piece, bytes(out[:4]), out[4:end])
            self._sent += 1
            self._socket.sendall(out[:end])

    def fill(self, view: memoryview) -> None:
        """Receive until the view is full."""
        while view:
            if not self._left:
                count = self._record(view)
                view = view[count:]
                continue
            count = min(len(view), len(self._left))
            view[:count] = self._left[:count]
            view, self._left = view[count:], self._left[count:]

    def _record(self, view: memoryview) -> int:
        """Open the next record into the view, or keep it where it is larger; how much came into the view.

        Raises ConnectionError for one that is not what was sent."""
        head = bytearray(4)
        self._receive(memoryview(head))
        count = int.from_bytes(head, "little")
        if not 0 < count <= PIECE:
            raise ConnectionError("a record of an impossible length")
        body = memoryview(self._in)[: count + _TAG]
        self._receive(body)
        fits = count <= len(view)
        target = view[:count] if fits else memoryview(self._opened)[:count]
        try:
            self._theirs.decrypt_into(self._received.to_bytes(12, "little"), body, bytes(head), target)
        except self._invalid:
            raise ConnectionError("a record was changed on the way") from None
        self._received += 1
        if not fits:
            self._left = target
        return count if fits else 0

    def _receive(self, view: memoryview) -> None:
        count = min(len(self._raw), len(view))
        view[:count] = self._raw[:count]
        self._raw, view = self._raw[count:], view[count:]
        while view:
            done = self._socket.recv_into(view, len(view), socket.MSG_WAITALL)
            if done == 0:
                raise ConnectionError("the connection ended")
            view = view[done:]


def _context(pem: str, *, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    # The key never lies in a file: OpenSSL reads it from memory that has a name only in this process.
    handle = os.memfd_create("transfer", os.MFD_CLOEXEC)
    try:
        os.write(handle, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{handle}")
        context.load_verify_locations(cadata=pem[pem.index("-----BEGIN CERT") :])
    finally:
        os.close(handle)
    return context


def connect(address: str, key: Mapping[str, str]) -> Wire:
    """A connection to another node's relay, IP:PORT. Raises OSError (ssl.SSLError is one)."""
    host, _, port = address.rpartition(":")
    plain = socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT)
    try:
        return Wire(plain, key, server=False)
    except BaseException:
        plain.close()
        raise


def listen(address: str) -> socket.socket:
    """A listening socket on one address, at a free port. Raises TransferError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.bind((address, 0))
        server.listen(16)
    except OSError as error:
        server.close()
        raise TransferError(
            f"cannot listen on {address}: {error.strerror}",
            step="bind to the fabric address",
            advice="check the node's fabric address in cluster.yaml: `glmspark doctor`",
        ) from None
    return server
