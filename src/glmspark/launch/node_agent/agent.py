"""The agent: one rank's whole life on its node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from .files import Home, Trouble, say, write_json
from .life import Leash, describe_end, reason_of, turn
from .log import Log, evidence
from .peers import Peers
from .proc import Stat, living, memory, oom_kills, title
from .rank import Rank
from .seal import say_line
from .spec import Spec
from .sweep import sweep

VITAL = ("VLLM::", "ray::RayWorkerProc")
"""Beginnings of the titles of vLLM's engine core and workers. The rank is dead without any of them."""

_TOLD = re.compile(r"died unexpectedly \(exit code: (-?\d+)\)")  # vLLM, of a worker it lost
_ANOTHERS_END = 3
"""Exit code of our entry points for a rank that only follows another's end."""
_TICK, _LOOK, _ASK_INSIDE, _LOGS_AGAIN = 0.25, 1.0, 10.0, 2.0
# seconds between looks: at all, at processes, inside a container; between two attempts to have its output
_BLAME = 2.0  # seconds in which the rank that was the first must say what happened to it


class Agent:
    """One rank's whole life on this node; `run` returns when nothing of it runs any more.

    lock: the open file that holds the deployment's lock. report: where the answer to `start` goes.
    """

    def __init__(self, home: Home, spec: Spec, lock: int, report: int) -> None:
        self.home, self.spec = home, spec
        self.rank = Rank(spec, home)
        self.log = Log(home.rank_log(spec.rank))
        self.leash = Leash(time.monotonic())
        self.state = dict(home.state() or {})
        self._lock, self._report = lock, report
        self._kills = oom_kills()
        self._followers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._vital: set[tuple[int, int]] = set()
        self._seen: set[tuple[int, int]] = set()
        self._looked = self._asked = self._logs_asked = 0.0
        self._dirty = False
        self._reaper: subprocess.Popen[bytes] | None = None
        self._reaper_pipe = -1

    async def run(self) -> None:
        """Start, watch, stop."""
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[dict[str, Any] | None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.finish, None)
        for number in (signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self.peers = Peers(
            self.spec,
            finish=self.finish,
            keep=self._keep,
            changed=lambda ranks: self._changed(peers=ranks),
        )
        try:
            own = living(os.getpid())
            self.state["agent"] = [own.pid, own.started] if own else None
            self._start_reaper()
            self.home.socket.unlink(missing_ok=True)
            await asyncio.start_unix_server(self._serve, self.home.socket.name, limit=1 << 20)
            await self.peers.start()
            if self.spec.container:
                await asyncio.to_thread(self.rank.start)
            else:
                self.rank.start()  # here, for it ends with the thread that started it
            main = self.rank.main.pid if self.rank.main else None
            self._turn("running", main=main, container=self.rank.container, image=self.rank.image)
            self._answer({"ok": True, "container": self.rank.container})
            self._keep(self._watch_rank())
            self._keep(self._tick())
            reason = await self._over
        except Trouble as trouble:
            self._answer({"ok": False, **trouble.fields})
            step, seen, advice = (trouble.fields[name] for name in ("step", "seen", "next"))
            reason = reason_of(str(trouble), self.spec, seen=seen or step, advice=advice)
        except OSError as error:
            self._answer({"ok": False, "error": f"the agent failed: {error}", "step": "start the agent"})
            reason = reason_of(f"the agent failed: {error}", self.spec)
        await self._end(reason)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside; where it fails the deployment ends rather than going on unwatched."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                say(f"a part of the agent failed: {error!r}")
                self.finish(reason_of(f"the agent failed: {error!r}", self.spec))

        task.add_done_callback(done)

    def finish(self, reason: dict[str, Any] | None) -> None:
        """Stop everything. reason: None if it was asked for. Only the first call counts."""
        if not self._over.done():
            self._over.set_result(reason)

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

    def _turn(self, wanted: str, **more: Any) -> None:
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
        """A request from a subcommand on this node."""
        try:
            request = json.loads(await reader.readline() or b"{}")
            do = request.get("do")
            if do == "stop":
                self.finish(request.get("reason"))
            elif do == "ready" and self.state["state"] == "running" and not self._over.done():
                self.leash.proven = True
                self._turn("ready", proven=True)
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

    # -- the rank ------------------------------------------------------------------------------------------

    async def _watch_rank(self) -> None:
        """Take the rank's output, and wait for the end of its main process."""
        loop = asyncio.get_running_loop()
        self._pump()
        main = self.rank.main
        if main is not None:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(main.pid)
                ended = asyncio.Event()
                loop.add_reader(handle, ended.set)
                now = living(main.pid)
                if now is not None and now.started == main.started:
                    await ended.wait()
                loop.remove_reader(handle)
                os.close(handle)
        self.peers.announce(self._describe("", main.pid if main else 0, None))
        status, oom = await asyncio.to_thread(self.rank.status)
        await self._last_words(0.3)
        await self._blame("", main.pid if main else 0, status, oom=oom)

    async def _watch_vital(self, one: Stat, name: str) -> None:
        """Wait for the end of a process that vLLM cannot live without."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            handle = os.pidfd_open(one.pid)
        except OSError:
            return  # it has ended between two looks: so has its rank, or will
        loop.add_reader(handle, ended.set)
        await ended.wait()
        loop.remove_reader(handle)
        os.close(handle)
        main = self.rank.main
        if main is not None and living(main.pid) is not None:  # else its end is the main process's
            self.peers.announce(self._describe(f"process {name}", one.pid, None))
            await asyncio.sleep(0.2)  # for vLLM to say what it knows of it
            told = next((found for line in reversed(self.log.tail) if (found := _TOLD.search(line))), None)
            if told is not None or living(main.pid) is not None:  # else both went down together
                await self._blame(f"process {name}", one.pid, int(told[1]) if told else None)

    async def _blame(self, name: str, pid: int, status: int | None, *, oom: bool = False) -> None:
        """Stop, with what happened here as the reason, unless it followed from another rank's end."""
        if status == _ANOTHERS_END:
            self.peers.retract()
        end = time.monotonic() + _BLAME
        while time.monotonic() < end and not self._over.done():  # whoever caused it is about to say how
            first = self.peers.first
            if status != _ANOTHERS_END and (first is None or first["rank"] == self.spec.rank):
                break
            await asyncio.sleep(0.05)
        first = self.peers.first
        elsewhere = first is not None and first["rank"] != self.spec.rank
        self.finish(first if elsewhere else self._describe(name, pid, status, oom=oom))

    def _pump(self) -> None:
        """Move the rank's output into its log whenever there is any."""
        if self.rank.output is not None:
            os.set_blocking(self.rank.output, False)
            asyncio.get_running_loop().add_reader(self.rank.output, self._drain)

    def _drain(self) -> bool:
        """Take some of the output; False where there is none now."""
        handle = self.rank.output
        if handle is None:
            return False
        try:
            data = os.read(handle, 1 << 16)
        except BlockingIOError:
            return False
        if data:
            self.log.add(data)
        else:
            asyncio.get_running_loop().remove_reader(handle)
            self.rank.logs_ended()
        return bool(data)

    async def _last_words(self, seconds: float) -> None:
        """Take output until it ends, at most so long."""
        end = time.monotonic() + seconds
        while self.rank.output is not None and time.monotonic() < end:
            if not self._drain():
                await asyncio.sleep(0.02)

    def _describe(self, name: str, pid: int, status: int | None, *, oom: bool = False) -> dict[str, Any]:
        code, killer, words = describe_end(status)
        who = f"rank {self.spec.rank}'s {name}" if name else f"rank {self.spec.rank}"
        advice = f"`glmspark logs {self.spec.name} --rank {self.spec.rank}` shows what it printed"
        kills = oom_kills() - self._kills
        if oom or kills > 0:
            advice = f"the kernel's out-of-memory killer acted {kills} time(s) since the start: free memory"
        elif killer == "SIGKILL":
            advice = f"something outside killed it; `glmspark restart {self.spec.name}` starts it again"
        what = f"{who} on {self.spec.node} (pid {pid}) {words}"
        seen = "\n".join(evidence(list(self.log.tail))) or None
        return reason_of(what, self.spec, seen=seen, advice=advice, exit_code=code, signal=killer)

    async def _look(self) -> None:
        """Look at the rank's processes, and watch those that vLLM cannot live without."""
        family = self.rank.family()
        titles = {one: name for one in family if (name := title(one.pid)).startswith(VITAL)}
        seen = {(one.pid, one.started) for one in titles}
        for one, name in titles.items():
            # Between fork and exec any child of vLLM bears its parent's title: only one seen twice counts.
            who = (one.pid, one.started)
            if who in self._seen and who not in self._vital:
                self._vital.add(who)
                self._keep(self._watch_vital(one, name))
        self._seen = seen
        found: dict[str, Any] = {
            "family": sorted([one.pid, one.started] for one in family),
            "processes": sorted(titles.values()),
        }
        if self.rank.container is None or time.monotonic() - self._asked > _ASK_INSIDE:
            self._asked = time.monotonic()
            files = await asyncio.to_thread(self.rank.shared_memory, family)
            if self.rank.container is not None:  # it cannot be asked any more once it has ended
                files |= {path for path in self.state["shared_memory"] if Path(path).exists()}
            found["shared_memory"] = sorted(files)
        if not self._over.done() and any(self.state.get(name) != value for name, value in found.items()):
            self._changed(**found)

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
            if why := self.leash.broken(now):
                self.finish(reason_of(why, self.spec, rank=None, advice="`glmspark up` starts it again"))
            self.peers.check(now)
            if now - self._looked > (_LOOK if self.leash.proven else _LOOK / 2):
                self._looked = now
                await self._look()
            if self.rank.container and self.rank.output is None and now - self._logs_asked > _LOGS_AGAIN:
                self._logs_asked = now  # the Engine was restarted, and the container lived on
                self.rank.follow_logs()
                self._pump()
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
        self.peers.tell_end(reason)
        self._turn("stopping", reason=reason)
        if self.rank.container is not None:  # a last time: what it has made since cannot be known later
            files = await asyncio.to_thread(self.rank.shared_memory, ())
            self.state["shared_memory"] = sorted({*self.state["shared_memory"], *files})
        grace = max(1.0, self.spec.stop - 3.0)
        if reason is not None:
            grace = 0.0 if self.spec.container else 1.0
        await asyncio.to_thread(self.rank.stop, grace)
        swept = await asyncio.to_thread(sweep, self.home, state=dict(self.state))
        await self._last_words(1.0)
        say(f"stopped: {swept}")
        self.home.forget()
        gone: dict[str, Any] = {
            "family": [],
            "shared_memory": [],
            "processes": [],
            "main": None,
            "container": None,
        }
        self._turn("failed" if reason is not None else "stopped", stubborn=swept.stubborn, **gone)
        for _ in range(20):  # the state must not go on saying that it runs, even if the disk is full
            if self._save():
                break
            await asyncio.sleep(0.1)
        waits = [asyncio.wait_for(writer.drain(), 0.5) for writer in self._followers]
        await asyncio.gather(*waits, self.peers.flush(0.5), return_exceptions=True)
        with contextlib.suppress(OSError):
            os.write(self._reaper_pipe, b".")
