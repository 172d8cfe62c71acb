"""How two guards prove to one another that they belong to the same cluster, and what they send.

The receiver says a nonce; the sender answers with a header that is sealed by both nonces and the cluster's
secret (HMAC-SHA256), and with the bytes, whose hash the header holds; the receiver seals its thanks. Nothing
is secret in what is sent; nobody without the secret can send it, or send it again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config import NODE_NAME
from .files import Trouble
from .ring import SEGMENT

LARGEST = 8 * 2**20
"""Bytes of a copy at most: a minute of the ring takes 250 kB."""
_HEX = re.compile(r"[0-9a-f]{64}")
_NONCE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Header:
    """What is to come. node: whose it is; name: the ring's file; size: bytes; digest: SHA-256 of them."""

    node: str
    name: str
    size: int
    digest: str

    def sealed(self, secret: bytes, nonces: tuple[str, str]) -> bytes:
        """The line that announces it. nonces: the receiver's and the sender's."""
        said = {
            "node": self.node,
            "name": self.name,
            "size": self.size,
            "digest": self.digest,
            "nonce": nonces[1],
            "seal": self.seal(secret, nonces, "copy"),
        }
        return json.dumps(said).encode() + b"\n"

    def seal(self, secret: bytes, nonces: tuple[str, str], what: str) -> str:
        """The seal of a copy, or of the thanks for it (`what`)."""
        words = ("glmspark guard 1", what, *nonces, self.node, self.name, str(self.size), self.digest)
        return hmac.new(secret, "\n".join(words).encode(), hashlib.sha256).hexdigest()


def new_nonce() -> str:
    """A number never used before."""
    return os.urandom(16).hex()


def digest_of(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def parse_nonce(line: bytes) -> str:
    """The receiver's nonce in its first line. Raises Trouble."""
    value = _value(line)
    nonce = value.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise Trouble("no guard answers there")
    return nonce


def parse_header(line: bytes, secret: bytes, mine: str) -> tuple[Header, tuple[str, str]]:
    """The header in a line, with both nonces; mine: the one that was said. Raises Trouble."""
    value = _value(line)
    node, name, size, digest, nonce, seal = (
        value.get(key) for key in ("node", "name", "size", "digest", "nonce", "seal")
    )
    if not (
        isinstance(node, str)
        and NODE_NAME.fullmatch(node)
        and isinstance(name, str)
        and SEGMENT.fullmatch(name)
        and isinstance(size, int)
        and not isinstance(size, bool)
        and 0 <= size <= LARGEST
        and isinstance(digest, str)
        and _HEX.fullmatch(digest)
        and isinstance(nonce, str)
        and _NONCE.fullmatch(nonce)
        and isinstance(seal, str)
    ):
        raise Trouble("not a guard's header")
    header, nonces = Header(node, name, size, digest), (mine, nonce)
    if not hmac.compare_digest(seal.encode("utf-8", "replace"), header.seal(secret, nonces, "copy").encode()):
        raise Trouble("a stranger, or a guard of another cluster")
    return header, nonces


def thanked(line: bytes, header: Header, secret: bytes, nonces: tuple[str, str]) -> bool:
    """Whether a line is the receiver's thanks for a copy."""
    said = str(_value(line).get("thanks")).encode("utf-8", "replace")
    return hmac.compare_digest(said, header.seal(secret, nonces, "thanks").encode())


def _value(line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Trouble("no guard answers there")
    return value
