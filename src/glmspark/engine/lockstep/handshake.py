"""How two ranks prove to each other that they share the secret, before either believes a word of the other.

    follower -> rank 0   magic, rank, nonce
    rank 0 -> follower   magic, nonce, HMAC(secret, "rank 0 proves" | transcript)
    follower -> rank 0   HMAC(secret, "follower proves" | transcript)

The transcript is the digest of magic, rank and both nonces, so neither proof can be replayed, nor reflected:
the labels differ. Both then derive the link's two keys from secret and transcript. All messages have a fixed
size, and a peer that does not send one in time is dropped.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time

from glmspark.engine.lockstep import LockstepError
from glmspark.engine.lockstep.link import Link

MAGIC = b"glmspark lockstep 1\n"
NONCE = 32
PATIENCE = 10.0
"""Seconds for the whole exchange."""

_HELLO = struct.Struct(f"!{len(MAGIC)}sI{NONCE}s")
_ANSWER = struct.Struct(f"!{len(MAGIC)}s{NONCE}s32s")
_PROOF = 32


class HandshakeError(LockstepError):
    """The peer is not a rank of this deployment, or not in time."""


def prove_to_follower(sock: socket.socket, secret: bytes, world: int, peer: str) -> tuple[int, Link]:
    """Rank 0's side on a fresh connection: the peer's rank and the link. Raises HandshakeError."""
    end = time.monotonic() + PATIENCE
    magic, rank, theirs = _HELLO.unpack(_read(sock, _HELLO.size, end, peer))
    if magic != MAGIC:
        raise HandshakeError(f"{peer} does not speak this protocol")
    if not 0 < rank < world:
        raise HandshakeError(f"{peer} says it is rank {rank}; there are ranks 1 to {world - 1}")
    ours = os.urandom(NONCE)
    transcript = _transcript(rank, theirs, ours)
    _write(sock, _ANSWER.pack(MAGIC, ours, _sign(secret, b"rank 0 proves", transcript)), end, peer)
    proof = _read(sock, _PROOF, end, peer)
    if not hmac.compare_digest(proof, _sign(secret, b"follower proves", transcript)):
        raise HandshakeError(f"{peer} says it is rank {rank} and has another secret")
    out, back = _keys(secret, transcript)
    return rank, Link(sock, out, back, f"rank {rank} ({peer})")


def prove_to_leader(sock: socket.socket, secret: bytes, rank: int, peer: str) -> Link:
    """A follower's side on a fresh connection to rank 0. Raises HandshakeError."""
    end = time.monotonic() + PATIENCE
    ours = os.urandom(NONCE)
    _write(sock, _HELLO.pack(MAGIC, rank, ours), end, peer)
    magic, theirs, proof = _ANSWER.unpack(_read(sock, _ANSWER.size, end, peer))
    if magic != MAGIC:
        raise HandshakeError(f"{peer} does not speak this protocol: it is not rank 0 of this deployment")
    transcript = _transcript(rank, ours, theirs)
    if not hmac.compare_digest(proof, _sign(secret, b"rank 0 proves", transcript)):
        raise HandshakeError(
            f"rank 0 at {peer} has another secret: compare the secret's file on both machines"
        )
    _write(sock, _sign(secret, b"follower proves", transcript), end, peer)
    out, back = _keys(secret, transcript)
    return Link(sock, back, out, f"rank 0 ({peer})")


def _transcript(rank: int, follower: bytes, leader: bytes) -> bytes:
    return hashlib.sha256(_HELLO.pack(MAGIC, rank, follower) + leader).digest()


def _sign(secret: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, label + b"\0" + transcript, "sha256")


def _keys(secret: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    """The key of rank 0's frames and that of the follower's."""
    return _sign(secret, b"from rank 0", transcript), _sign(secret, b"to rank 0", transcript)


def _read(sock: socket.socket, size: int, end: float, peer: str) -> bytes:
    data = b""
    while len(data) < size:
        try:
            sock.settimeout(max(end - time.monotonic(), 0.001))
            got = sock.recv(size - len(data))
        except TimeoutError:
            raise HandshakeError(f"{peer} did not prove itself within {PATIENCE:.0f} s") from None
        except OSError as error:
            raise HandshakeError(f"{peer}: {error.strerror or error}") from error
        if not got:
            raise HandshakeError(f"{peer} closed the connection instead of proving itself")
        data += got
    return data


def _write(sock: socket.socket, data: bytes, end: float, peer: str) -> None:
    try:
        sock.settimeout(max(end - time.monotonic(), 0.001))
        sock.sendall(data)
    except OSError as error:
        raise HandshakeError(f"{peer}: {error.strerror or error}") from error
