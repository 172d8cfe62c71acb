"""Rank 0's side of all links: one call goes out to every rank, and the answers that matter come back.

A call is sent once, as one frame, and numbered; answers carry the number. Whoever waits for an answer reads
what comes from any rank, so the error of a rank that owes no answer is noticed as soon as that of one that
does. While nobody waits, a thread watches for ranks that end. The first thing that goes wrong is final: it is
what every call, waiting or later, is told.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from glmspark.engine.lockstep import LockstepError
from glmspark.engine.lockstep.link import Frame, Link, LinkError

logger = logging.getLogger("vllm.glmspark.lockstep")

BYE = "__bye__"
"""The method of the last call: the rank may end. Its arguments are the reason, where there is a bad one."""

NOBODY = -1
"""In the place of the one rank whose answer matters: none does, for there is nothing to answer."""

_LAST_WORD = 1  # seconds that telling a rank of the end may take
_CAUSE = 0.5  # seconds in which a rank that hangs up is taken for the cause of another's error

Answers = Mapping[int, Any]
"""What the ranks that were asked have answered, by rank."""


class RankError(LockstepError):
    """A call has raised an exception on a rank; the message names the rank and holds its traceback."""


class Pending(Future[Any]):
    """The answers to one call, to come. `result` reads from the ranks until they are there."""

    def __init__(
        self,
        board: Switchboard,
        what: str,
        ranks: Collection[int],
        limit: float,
        *,
        vital: bool,
        finish: Callable[[Answers], Any],
    ) -> None:
        super().__init__()
        self.board = board
        self.what = what
        self.awaited = set(ranks)
        self.limit = limit
        self.end = time.monotonic() + limit
        self.vital = vital
        self.answers: dict[int, Any] = {}
        self.finish = finish

    def result(self, timeout: float | None = None) -> Any:
        """What `finish` makes of the answers. Raises LockstepError where a rank failed, TimeoutError where
        `timeout` seconds have passed."""
        self.board.wait(self, timeout)
        return super().result()


class Switchboard:
    """All links of rank 0, its own worker's among them. `failed` is called once when anything goes wrong."""

    def __init__(self, links: Mapping[int, Link]) -> None:
        # The others first: rank 0's own worker is the nearest.
        self.links = dict(sorted(links.items(), reverse=True))
        self.failure: str | None = None
        self._callback: Callable[[], None] | None = None
        self._pending: dict[int, Pending] = {}
        self._told: deque[tuple[int, str]] = deque(maxlen=64)  # calls without an answer, for messages
        self._refused: set[int] = set()  # calls that one rank has refused; the others may do so, too
        self._number = 0
        self._lock = threading.RLock()
        self._closing = False
        self._by_descriptor = {link.fileno(): rank for rank, link in self.links.items()}
        self._wake = os.eventfd(0)  # who waits is woken by the end, too
        self._arrivals = select.epoll()
        self._arrivals.register(self._wake, select.EPOLLIN)
        for descriptor in self._by_descriptor:
            self._arrivals.register(descriptor, select.EPOLLIN)
        self._watcher = threading.Thread(target=self._watch, name="LockstepWatcher", daemon=True)
        self._watcher.start()

    # -- calls --------------------------------------------------------------------------------------------

    def call(
        self,
        method: str | bytes,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        only: int | None = None,
        limit: float,
        vital: bool = False,
        finish: Callable[[Answers], Any] = dict,
    ) -> Pending:
        """Have every rank run `method` (a name, or a pickled function of the worker).

        only: the one rank whose answer matters, else all. limit: seconds. vital: an exception on any rank
        ends the deployment, for the ranks no longer hold the same state; otherwise it is the caller's to
        handle. Raises LockstepError where the deployment has failed already.
        """
        what = method if isinstance(method, str) else "a function"
        with self._lock:
            self._check()
            self._number += 1
            frame = Frame.of(
                pickle.dumps((self._number, method, args, dict(kwargs or {}), only), pickle.HIGHEST_PROTOCOL)
            )
            ranks = self.links.keys() if only is None else [only]
            pending = Pending(self, what, ranks, limit, vital=vital, finish=finish)
            self._pending[self._number] = pending
            for link in self.links.values():
                self._send(link, frame)
        return pending

    def tell(self, method: str, args: tuple[Any, ...]) -> None:
        """Have every rank run `method`, which returns nothing, without waiting for it. An exception on any
        rank ends the deployment. Raises LockstepError where it has failed already."""
        with self._lock:
            self._check()
            self._number += 1
            self._told.append((self._number, method))
            frame = Frame.of(pickle.dumps((self._number, method, args, {}, NOBODY), pickle.HIGHEST_PROTOCOL))
            for link in self.links.values():
                self._send(link, frame)

    def wait(self, pending: Pending, timeout: float | None = None) -> None:
        """Read from all ranks until `pending` is done. Its own limit ends the deployment, `timeout` only
        raises TimeoutError."""
        patience = None if timeout is None else time.monotonic() + timeout
        while not pending.done():
            now = time.monotonic()
            if now >= pending.end:
                self.fail(
                    f"{self._names(pending.awaited)} did not answer {pending.what} within "
                    f"{pending.limit:.0f} s"
                )
            elif patience is not None and now >= patience:
                raise TimeoutError(f"{pending.what} took longer than {timeout:.1f} s")
            else:
                self._pump(min(pending.end, patience or pending.end) - now)

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the deployment fails; at once where it has."""
        with self._lock:
            if self.failure is None:
                self._callback = callback
                return
        callback()

    def check(self) -> None:
        """Raises LockstepError where the deployment has failed."""
        with self._lock:
            self._check()

    def close(self) -> None:
        """Let every rank end, and hang up. Calls that wait are told."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            if self.failure is None:
                self._dismiss()
                self._abandon("the deployment was stopped")
            os.eventfd_write(self._wake, 1)
            for link in self.links.values():
                link.close()

    # -- failure ------------------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """End it: every call, waiting or later, gets this reason. Only the first one counts."""
        with self._lock:
            if self.failure is not None or self._closing:
                return
            self.failure = reason
            logger.error("lockstep: %s; the deployment ends", reason)
            self._abandon(reason)
            self._dismiss(reason)
            os.eventfd_write(self._wake, 1)
            callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def _abandon(self, reason: str) -> None:
        for pending in self._pending.values():
            pending.set_exception(LockstepError(reason))
        self._pending.clear()

    def _dismiss(self, *reason: str) -> None:
        """Tell every rank that can be told, and end this side: one that does not listen sees that."""
        frame = Frame.of(pickle.dumps((0, BYE, reason, {}, None)))
        for link in self.links.values():
            try:
                link.last(frame, _LAST_WORD)
            except LinkError as error:
                logger.info("lockstep: not told of the end: %s", error)

    def _check(self) -> None:
        if self.failure is not None:
            raise LockstepError(self.failure)
        if self._closing:
            raise LockstepError("the deployment was stopped")

    def _names(self, ranks: Collection[int]) -> str:
        return " and ".join(self.links[rank].peer for rank in sorted(ranks))

    # -- the wire -----------------------------------------------------------------------------------------

    def _send(self, link: Link, frame: Frame) -> None:
        try:
            link.send(frame)
        except LinkError as error:
            self._drain()  # a rank that ended has often said why
            self.fail(str(error))
            self._check()

    def _pump(self, seconds: float) -> None:
        """Wait until something comes, at most `seconds`, and take it."""
        self._arrivals.poll(max(seconds, 0))
        self._drain()

    def _drain(self) -> None:
        """Take what has come; looked at again with the lock held, for the other thread may have taken it."""
        with self._lock:
            while self.failure is None and not self._closing and (ready := self._arrivals.poll(0)):
                for descriptor, _ in ready:
                    if self.failure is None:
                        self._receive(self._by_descriptor[descriptor])

    def _receive(self, rank: int) -> None:
        link = self.links[rank]
        try:
            number, ok, value = pickle.loads(link.receive())  # noqa: S301 - authenticated
        except LinkError as error:
            self.fail(f"{error}; its log may say why")
            return
        pending = self._pending.get(number)
        if not ok:
            self._refuse(link.peer, number, pending, value)
        elif pending is not None and rank in pending.awaited:
            pending.awaited.discard(rank)
            pending.answers[rank] = value
            if not pending.awaited:
                del self._pending[number]
                self._finish(pending)

    def _finish(self, pending: Pending) -> None:
        try:
            pending.set_result(pending.finish(pending.answers))
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to who waits
            pending.set_exception(error)

    def _refuse(self, peer: str, number: int, pending: Pending | None, text: str) -> None:
        if number in self._refused:
            return
        what = pending.what if pending else dict(self._told).get(number, "a call")
        message = f"{peer} failed in {what}: {text}"
        if pending is None or pending.vital:
            gone = self._hung_up(but=peer)
            self.fail(f"{gone} closed the connection; its log may say why. {message}" if gone else message)
            return
        del self._pending[number]
        self._refused.add(number)
        pending.set_exception(RankError(message))

    def _hung_up(self, *, but: str) -> str | None:
        """The rank that ends just now, if one does: others' collectives break before its link is closed."""
        poll = select.poll()
        for link in self.links.values():
            if link.peer != but:
                poll.register(link.fileno(), select.POLLRDHUP)
        ended = poll.poll(_CAUSE * 1000)
        return self.links[self._by_descriptor[ended[0][0]]].peer if ended else None

    def _watch(self) -> None:
        """Notice a rank that ends while nobody waits for an answer. Reads nothing unless one has."""
        poll = select.poll()
        for link in self.links.values():
            poll.register(link.fileno(), select.POLLRDHUP)
        while self.failure is None and not self._closing:
            if poll.poll():
                self._drain()
