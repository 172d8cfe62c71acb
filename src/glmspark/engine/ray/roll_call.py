"""Who is there: the head listens, every other node calls, proves itself, and stays on the line.

Ray itself does not name a node that fails to come, takes half a minute to notice one that went, and leaves
the others running when the head goes. The roll call is one TCP connection per node for the deployment's whole
life: JSON lines, an empty line each second as a sign of life, and each side tells the other why it ends.

Both sides prove that they know the deployment's secret (HMAC-SHA256 over the other's challenge) before the
head says where Ray's control service is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BEAT = 1.0
"""Seconds between signs of life."""
SILENCE = 15.0
"""Seconds without a sign of life after which the other side counts as gone."""
_GREETING = 10.0  # seconds in which a caller must have proven itself
_LONGEST = 64 << 10  # bytes of a line


class RollCallError(RuntimeError):
    """A node did not come, was refused, or is gone; the message names it."""


class RefusedError(RollCallError):
    """This node must not take part: another secret, another version, an address the plan does not have."""


class GoneError(RollCallError):
    """The other side has ended or cannot be reached any more."""


class EndedError(GoneError):
    """The other side said goodbye: it was stopped as asked."""


@dataclass(frozen=True)
class Caller:
    """What a node says of itself: its address, the interface that has it, and the versions it runs."""

    address: str
    interface: str
    versions: Mapping[str, str]


def proof(secret: bytes, role: str, challenge: str, caller: Caller) -> str:
    """What only who knows the secret can answer to `challenge`; bound to the role and to what is said."""
    said = json.dumps(
        [role, challenge, caller.address, caller.interface, dict(sorted(caller.versions.items()))]
    )
    return hmac.new(secret, said.encode(), "sha256").hexdigest()


class Line:
    """One connection: JSON objects, one a line, with signs of life in between."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: str) -> None:
        self.other = other
        self._reader, self._writer = reader, writer
        self._beats = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._writer.write(b"\n")
                await self._writer.drain()
                await asyncio.sleep(BEAT)

    async def send(self, **message: Any) -> None:
        """Send one object. Raises `GoneError` where the other side is gone."""
        try:
            self._writer.write(json.dumps(message).encode() + b"\n")
            await self._writer.drain()
        except OSError as error:
            raise GoneError(f"{self.other} is gone ({error})") from error

    async def receive(self) -> dict[str, Any]:
        """The next object.

        Raises `GoneError` where the other side closes, falls silent, talks nonsense or says why it ends;
        `EndedError` where it was stopped as asked; `RefusedError` where it refuses this side.
        """
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    line = await self._reader.readline()
            except TimeoutError:
                raise GoneError(f"{self.other} has been silent for {SILENCE:.0f} s") from None
            except (OSError, ValueError) as error:
                raise GoneError(f"{self.other} is gone ({error})") from error
            if not line:
                raise GoneError(f"{self.other} closed the connection")
            if line.strip():
                return self._understood(line)

    def _understood(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise GoneError(f"{self.other} does not speak the roll call's language: {line[:40]!r}")
        if "refused" in message:
            raise RefusedError(f"{self.other} refused this node: {message['refused']}")
        if "end" in message:
            if message["end"] is None:
                raise EndedError(f"{self.other} was stopped")
            raise GoneError(f"{self.other} has ended: {message['end']}")
        return message

    async def close(self, **last: Any) -> None:
        """Say a last word, if any, and close."""
        self._beats.cancel()
        with contextlib.suppress(GoneError, OSError, TimeoutError):
            async with asyncio.timeout(0.5):
                if last:
                    await self.send(**last)
                self._writer.close()
                await self._writer.wait_closed()


@dataclass
class RollCall:
    """The head's side.

    nodes: how many there must be, the head among them. expected: their addresses in rank order, where the
    plan gives them. Afterwards `present` has every caller that has joined.
    """

    head: Caller
    port: int
    nodes: int
    secret: bytes
    expected: Sequence[str] = ()
    present: dict[str, Caller] = field(default_factory=dict)
    _called: dict[str, Line] = field(default_factory=dict)
    _control: asyncio.Future[str] = field(init=False)
    _ended: asyncio.Future[Exception] = field(init=False)
    _changed: asyncio.Event = field(init=False)
    _server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Begin to listen. Raises OSError where the port cannot be had."""
        loop = asyncio.get_running_loop()
        self._control, self._ended = loop.create_future(), loop.create_future()
        self._changed = asyncio.Event()
        self._server = await asyncio.start_server(self._answer, self.head.address, self.port, limit=_LONGEST)

    def announce(self, control: str) -> None:
        """Ray's control service is up at `control` (HOST:PORT): callers are told, those waiting first."""
        self._control.set_result(control)

    async def complete(self, limit: float) -> None:
        """Wait until all have joined. Raises `RollCallError` naming who has not after `limit` seconds, and
        at once where one that had called is gone."""
        try:
            async with asyncio.timeout(limit):
                while len(self.present) < self.nodes - 1:
                    changed = asyncio.create_task(self._changed.wait())
                    waited: list[asyncio.Future[Any]] = [changed, self._ended]
                    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    self._changed.clear()
                    if self._ended.done():
                        raise self._ended.result()
        except TimeoutError:
            raise RollCallError(self.missing(limit)) from None

    def missing(self, limit: float) -> str:
        """Who is not there, in words."""
        here = [self.head.address, *self.present]
        words = f"{len(here)} of {self.nodes} nodes are here after {limit:.0f} s: {', '.join(here)}"
        starting = [address for address in self._called if address not in self.present]
        absent = [a for a in self.expected if a not in here and a not in starting]
        if absent:
            words += f"; missing: {', '.join(absent)}"
        elif unknown := self.nodes - len(here) - len(starting):
            words += f"; {unknown} did not call"
        if starting:
            words += f"; called, but Ray has not started there: {', '.join(starting)}"
        return words

    async def lost_raises(self) -> None:
        """Wait for the first node to go. Raises `GoneError` saying which and why."""
        raise await asyncio.shield(self._ended)

    async def close(self, reason: str | None) -> None:
        """Tell every node why this ends (None: stopped as asked) and hang up."""
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(line.close(end=reason) for line in self._called.values()))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")[0]
        line = Line(reader, writer, f"node {peer}")
        try:
            async with asyncio.timeout(_GREETING):
                caller = await self._greet(line, peer)
        except RefusedError as error:
            await line.close(refused=str(error))
            return
        except (GoneError, TimeoutError, KeyError, TypeError):
            await line.close()  # whoever it was, it was none of ours
            return
        self._called[caller.address] = line
        try:
            await line.send(control=await asyncio.shield(self._control))
            await line.receive()
            self.present[caller.address] = caller
            self._changed.set()
            while True:
                await line.receive()
        except GoneError as error:
            if not self._ended.done():
                self._ended.set_result(error)

    async def _greet(self, line: Line, peer: str) -> Caller:
        challenge = secrets.token_hex(16)
        await line.send(challenge=challenge)
        said = await line.receive()
        caller = Caller(str(said["address"]), str(said["interface"]), dict(said["versions"]))
        if not hmac.compare_digest(proof(self.secret, "node", challenge, caller), str(said["proof"])):
            raise RefusedError("its secret is not this deployment's")
        if caller.address != peer:
            raise RefusedError(f"it calls itself {caller.address}, but calls from {peer}")
        if self.expected and caller.address not in self.expected[1:]:
            raise RefusedError(f"{caller.address} is not among the plan's nodes: {', '.join(self.expected)}")
        if caller.address in self._called or caller.address == self.head.address:
            raise RefusedError(f"a node with the address {caller.address} is here already")
        if len(self._called) >= self.nodes - 1:
            raise RefusedError(f"all {self.nodes} nodes are here already")
        if differing := differences(self.head.versions, caller.versions):
            raise RefusedError(f"{differing}: all nodes must run the same")
        await line.send(proof=proof(self.secret, "head", str(said["challenge"]), caller))
        return caller


def differences(head: Mapping[str, str], caller: Mapping[str, str]) -> str:
    """What differs between two nodes' versions, in words; empty where nothing does."""
    return ", ".join(
        f"{name} is {caller.get(name, 'absent')} there and {head.get(name, 'absent')} on the head"
        for name in sorted({*head, *caller})
        if head.get(name) != caller.get(name)
    )


async def call(head: tuple[str, int], caller: Caller, secret: bytes, limit: float) -> tuple[Line, str]:
    """Call the head until it answers; the line to it, and where Ray's control service is (HOST:PORT).

    The connection is made from the caller's own address, so that a node without a way to the head over the
    fabric is told so. Raises `RefusedError` where either side does not trust the other, `GoneError` where the
    head does not answer within `limit` seconds or is gone.
    """
    where = f"the head at {head[0]}:{head[1]}"
    seen = "no answer"
    try:
        async with asyncio.timeout(limit):
            while True:
                try:
                    reader, writer = await asyncio.open_connection(
                        *head, local_addr=(caller.address, 0), limit=_LONGEST
                    )
                    break
                except OSError as error:
                    seen = os.strerror(error.errno) if error.errno else str(error)
                await asyncio.sleep(0.3)
            line = Line(reader, writer, where)
            own = secrets.token_hex(16)
            challenge = str((await line.receive())["challenge"])
            answer = proof(secret, "node", challenge, caller)
            await line.send(
                address=caller.address,
                interface=caller.interface,
                versions=dict(caller.versions),
                challenge=own,
                proof=answer,
            )
            proven = str((await line.receive()).get("proof"))
            if not hmac.compare_digest(proven, proof(secret, "head", own, caller)):
                raise RefusedError(f"{where} does not know this deployment's secret")
            return line, str((await line.receive())["control"])
    except TimeoutError:
        raise GoneError(f"{where} did not answer within {limit:.0f} s ({seen})") from None
    except KeyError as error:
        raise RefusedError(f"{where} is no roll call: it did not say its {error}") from None
