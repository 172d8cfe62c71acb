"""The watch over the other ranks: every agent is connected to rank 0's, and what ends one ends all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from .files import Trouble, say
from .life import reason_of
from .seal import Peer, greet, introduce
from .spec import Spec

BEAT = 1.0
"""Seconds between two signs of life to a peer."""
_STRANGERS = 32  # connections at once of whom it is not known yet who they are
_LINE = 1 << 18  # longest line from a peer, in bytes


class Peers:
    """The agents this one is connected to. finish: called with the reason when everything must stop.

    keep: runs a coroutine beside everything else. changed: called when a peer has come or is lost. hear:
    takes what a peer says besides signs of life. seen: what goes with a follower's signs of life. lost: asked
    with the reason, whether to wait for a peer that is lost. first: the first rank of all that something
    happened to, as far as is known here.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        finish: Callable[[dict[str, Any] | None], None],
        keep: Callable[[Coroutine[Any, Any, None]], object],
        changed: Callable[[list[int]], None],
        hear: Callable[[int, dict[str, Any]], None] = lambda *_: None,
        seen: Callable[[], dict[str, Any]] | None = None,
        lost: Callable[[dict[str, Any]], bool] = lambda _: False,
    ) -> None:
        self.spec = spec
        self.connected: dict[int, Peer] = {}
        self._finish, self._keep, self._changed = finish, keep, changed
        self._hear, self._seen, self._wait_for = hear, seen, lost
        self._began = time.monotonic()
        self._why_not = "nothing was tried yet"
        self.first: dict[str, Any] | None = None
        self._over = False
        self._strangers = 0

    async def start(self) -> None:
        """Listen on rank 0, connect on the others. Raises Trouble where the address cannot be had."""
        if self.spec.listen is not None:
            host, port = self.spec.listen
            try:
                await asyncio.start_server(self._accept, host, port, limit=_LINE)
            except OSError as error:
                raise Trouble(
                    f"cannot listen for the other ranks at {host}:{port}: {error.strerror}",
                    step="start the watch",
                    next="is the address the node's own, and the port free?",
                ) from error
        elif self.spec.connect is not None:
            self._keep(self._connect())

    def tell_end(self, reason: dict[str, Any] | None) -> None:
        """Tell all that it is over, and why; what they do from now on is no news."""
        self._over = True
        for peer in self.connected.values():
            peer.send({"end": reason})

    def leave(self) -> None:
        """Go without a word: to the others it is as if this node were lost."""
        self._over = True
        for peer in self.connected.values():
            peer.writer.close()

    def tell(self, message: dict[str, Any]) -> None:
        """Tell all."""
        for peer in self.connected.values():
            peer.send(message)

    def forget(self) -> None:
        """Another round: nothing has happened to any rank yet."""
        self.first = None

    def announce(self, reason: dict[str, Any]) -> None:
        """Tell all at once that something happened to this rank, before it is known what.

        Ranks pull one another down within moments; so everyone knows which was the first.
        """
        if self.first is None:
            self._spread({"first": reason})

    def retract(self) -> None:
        """What was announced of this rank has turned out to follow from another's end."""
        self._spread({"not_first": self.spec.rank})

    def _spread(self, message: dict[str, Any], *, source: Peer | None = None) -> None:
        """Take in, and tell all others, which rank was the first."""
        if "first" in message and self.first is None:
            self.first = message["first"]
        elif "not_first" in message and (self.first or {}).get("rank") == message["not_first"]:
            self.first = None
        else:
            return  # it is no news: it ends here
        for peer in self.connected.values():
            if peer is not source:
                peer.send(message)

    async def flush(self, seconds: float) -> None:
        """Wait until what was said is on its way."""
        waits = [asyncio.wait_for(peer.writer.drain(), seconds) for peer in self.connected.values()]
        await asyncio.gather(*waits, return_exceptions=True)

    def shift(self, seconds: float) -> None:
        """Time in which this agent itself did not run is nobody else's silence."""
        for peer in self.connected.values():
            peer.heard += seconds

    def check(self, now: float, *, patient: bool = False) -> None:
        """Look for a peer that is silent, or, unless patient, that has not come in time."""
        for peer in list(self.connected.values()):
            if now - peer.heard > self.spec.silence:
                self._lost(peer, f"was silent for {self.spec.silence:g} s")
        if patient or now - self._began <= self.spec.join:
            return
        missing = [one for one in range(1, self.spec.world) if one not in self.connected]
        if self.spec.connect is not None and not self.connected:
            me, where = f"rank {self.spec.rank} on {self.spec.node}", "{}:{}".format(*self.spec.connect)
            what = f"{me} did not reach rank 0's agent at {where} within {self.spec.join:g} s"
            advice = "check the fabric between the two, and that no firewall filters it"
            self._finish(reason_of(what, self.spec, seen=self._why_not, advice=advice))
        elif self.spec.listen is not None and missing:
            who = ", ".join(map(str, missing))
            what = f"the agent of rank {who} did not come to rank 0 within {self.spec.join:g} s"
            advice = "see that rank's log; check the fabric between the two"
            self._finish(reason_of(what, self.spec, rank=missing[0], node=None, advice=advice))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._strangers >= _STRANGERS:  # else anybody could use up the files that this agent may open
            writer.close()
            return
        self._strangers += 1
        try:
            peer = await asyncio.wait_for(greet(reader, writer, self.spec), 5.0)
            if peer.rank in self.connected:
                raise ValueError(f"there is a rank {peer.rank} already")
        except (OSError, ValueError, asyncio.TimeoutError) as error:  # noqa: UP041 - two kinds in Python 3.10
            say(f"a connection to the watch was refused: {error}")
            writer.close()
            return
        finally:
            self._strangers -= 1
        await self._talk(peer)

    async def _connect(self) -> None:
        """Find rank 0's agent; it may start later."""
        assert self.spec.connect is not None  # noqa: S101 - the caller looked
        while not self._over:
            writer = None
            try:
                opening = asyncio.open_connection(*self.spec.connect, limit=_LINE)
                reader, writer = await asyncio.wait_for(opening, 3.0)
                peer = await asyncio.wait_for(introduce(reader, writer, self.spec), 5.0)
            except (OSError, ValueError, asyncio.TimeoutError) as error:  # noqa: UP041
                self._why_not = str(error) or "no answer"
                if writer is not None:
                    writer.close()
                await asyncio.sleep(0.5)
            else:
                await self._talk(peer)
                return

    async def _talk(self, peer: Peer) -> None:
        """Hear what a peer says until it ends; whatever ends it ends the deployment."""
        peer.heard = time.monotonic()
        self.connected[peer.rank] = peer
        self._changed(sorted(self.connected))
        self._keep(self._beat(peer))
        why = "closed its connection"
        try:
            while (line := await peer.reader.readline()).endswith(b"\n"):
                message = peer.theirs.open(line)
                peer.heard = time.monotonic()
                self._spread(message, source=peer)
                if "end" in message:
                    self._finish(message["end"])
                    return
                if set(message) - {"beat", "first", "not_first"}:
                    self._hear(peer.rank, message)
        except ValueError as error:
            why = f"sent {error}"
        except OSError as error:
            why = f"was lost: {error.strerror or error}"
        self._lost(peer, why)

    def _lost(self, peer: Peer, why: str) -> None:
        if self.connected.get(peer.rank) is not peer:
            return  # it was found lost before
        what = f"the agent of rank {peer.rank} on {peer.node} {why}"
        again = f"`glmspark restart {self.spec.name}`"
        advice = f"check that {peer.node} is up and that its fabric link holds; then {again}"
        seen = f"seen by rank {self.spec.rank} on {self.spec.node}"
        reason = reason_of(what, self.spec, seen=seen, advice=advice, rank=peer.rank, node=peer.node)
        if not self._over and self._wait_for(reason):
            del self.connected[peer.rank]
            peer.writer.close()
            self._changed(sorted(self.connected))
            if self.spec.connect is not None:
                self._keep(self._connect())
            return
        self._finish(reason)

    async def _beat(self, peer: Peer) -> None:
        while not self._over and not peer.writer.is_closing():
            follows = self.spec.rank > 0 and self._seen is not None
            peer.send({"beat": 1, "seen": self._seen()} if follows and self._seen else {"beat": 1})
            await asyncio.sleep(BEAT)
