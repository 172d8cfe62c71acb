"""How the ranks find one another, and agree on what they are about to run before any of them loads it."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from glmspark.engine.lockstep import LockstepError
from glmspark.engine.lockstep.handshake import HandshakeError, prove_to_follower, prove_to_leader
from glmspark.engine.lockstep.link import ClosedError, Frame, Link
from glmspark.engine.lockstep.settings import Settings

logger = logging.getLogger("vllm.glmspark.lockstep")

Facts = Mapping[str, str]
"""What must be the same on all ranks: dotted names, whose first part is the kind, and values as text."""

RETRY = 0.2
"""Seconds between a follower's attempts to reach rank 0."""

_REMIND = 30.0  # seconds between lines that say who is awaited
_STRANGERS = 64  # connections that may be proving themselves at a time
_SHOWN = 8  # differences that are spelled out


class DisagreementError(LockstepError):
    """Two ranks are not about to run the same thing."""


def differences(mine: Facts, theirs: Facts, name: str) -> str | None:
    """What rank `name` has other than rank 0, in words; None where all is the same."""
    keys = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
    if not keys:
        return None
    kinds = " and ".join(dict.fromkeys(key.split(".")[0] for key in keys))
    lines = [
        f"  {key}: {_cut(mine.get(key))} on rank 0, {_cut(theirs.get(key))} there" for key in keys[:_SHOWN]
    ]
    if len(keys) > _SHOWN:
        lines.append(f"  and {len(keys) - _SHOWN} more")
    return f"{name} differs from rank 0 in {kinds}:\n" + "\n".join(lines)


def _cut(value: str | None) -> str:
    if value is None:
        return "absent"
    return value if len(value) <= 80 else value[:77] + "..."


def listen(settings: Settings) -> socket.socket:
    """Rank 0's door, on its own address alone. Raises LockstepError where it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host_ip else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((settings.host_ip, settings.port))
        door.listen(_STRANGERS)
        door.setblocking(False)
    except OSError as error:
        door.close()
        raise LockstepError(
            f"rank 0 cannot listen on {settings.host_ip}:{settings.port}: {error.strerror}. "
            f"Choose another MASTER_PORT on every rank."
        ) from error
    return door


@dataclass
class Gathering:
    """Rank 0's wait for the others. facts: its own."""

    settings: Settings
    door: socket.socket
    facts: Facts
    links: dict[int, Link] = field(default_factory=dict)
    _proving: dict[threading.Thread, socket.socket] = field(default_factory=dict)
    _proven: queue.SimpleQueue[tuple[int, Link, Facts, str]] = field(default_factory=queue.SimpleQueue)

    def run(self) -> dict[int, Link]:
        """Links to all other ranks, which have proven themselves and agreed, by rank.

        A stranger, or a rank with another secret, is turned away and told of in the log. Raises
        DisagreementError where a rank is about to run something else (all that came are told), and
        LockstepError where one ended meanwhile or did not come within settings.start seconds.
        """
        wake, self._waker = socket.socketpair()
        try:
            with wake, self._waker:
                self._gather(wake)
        except BaseException:
            for link in self.links.values():
                link.close()
            raise
        finally:
            self.door.close()
            for sock in self._proving.values():
                _hang_up(sock)
            for thread in list(self._proving):
                thread.join()
        self._tell({"agreed": True})
        return self.links

    @property
    def awaited(self) -> list[int]:
        """Ranks that have not come."""
        return [rank for rank in range(1, self.settings.world) if rank not in self.links]

    def _gather(self, wake: socket.socket) -> None:
        end = time.monotonic() + self.settings.start
        said, said_at = "", 0.0
        poll = select.poll()
        poll.register(self.door, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while self.awaited:
            now = time.monotonic()
            remaining = end - now
            names = ", ".join(map(str, self.awaited))
            if remaining <= 0:
                raise LockstepError(
                    f"rank {names} did not come to {self.settings.host_ip}:{self.settings.port} within "
                    f"{self.settings.start:.0f} s; see that rank's log"
                )
            if names != said or now - said_at >= _REMIND:
                logger.info("lockstep: waiting for rank %s at port %d", names, self.settings.port)
                said, said_at = names, now
            for descriptor, _ in poll.poll(1000 * min(remaining, _REMIND)):
                if descriptor == self.door.fileno():
                    self._admit()
                elif descriptor == wake.fileno():
                    wake.recv(4096)
                    self._take(poll)
                else:
                    self._lost(descriptor)

    def _admit(self) -> None:
        try:
            sock, address = self.door.accept()
        except OSError:
            return  # it has gone again
        self._proving = {one: other for one, other in self._proving.items() if one.is_alive()}
        if len(self._proving) >= _STRANGERS:
            sock.close()
            return
        thread = threading.Thread(target=self._prove, args=(sock, str(address[0])), daemon=True)
        self._proving[thread] = sock
        thread.start()

    def _prove(self, sock: socket.socket, address: str) -> None:
        """In a thread of its own, so that a silent stranger holds up nobody."""
        try:
            rank, link = prove_to_follower(sock, self.settings.secret, self.settings.world, address)
            told = json.loads(link.receive())
            link.peer = f"rank {rank} on {told['node']} ({address})"
        except (LockstepError, OSError, ValueError, KeyError) as error:
            logger.warning("lockstep: turned away: %s", error)
            sock.close()
            return
        self._proven.put((rank, link, told["facts"], link.peer))
        with contextlib.suppress(OSError):  # it was taken already, and was the last one
            self._waker.send(b".")

    def _take(self, poll: select.poll) -> None:
        while not self._proven.empty():
            rank, link, facts, name = self._proven.get()
            # Not to be hung up with the strangers, even if its thread is still about to end.
            self._proving = {one: sock for one, sock in self._proving.items() if sock is not link.sock}
            if rank in self.links:
                logger.warning("lockstep: turned away: %s, but rank %d is here already", name, rank)
                link.close()
                continue
            self.links[rank] = link
            poll.register(link.fileno(), select.POLLRDHUP)
            if found := differences(self.facts, facts, name):
                self._tell({"agreed": False, "why": found})
                raise DisagreementError(found)
            logger.info("lockstep: %s has come", name)

    def _lost(self, descriptor: int) -> None:
        link = next(link for link in self.links.values() if link.fileno() == descriptor)
        raise LockstepError(f"{link.peer} ended while others were awaited; see its log")

    def _tell(self, verdict: Mapping[str, object]) -> None:
        frame = Frame.of(json.dumps(verdict).encode())
        for link in self.links.values():
            link.send(frame)


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was closed already
        sock.shutdown(socket.SHUT_RDWR)


def join(settings: Settings, facts: Facts) -> Link:
    """A follower's way to rank 0: reach it, prove, tell what is about to be run, and hear that all agree.

    Tries for settings.start seconds. Raises HandshakeError where the other side is not rank 0 of this
    deployment, DisagreementError where ranks differ, LockstepError where rank 0 does not come or ends.
    """
    where = f"{settings.master_addr}:{settings.port}"
    logger.info("lockstep: rank %d is looking for rank 0 at %s", settings.rank, where)
    sock = _reach(settings, where)
    try:
        link = prove_to_leader(sock, settings.secret, settings.rank, where)
        told = {"node": socket.gethostname(), "facts": dict(facts)}
        link.send(Frame.of(json.dumps(told).encode()))
        verdict = json.loads(link.receive())
    except ClosedError as error:
        sock.close()
        raise LockstepError(f"{error} before all ranks had come; see rank 0's log") from error
    except LockstepError:
        sock.close()
        raise
    if not verdict["agreed"]:
        link.close()
        raise DisagreementError(f"rank 0 says: {verdict['why']}")
    return link


def _reach(settings: Settings, where: str) -> socket.socket:
    """A connection to rank 0's door from this rank's own address."""
    end = time.monotonic() + settings.start
    while True:
        try:
            return socket.create_connection(
                (settings.master_addr, settings.port), timeout=5, source_address=(settings.host_ip, 0)
            )
        except OSError as error:
            if time.monotonic() > end:
                raise HandshakeError(
                    f"rank {settings.rank} cannot reach rank 0 at {where} from {settings.host_ip}: "
                    f"{error.strerror or error}, for {settings.start:.0f} s"
                ) from error
        time.sleep(RETRY)
