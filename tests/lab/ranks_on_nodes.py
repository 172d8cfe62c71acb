"""Small deployments on the nodes of a lab: ranks that print and sleep, started and watched by real agents."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmspark.lab.run import PATH
from glmspark.lab.shell import shell_argv
from glmspark.launch.agents import Agents, Event
from glmspark.nodes.fleet import Fleet
from tests.lab.virtual import VirtualSparks

NODES = ("spark1", "spark2", "spark3")
HOME = "/home/spark/.local/state/glmspark/ranks"
TALK = "import os,time\nfor i in range(10**6): print(os.environ['WHO'], i, flush=True); time.sleep(0.2)"
PORT = 29710


@dataclass
class Deployment:
    """One deployment of the lab. containers: its ranks run in some, of the lab's image."""

    sparks: VirtualSparks
    name: str
    containers: bool = False
    argv: Sequence[str] = ("python3", "-c", TALK)
    port: int = PORT
    watch: Mapping[str, float] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    watching: Mapping[str, Any] | None = None

    def specs(self) -> dict[str, dict[str, Any]]:
        """What is to run, by node."""
        one, watch = secrets.token_hex(8), secrets.token_hex(32)
        return {name: self._spec(name, rank, one, watch) for rank, name in enumerate(NODES)}

    def _spec(self, node: str, rank: int, one: str, watch: str) -> dict[str, Any]:
        meet = f"{self.sparks.fabric('spark1')[0]}:{self.port}"
        directory, container = f"{HOME}/{self.name}", f"glmspark-{self.name}-r{rank}"
        argv = [str(rank) if word == "RANK" else word for word in self.argv]
        if self.containers:
            labels = ["--label", f"glmspark.deployment={self.name}", "--label", f"glmspark.id={one}"]
            argv = [
                *("docker", "run", "-d", "--init", "--network", "host", "--ipc", "host", "--pull", "never"),
                *("--name", container, *labels, "--env-file", f"{directory}/env"),
                *("glmspark-lab:base", *argv),
            ]
        return {
            "version": 1,
            "id": one,
            "name": self.name,
            "node": node,
            "rank": rank,
            "world": len(NODES),
            "runtime": "container" if self.containers else "process",
            "argv": argv,
            "env": {"WHO": f"rank{rank}"},
            "env_file": {"WHO": f"rank{rank}"},
            "container": container if self.containers else None,
            "secrets": {"watch": watch, "lockstep": "x" * 32, "api_key": None},
            "watch": {"listen" if rank == 0 else "connect": meet, "silence": 8.0, **self.watch},
            "directory": directory,
            "scratch": f"/tmp/glmspark-{self.name}",
            "limits": {"stop": 5.0},
            "record": dict(self.record),
            "watching": self.watching,
        }

    @contextlib.asynccontextmanager
    async def fleet(self, names: Sequence[str] = NODES) -> AsyncIterator[Agents]:
        async with Fleet({name: self.sparks.address(name) for name in names}) as fleet:
            assert fleet.lost == {}
            yield Agents(fleet, self.name)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Agents]:
        """It, for the length of a with block, held by a leash; whatever happens, nothing is left."""
        async with self.fleet() as agents:
            await agents.start(self.specs())
            try:
                yield agents
            finally:
                await agents.stop()
                assert self.traces() == {}

    def shell(self, node: str, *argv: str) -> str:
        return self.sparks.shell(node, *argv, root=True)

    def traces(self) -> dict[str, str]:
        """What is left of it on the nodes, seen past SSH and agents."""
        found = {}
        for node in NODES:
            left = self.shell(
                node,
                *(
                    "sh",
                    "-c",
                    'grep -lsz "GLMSPARK_DEPLOYMENT_DIR=$1" /proc/[0-9]*/environ; ls -d "$2" 2>&1; true',
                ),
                *("look", f"{HOME}/{self.name}", f"/tmp/glmspark-{self.name}"),
            )
            left = "\n".join(line for line in left.splitlines() if "No such file" not in line)
            if self.containers:
                label = f"label=glmspark.deployment={self.name}"
                left += self.shell(node, "docker", "ps", "-aq", "--filter", label)
            for secret in ("env", "lockstep-secret"):
                if self.sparks.code(node, "test", "-e", f"{HOME}/{self.name}/{secret}", root=True) == 0:
                    left += f" {secret}"
            if left.strip():
                found[node] = left
        return found

    @contextlib.contextmanager
    def port_taken(self) -> Iterator[None]:
        """The port of the watch belongs to another for the length of a with block."""
        listen = (
            f"import socket, sys; one = socket.create_server(('', {self.port})); "
            "print('there', flush=True); sys.stdin.read()"
        )
        words = shell_argv(self.sparks.home, "spark1", ["python3", "-c", listen], root=True)
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, env={"PATH": PATH}) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield
            process.communicate()

    def main(self, node: str) -> str:
        """The pid of a rank's main process, as its node counts."""
        return str(self.state(node)["main"])

    def state(self, node: str) -> dict[str, Any]:
        """state.json of a node, read past SSH and agents."""
        found: dict[str, Any] = json.loads(self.shell(node, "cat", f"{HOME}/{self.name}/state.json"))
        return found


async def until(seconds: float, what: Callable[[], Any]) -> Any:
    """Wait for what the function says to be true; the time it took."""
    begin = time.monotonic()
    while not (found := await asyncio.to_thread(what)):
        assert time.monotonic() - begin < seconds, f"not within {seconds} s"
        await asyncio.sleep(0.1)
    return found


async def gather(agents: Agents, enough: Callable[[list[Event]], bool], seconds: float = 30) -> list[Event]:
    """Events of a deployment until there are enough."""
    events: list[Event] = []

    async def take() -> None:
        async for event in agents.follow():
            events.append(event)
            if enough(events):
                return

    await asyncio.wait_for(take(), seconds)
    return events


def ends(events: Sequence[Event]) -> dict[str, Mapping[str, Any]]:
    """The last state of every node that has ended, by node."""
    states = {event.node: event.data for event in events if event.kind == "state"}
    return {node: state for node, state in states.items() if state["state"] in ("stopped", "failed")}


def all_ended(events: list[Event]) -> bool:
    return set(ends(events)) == set(NODES)


def all_met(events: list[Event]) -> bool:
    """Rank 0 has both others, and every rank has printed."""
    met = any(e.kind == "state" and e.rank == 0 and e.data["peers"] == [1, 2] for e in events)
    return met and {e.node for e in events if e.kind == "log"} == set(NODES)
