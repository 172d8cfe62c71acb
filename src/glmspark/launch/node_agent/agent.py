"""The agent: one rank's whole life on its node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from .admission import Admission
from .files import Home, Trouble, say, write_json
from .keep import keep_evidence
from .leader import Leader
from .life import Leash, reason_of, trouble_reason, turn
from .log import Log
from .peers import Peers
from .proc import changed_memory, living, memory, title
from .rank import Rank
from .readings import look
from .rounds import Rounds
from .seal import say_line
from .spec import Spec
from .sweep import make_scratch, sweep
from .watch import VITAL, RankWatch

_TICK, _LOOK = 0.25, 1.0
# seconds between looks: at all, at processes
_GONE: dict[str, Any] = {
    "family": [], "shared_memory": [], "processes": [], "main": None, "container": None,
}  # fmt: skip
"""What state.json says of a rank that does not run."""


class Agent:
    """One rank's whole life on this node; `run` returns when nothing of it runs any more.

    lock: the open file that holds the deployment's lock. report: where the answer to `start` goes. resumed:
    it takes the place of an agent that is gone: its rank starts when the leader says so.
    """

    def __init__(self, home: Home, spec: Spec, lock: int, report: int, *, resumed: bool = False) -> None:
        self.home, self.spec, self.resumed = home, spec, resumed
        self.rank = Rank(spec, home)
        self.log = Log(home.rank_log(spec.rank))
        self.leash = Leash(time.monotonic(), proven=resumed)
        self.state = dict(home.state() or {})
        self.watch: RankWatch | None = None
        self.metrics: str | None = None
        self._lock, self._report = lock, report
        self._followers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked = 0.0
        self._made = 0  # when shared memory had last changed
        self._dirty = False
        self._reaper: subprocess.Popen[bytes] | None = None
        self._reaper_pipe = -1
        self._leaves = False  # the node, while the deployment is not over

    async def run(self) -> None:
        """Start, watch, start again where that is wanted, stop."""
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[dict[str, Any] | None] = loop.create_future()
        loop.add_signal_handler(signal.SIGINT, self.finish, None)
        loop.add_signal_handler(signal.SIGTERM, self.node_ends)
        for number in (signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.rounds = Rounds(self)
        self.admission = Admission(self.spec, self._changed)
        self.leader = Leader(self) if self.spec.rank == 0 else None
        self.peers = Peers(
            self.spec,
            finish=self.finish,
            keep=self.keep,
            changed=self._met,
            hear=self._hear,
            seen=lambda: self.reading().to_json(),
            lost=self._missing,
        )
        try:
            own = living(os.getpid())
            self.state["agent"] = [own.pid, own.started] if own else None
            self._start_reaper()
            self.home.socket.unlink(missing_ok=True)
            await asyncio.start_unix_server(self._serve, self.home.socket.name, limit=1 << 20)
            await self.peers.start()
            if self.resumed:
                self.rounds.enabled = True
                self.turn("waiting", proven=True)
                self._answer({"ok": True, "container": None})
            else:
                await self.start_rank()
                self.turn("running")
                self._answer({"ok": True, "container": self.rank.container})
            self.keep(self._tick())
            reason = await self.rounds.live(self._over)
        except Trouble as trouble:
            self._answer({"ok": False, **trouble.fields})
            reason = trouble_reason(trouble, self.spec)
        except OSError as error:
            self._answer({"ok": False, "error": f"the agent failed: {error}", "step": "start the agent"})
            reason = reason_of(f"the agent failed: {error}", self.spec)
        await self._end(reason)

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside; where it fails the deployment ends rather than going on unwatched."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                say(f"a part of the agent failed: {error!r}")
                self.finish(reason_of(f"the agent failed: {error!r}", self.spec))

        task.add_done_callback(done)
        return task

    def finish(self, reason: dict[str, Any] | None) -> None:
        """Stop everything. reason: None if it was asked for. Only the first call counts."""
        if not self._over.done():
            self._over.set_result(reason)

    def node_ends(self) -> None:
        """SIGTERM, which a node that shuts down sends to all; `down` asks by the socket. A deployment that is
        to come back after a reboot is lost then, as with any other loss of the node, and not over."""
        if self._over.done():
            return
        self._leaves = self.spec.watching.keep_up and self.leash.proven and self.rounds.enabled
        what = (
            f"the agent of rank {self.spec.rank} on {self.spec.node} was ended, as when the node shuts down"
        )
        self.finish(reason_of(what, self.spec, signal="SIGTERM", kind="lost") if self._leaves else None)

    def _answer(self, value: Mapping[str, Any]) -> None:
        """Tell who started the agent how that went, once."""
        if self._report >= 0:
            with contextlib.suppress(OSError):
                os.write(self._report, json.dumps(value).encode() + b"\n")
            os.close(self._report)
            self._report = -1

    def _start_reaper(self) -> None:
        read, self._reaper_pipe = os.pipe()
        argv = [sys.executable, "-I", str(self.home.agent), "reap", str(self.home.path)]
        try:
            self._reaper = subprocess.Popen(
                [*argv, str(read), str(self._lock)],
                pass_fds=(read, self._lock),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(read)

    # -- state and followers -------------------------------------------------------------------------------

    def turn(self, wanted: str, **more: Any) -> None:
        """The next state, with what else has changed, to the file and to all who follow."""
        self.state = turn(self.state, wanted, at=time.time())
        self._changed(**more)

    def _changed(self, **more: Any) -> None:
        self.state.update(more)
        self._dirty = True
        self._save()
        line = json.dumps({"t": "state", "state": self.state}).encode() + b"\n"
        for writer in self._followers:
            writer.write(line)

    def _save(self) -> bool:
        try:
            write_json(self.home.state_file, self.state)
        except Trouble as trouble:
            if self.state.get("unwritten") is None:
                say(str(trouble))
            self.state["unwritten"] = str(trouble)
            return False
        self.state.pop("unwritten", None)
        self._dirty = False
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A request from a subcommand on this node, or from its guard."""
        try:
            request = json.loads(await reader.readline() or b"{}")
            do = request.get("do")
            if do == "stop":
                self.finish(request.get("reason"))
            elif do == "ready" and self.state["state"] == "running" and not self._over.done():
                self.leash.proven = True
                self.rounds.enabled = bool(request.get("restarts", True))
                self.turn("ready", proven=True)
                if self.leader is not None:
                    self.leader.serving()
            elif do == "admission":
                self._admit({"open": bool(request.get("open")), "reason": request.get("reason")})
            elif do == "follow":
                self._followers.add(writer)
            # In a thread: the kernel takes its time to count the pages of a process with 100 GB.
            state = await asyncio.to_thread(self._live) if do == "status" else self.state
            await say_line(writer, {"t": "state", "state": state})
            if do == "follow":
                await self._hold(reader, leash=bool(request.get("leash")))
        except (OSError, ValueError) as error:
            say(f"a request failed: {error}")
        finally:
            self._followers.discard(writer)
            writer.close()

    async def _hold(self, reader: asyncio.StreamReader, *, leash: bool) -> None:
        if leash:
            self.leash.beat(time.monotonic())
        while await reader.read(64):
            if leash:
                self.leash.beat(time.monotonic())
        if leash:
            self.leash.close(time.monotonic())

    def _live(self) -> dict[str, Any]:
        """The state with what can only be seen now."""
        family = self.rank.family()
        titles = sorted(name for one in family if (name := title(one.pid)).startswith(VITAL))
        halted = [one.pid for one in family if one.state in "Tt"]
        return {**self.state, "memory": sum(map(memory, family)), "processes": titles, "halted": halted}

    def reading(self) -> Any:
        """What this node's rank shows now: the processes of the last look at all, each looked at anew."""
        seen = self.watch.family if self.watch is not None else []
        family = [now for one in seen if (now := living(one.pid)) is not None and now.started == one.started]
        return look(family, self.rank.main.pid if self.rank.main else None, self.spec.scratch)

    # -- the other agents ----------------------------------------------------------------------------------

    def _met(self, ranks: list[int]) -> None:
        self._changed(peers=ranks)
        self.rounds.met()

    def _hear(self, rank: int, message: Mapping[str, Any]) -> None:
        """What another agent says, besides its signs of life and its end."""
        if "admission" in message:
            self._admit(message["admission"])
        if "fault" in message:
            self.rounds.fault(message["fault"], int(message["round"]))
        if self.leader is not None:
            self.leader.hear(rank, message)
        else:
            self.rounds.obey(message)

    def _admit(self, wanted: Mapping[str, Any]) -> None:
        """Open or close admission: rank 0 does it, the others ask rank 0."""
        wanted = {"node": self.spec.node, **wanted}
        if self.spec.rank == 0:
            self.admission.ask(wanted, time.monotonic())
        else:
            self.peers.tell({"admission": wanted})

    def _missing(self, reason: dict[str, Any]) -> bool:
        """Whether to wait for an agent that is lost."""
        if not self.rounds.enabled or not self.spec.watching.keep_up:
            return False
        self.rounds.fault({**reason, "kind": "lost"})
        return True

    # -- the rank ------------------------------------------------------------------------------------------

    async def start_rank(self) -> None:
        """Start the rank and watch it. Raises Trouble."""
        if self.spec.scratch is not None:
            make_scratch(Path(self.spec.scratch))
        self.rank = rank = Rank(self.spec, self.home)
        if self.spec.container:
            await asyncio.to_thread(rank.start)
        else:
            rank.start()  # here, for it ends with the thread that started it
        main = rank.main.pid if rank.main else None
        self._changed(main=main, container=rank.container, image=rank.image)
        self.watch = RankWatch(self.spec, rank, self.log, self.peers, keep=self.keep, ended=self.rounds.fault)
        self.watch.begin()

    async def stop_rank(self, cause: Mapping[str, Any] | None, *, seconds: float) -> list[str]:
        """Keep the evidence of a rank, stop it, and remove all that it made; what would not go.

        cause: None where it was asked for: then there is no evidence, and the rank may end in its own time.
        seconds: for the evidence.
        """
        if self.watch is not None:
            self.watch.close()
            if cause is not None and self.leash.proven:
                family = await asyncio.to_thread(self.rank.family)
                kept = await asyncio.to_thread(
                    keep_evidence, self.home, self.spec, cause, self.state, family, self.metrics,
                    seconds=seconds,
                )  # fmt: skip
                self._changed(evidence=kept)
        if self.rank.container is not None:  # a last time: what it has made since cannot be known later
            files = await asyncio.to_thread(self.rank.shared_memory, ())
            self.state["shared_memory"] = sorted({*self.state["shared_memory"], *files})
        grace = max(1.0, self.spec.stop - 3.0)
        if cause is not None:
            grace = 0.0 if self.spec.container else 1.0
        await asyncio.to_thread(self.rank.stop, grace)
        swept = await asyncio.to_thread(sweep, self.home, state=dict(self.state))
        if self.watch is not None:
            await self.watch.last_words(1.0)
            self.watch.output_ended()
        if self.rank.process is not None:
            self.rank.process.poll()  # no zombie is left of it
        self.watch, self.rank = None, Rank(self.spec, self.home)
        say(f"stopped: {swept}")
        self._changed(**_GONE)
        return swept.stubborn

    async def _tick(self) -> None:
        """What has to be looked at again and again."""
        last = time.monotonic()
        while not self._over.done():
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            late, last = now - last - _TICK, now
            if late > 1:  # this agent did not run for a while
                self.leash.shift(late)
                self.peers.shift(late)
                if self.leader is not None:
                    self.leader.shift(late)
            if why := self.leash.broken(now):
                self.finish(reason_of(why, self.spec, rank=None, advice="`glmspark up` starts it again"))
            self.peers.check(now, patient=self.leash.proven)
            self.admission.tick(now)
            if (watch := self.watch) is not None:
                # Shared memory that was not seen before this agent is killed would stay behind for good.
                made, self._made = self._made, changed_memory()
                if made != self._made or now - self._looked > (_LOOK if self.leash.proven else _LOOK / 2):
                    self._looked = now
                    found = await watch.look(self.state["shared_memory"])
                    changed = any(self.state.get(name) != value for name, value in found.items())
                    if changed and watch is self.watch and not self._over.done():
                        self._changed(**found)
                watch.follow_again(now)
            if self._reaper is not None and self._reaper.poll() is not None:
                os.close(self._reaper_pipe)
                self._start_reaper()
            if self._dirty:
                self._save()

    # -- the end -------------------------------------------------------------------------------------------

    async def _end(self, reason: dict[str, Any] | None) -> None:
        """Tell the others, stop the rank, remove what it made, close the state."""
        self.finish(reason)
        say(f"stopping: {reason['what'] if reason else 'asked to'}")
        if self._leaves:
            self.peers.leave()
        else:
            self.peers.tell_end(reason)
        self.turn("stopping", reason=reason)
        stubborn = await self.stop_rank(None if self._leaves else reason, seconds=2.0)
        self.home.forget()
        lost = {"lost": True} if self._leaves else {}
        self.turn("failed" if reason is not None else "stopped", stubborn=stubborn, **lost)
        for _ in range(20):  # the state must not go on saying that it runs, even if the disk is full
            if self._save():
                break
            await asyncio.sleep(0.1)
        if self.leader is not None:
            await self.leader.door.close()
        waits = [asyncio.wait_for(writer.drain(), 0.5) for writer in self._followers]
        await asyncio.gather(*waits, self.peers.flush(0.5), return_exceptions=True)
        with contextlib.suppress(OSError):
            os.write(self._reaper_pipe, b".")
