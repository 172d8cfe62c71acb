"""The rank itself: a process or a container."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from typing import Any

from .files import Home, Trouble, say
from .life import container_status
from .proc import HOME_MARK, SHM, Stat, below, everyone, living, maps_of, segments, send, wait_gone
from .spec import Spec
from .sweep import LABEL, docker

_RUN = 180.0  # seconds `docker run` may take


class Rank:
    """The rank on this node. main: its main process as this node sees it; output: where its text comes from.
    shares_memory: whether its /dev/shm is the node's.

    `start` and `stop` wait for programs and run in a thread; the others return at once.
    """

    def __init__(self, spec: Spec, home: Home) -> None:
        self.spec, self.home = spec, home
        self.main: Stat | None = None
        self.container: str | None = None
        self.image: str | None = None
        self.shares_memory = True
        self.process: subprocess.Popen[bytes] | None = None
        self.output: int | None = None
        self._logs: subprocess.Popen[bytes] | None = None
        self._logs_from: float = time.time()

    def start(self) -> None:
        """Start it. Raises Trouble; then nothing of it runs."""
        argv = self.spec.argv_labelled(f"{LABEL}={self.home.path}")
        if not self.spec.container:
            self._start_process(argv)
            return
        try:
            command = self.spec.docker
            mark = {HOME_MARK: str(self.home.path)}  # whoever cleans up must find it while it is under way
            started = docker(command, *argv[len(command) :], timeout=_RUN, mark=mark)
            self.container = started.strip()[-64:]
            shown = self.inspect()
            self.image = str(shown["Image"])
            host = shown["HostConfig"]
            self.shares_memory = host["IpcMode"] == "host" and SHM.rstrip("/") not in (
                host.get("Tmpfs") or {}
            )
            self.main = living(int(shown["State"]["Pid"] or 0))
            self.follow_logs()
        except (Trouble, ValueError, KeyError) as error:
            if not isinstance(error, Trouble):
                error = Trouble(f"Docker said what is not understood: {error!r}", step="start the container")
            raise error

    def _start_process(self, argv: list[str]) -> None:
        libc, parent = ctypes.CDLL(None), os.getpid()

        def prepare() -> None:  # between fork and exec: system calls only
            os.setpgid(0, 0)
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: it ends when the agent does
            if os.getppid() != parent:
                os._exit(1)

        read, end = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(end, 1031, 1 << 20)  # F_SETPIPE_SZ: a busy moment of the agent stops no rank
        try:
            self.process = subprocess.Popen(
                argv,
                env=self.spec.rank_env(self.home.path, os.environ),
                cwd=self.home.path,
                stdin=subprocess.DEVNULL,
                stdout=end,
                stderr=end,
                preexec_fn=prepare,  # noqa: PLW1509 - called while there is a single thread
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(read)
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise Trouble(
                f"cannot start {argv[0]}: {reason}",
                step=" ".join(argv),
                next="is the engine installed there on this node?",
            ) from error
        finally:
            os.close(end)
        self.output, self.main = read, living(self.process.pid)

    def inspect(self) -> dict[str, Any]:
        """What Docker knows of the container."""
        shown = json.loads(docker(self.spec.docker, "inspect", str(self.container)))
        return dict(shown[0])

    def follow_logs(self) -> None:
        """Have Docker hand over the container's output, from where it ended last time."""
        argv = [*self.spec.docker, "logs", "--follow", "--since", f"{self._logs_from:.6f}"]
        read, end = os.pipe()
        try:
            self._logs = subprocess.Popen(
                [*argv, str(self.container)], stdin=subprocess.DEVNULL, stdout=end, stderr=end
            )
            self.output = read
        except OSError as error:
            os.close(read)
            say(f"cannot follow the container's output: {error}")
        finally:
            os.close(end)

    def logs_ended(self) -> None:
        """Their output has ended: note the time, close the file."""
        if self.output is not None:
            os.close(self.output)
        if self._logs is not None:
            self._logs.kill()
            self._logs.wait()
        self.output, self._logs_from = None, time.time()

    def family(self) -> list[Stat]:
        """Its living processes: below its main process, and of its group."""
        if self.main is None:
            return []
        stats = everyone()
        found = below(self.main.pid, stats)
        if not self.spec.container:
            found += [one for one in stats if one.group == self.main.pid and one not in found]
        return found

    def shared_memory(self, family: Iterable[Stat]) -> set[str]:
        """Files under /dev/shm its processes have mapped; of a container, asked from inside."""
        if not self.shares_memory:
            return set()
        if self.container is None:
            return segments(maps_of(one.pid for one in family))
        ask = ("exec", self.container, "sh", "-c", "grep -hs ' /dev/shm/' /proc/[0-9]*/maps; true")
        try:
            return segments([docker(self.spec.docker, *ask, timeout=3.0)])
        except Trouble:
            return set()

    def status(self) -> tuple[int | None, bool]:
        """How its main process ended, as Popen gives it, and whether its memory limit killed it."""
        if self.process is not None:
            return self.process.wait(), False
        with contextlib.suppress(Trouble, KeyError):
            for _ in range(40):  # the Engine notices a moment after the process has ended
                state = self.inspect()["State"]
                if not state["Running"]:
                    return container_status(int(state["ExitCode"])), bool(state["OOMKilled"])
                time.sleep(0.1)
        return None, False

    def stop(self, grace: float) -> None:
        """Ask it to end, and wait `grace` seconds for that; what is left then is for `sweep`."""
        if self.container is not None:
            if grace >= 1:
                with contextlib.suppress(Trouble):
                    docker(self.spec.docker, "stop", "-t", f"{grace:.0f}", self.container)
            return
        family, end = self.family(), time.monotonic() + grace
        told: set[int] = set()
        while family and time.monotonic() < end:
            main = [one for one in family if self.main is not None and one.pid == self.main.pid]
            for one in main or family:  # what a main process left behind is told by nobody else
                if one.pid not in told:
                    told.add(one.pid)
                    send(one, signal.SIGTERM)
            if self.process is not None:
                self.process.poll()
            family = wait_gone(family, 0.05)
