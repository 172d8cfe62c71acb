"""How two agents prove who they are, and seal what they say to one another."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .spec import Spec


def proof(secret: str, side: str, nonces: tuple[str, str], who: str) -> str:
    """What only an agent with the secret can say. side: server, client, or session for the session's key."""
    words = "\n".join(("glmspark watch 1", side, *nonces, who))
    return hmac.new(bytes.fromhex(secret), words.encode(), hashlib.sha256).hexdigest()


def _right(said: object, expected: str) -> bool:
    """Whether a peer said the proof expected; what a stranger says may be anything."""
    return hmac.compare_digest(str(said).encode("utf-8", "replace"), expected.encode())


class Seal:
    """Seals and opens lines in one direction of a session; a lost, repeated or foreign line does not open."""

    def __init__(self, key: str, direction: str) -> None:
        self._key = bytes.fromhex(key)
        self._direction = direction
        self._count = 0

    def _mac(self, text: bytes) -> bytes:
        head = f"{self._direction} {self._count} ".encode()
        return hmac.new(self._key, head + text, hashlib.sha256).hexdigest().encode()

    def seal(self, message: Mapping[str, Any]) -> bytes:
        """The line to send."""
        text = json.dumps(message).encode()
        line = self._mac(text) + b" " + text + b"\n"
        self._count += 1
        return line

    def open(self, line: bytes) -> dict[str, Any]:
        """The message in a line. Raises ValueError for one that is not the next of the peer."""
        mac, _, text = line.rstrip(b"\n").partition(b" ")
        if not hmac.compare_digest(mac, self._mac(text)):
            raise ValueError("a line without the right seal")
        self._count += 1
        message = json.loads(text)
        if not isinstance(message, dict):
            raise ValueError("a line that is no message")
        return message


@dataclass
class Peer:
    """An agent whose identity is proven. heard: when it last said something (monotonic seconds)."""

    rank: int
    node: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    mine: Seal
    theirs: Seal
    heard: float

    def send(self, message: Mapping[str, Any]) -> None:
        """Say something, as far as the connection takes it."""
        if not self.writer.is_closing():
            self.writer.write(self.mine.seal(message))


async def say_line(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    """Write a message as one line of JSON."""
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def _hear_line(reader: asyncio.StreamReader) -> dict[str, Any]:
    line = await reader.readline()
    try:
        message = json.loads(line) if line.endswith(b"\n") else None
    except RecursionError:  # brackets without end
        message = None
    if not isinstance(message, dict):
        raise ValueError("the connection was closed" if not line else "not the watch's greeting")
    return message


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, spec: Spec) -> Peer:
    """The server's half of the greeting: both sides prove that they have the deployment's secret."""
    mine = secrets.token_hex(16)
    await say_line(writer, {"nonce": mine})
    hello = await _hear_line(reader)
    rank, node, nonces = hello.get("rank"), str(hello.get("node")), (mine, str(hello.get("nonce")))
    who = f"{spec.id} {rank} {node}"
    if not _right(hello.get("proof"), proof(spec.secrets["watch"], "client", nonces, who)):
        raise ValueError("a stranger")
    if not isinstance(rank, int) or not 0 < rank < spec.world:
        raise ValueError(f"it says it is rank {rank}")
    answer = proof(spec.secrets["watch"], "server", nonces, f"{who} {spec.node}")
    await say_line(writer, {"node": spec.node, "proof": answer})
    key = proof(spec.secrets["watch"], "session", nonces, who)
    return Peer(rank, node, reader, writer, Seal(key, "server"), Seal(key, "client"), time.monotonic())


async def introduce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, spec: Spec) -> Peer:
    """The client's half of the greeting."""
    nonces = (str((await _hear_line(reader)).get("nonce")), secrets.token_hex(16))
    who = f"{spec.id} {spec.rank} {spec.node}"
    said = proof(spec.secrets["watch"], "client", nonces, who)
    await say_line(writer, {"rank": spec.rank, "node": spec.node, "nonce": nonces[1], "proof": said})
    answer = await _hear_line(reader)
    node = str(answer.get("node"))
    if not _right(answer.get("proof"), proof(spec.secrets["watch"], "server", nonces, f"{who} {node}")):
        raise ValueError("a stranger answers there")
    key = proof(spec.secrets["watch"], "session", nonces, who)
    return Peer(0, node, reader, writer, Seal(key, "client"), Seal(key, "server"), time.monotonic())
