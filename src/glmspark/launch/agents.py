"""The control machine's side of a deployment on nodes: the agents there, asked and followed over SSH.

What runs on a node is `launch.node_agent`, shipped as one zip archive. Each call is one command on every
node at the same time; what goes wrong on a node is a NodeError with the node's name, the step, what was seen
and what to do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmspark.errors import GlmsparkError
from glmspark.launch.agent_archive import AGENT, DIRECTORY, WHERE
from glmspark.launch.agent_follow import Event, Follower, error_of, parsed
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import Node, failed
from glmspark.nodes.transport import NodeError

__all__ = ["Agents", "Event", "Logged", "Stopped"]

PYTHON = "python3"
"""The interpreter on the nodes: the system's own, 3.10 or newer."""
_START, _STOP, _ASK = 240.0, 45.0, 30.0  # seconds one command may take on a node


@dataclass(frozen=True)
class Stopped:
    """How a rank was stopped. ending: stopped, cleaned up, nothing to stop or not reached; swept: what was
    removed beyond it; state: its last state, if any."""

    node: str
    ending: str
    seconds: float = 0.0
    swept: Mapping[str, list[str]] = field(default_factory=dict)
    state: Mapping[str, Any] | None = None
    error: NodeError | None = None

    @property
    def nothing(self) -> bool:
        """Whether there was nothing to stop."""
        return self.ending == "nothing to stop"


@dataclass(frozen=True)
class Logged:
    """A rank's last lines. at: where to go on; file: the log on the node."""

    node: str
    rank: int
    lines: list[str]
    at: str


class Agents:
    """The agents of one deployment, or of all, on the nodes of a fleet."""

    def __init__(self, fleet: Fleet, name: str | None = None, *, python: str = PYTHON) -> None:
        self.fleet = fleet
        self.name = name
        self._python = python
        self._shipped: dict[str, str] = {}

    @property
    def _name(self) -> str:
        if self.name is None:
            raise ValueError("the deployment has no name")
        return self.name

    async def directories(self) -> dict[str, str]:
        """The deployment's directory on every node, there or not. Raises NodeError."""

        async def ask(node: Node) -> str:
            done = await node.must(["sh", "-c", WHERE], "find the home directory")
            return f"{done.stdout.strip()}/{self._name}"

        return _all(await self.fleet.each(ask))

    async def start(self, specs: Mapping[str, Mapping[str, Any]]) -> None:
        """Start the ranks, one a node. specs: by node, see node_agent.spec.

        Raises NodeError of the first that could not start; all that had begun are stopped then.
        """
        order = sorted(specs, key=lambda name: -int(specs[name]["rank"]))

        async def one(node: Node) -> None:
            text = json.dumps(specs[node.host]).encode()
            await self._call(node, ["start", self._name], input=text, timeout=_START)

        await self._begin(order, one)

    async def start_again(self) -> None:
        """Start the ranks as they were started last, from what the nodes have kept. Raises NodeError."""
        await self._begin(
            list(self.fleet.nodes),
            lambda node: self._call(node, ["start", self._name, "--again"], timeout=_START),
        )

    async def _begin(self, names: Sequence[str], work: Any) -> None:
        for name in names:
            if name not in self.fleet.nodes:
                raise self.fleet.lost.get(name) or NodeError(f"{name} is none of the nodes", host=name)
        try:
            _all(await self.fleet.each(work, names=names))
        except BaseException:
            await asyncio.shield(self.stop(names))
            raise

    async def ready(self, record: Mapping[str, Any] | None = None) -> None:
        """The deployment is proven: the leash no longer binds. record: replaces the nodes' copy of it.

        Raises NodeError of the first node where it does not run any more.
        """
        text = b"" if record is None else json.dumps(record).encode()
        _all(await self.fleet.each(lambda node: self._call(node, ["ready", self._name], input=text)))

    async def stop(self, names: Sequence[str] | None = None, *, keep: bool = False) -> dict[str, Stopped]:
        """Stop the ranks, whatever state they are in, also where nothing was started.

        keep: leave on the nodes what is needed to start them again (with its secrets, mode 0600). A node that
        cannot be asked is in the result with its error.
        """
        words = ["stop", self._name, *(["--keep"] if keep else [])]

        async def one(node: Node) -> Stopped:
            said = await self._call(node, words, timeout=_STOP, any_answer=True)
            if "ending" not in said:
                raise error_of(node, said, words)
            swept, state = said["swept"], said["state"]
            error = None
            if not said["ok"]:
                error = NodeError(
                    f"something of {self._name} would not go",
                    host=node.host,
                    step=f"stop {self._name}",
                    seen="\n".join(swept["stubborn"]),
                )
            return Stopped(node.host, said["ending"], said["seconds"], swept, state, error)

        found = await self.fleet.each(one, names=names)
        lost = {name: error for name, error in self.fleet.lost.items() if names is None or name in names}
        return {
            name: one if isinstance(one, Stopped) else Stopped(name, "not reached", error=one)
            for name, one in {**found, **lost}.items()
        }

    async def status(self) -> dict[str, dict[str, Any] | None]:
        """The deployment's state on every node, None where nothing is known of it. Raises NodeError."""
        found = _all(await self.all_states(name=self._name))
        return {node: states[0] if states else None for node, states in found.items()}

    async def all_states(
        self, name: str | None = None, *, record: bool = False
    ) -> dict[str, list[dict[str, Any]] | NodeError]:
        """States of one deployment, or of all, on every node that was reached. record: with their records."""
        words = ["status", *([name] if name else []), *(["--record"] if record else [])]
        return await self.fleet.each(lambda node: self._call(node, words))

    async def clean(self, *, dry_run: bool = False) -> dict[str, dict[str, Any] | NodeError]:
        """Remove what deployments left on the nodes and nobody answers for; what was found, by node.

        Without a name: of all deployments. dry_run: only look.
        """
        words = ["clean", *([self.name] if self.name else []), *(["--dry-run"] if dry_run else [])]
        return await self.fleet.each(
            lambda node: self._call(node, words, timeout=_STOP, any_answer=True),
        )

    async def logs(self, lines: int) -> dict[str, Logged | NodeError]:
        """The last lines of every rank's log, all if negative, by node; without nodes that know of none."""

        async def one(node: Node) -> Logged | None:
            words = ["follow", self._name, "--once", f"--lines={lines}"]
            done = await node.run(await self._argv(node, words), timeout=_ASK)
            rank, at, found = 0, "", []
            for said in (parsed(text) for text in done.stdout.splitlines()):
                if said.get("ok") is False:
                    raise error_of(node, said, words)
                if said.get("t") == "unknown":
                    return None
                if said.get("t") == "state":
                    rank = int((said["state"] or {}).get("rank", 0))
                elif said.get("t") == "log":
                    found += said["lines"]
                    at = said["at"]
            if done.code:
                raise failed(node.host, "read the log", done)
            return Logged(node.host, rank, found, at)

        found = await self.fleet.each(one)
        return {name: log for name, log in found.items() if log is not None}

    async def follow(
        self,
        names: Sequence[str] | None = None,
        *,
        leash: bool = True,
        lines: int = -1,
        at: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Event]:
        """What the nodes say, as it comes, until all their ranks have ended.

        leash: until `ready`, the deployment stops when this iteration does. lines: of each log to begin with,
        all if negative. at: by node, where to go on instead. A broken connection is opened again for a while;
        a node that stays lost is followed no longer. Raises NodeError when no node is left to follow, or
        none has the deployment.
        """
        chosen = list(self.fleet.nodes) if names is None else list(names)
        queue: asyncio.Queue[Event | None] = asyncio.Queue(maxsize=1000)
        tasks = []
        for name in chosen:
            begin = [f"--at={at[name]}"] if at and name in at else [f"--lines={lines}"]
            words = ["follow", self._name, *begin, *(["--leash"] if leash else [])]
            tasks.append(asyncio.create_task(Follower(self.fleet, name, words, self._argv, queue).run()))
        try:
            left = len(tasks)
            while left:
                event = await queue.get()
                if event is None:
                    left -= 1
                else:
                    yield event
            errors = [error for error in await asyncio.gather(*tasks) if error is not None]
            if errors and len(errors) == len(tasks):
                raise errors[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- one command on one node ---------------------------------------------------------------------------

    async def _argv(self, node: Node, words: Sequence[str]) -> list[str]:
        """The command that runs the agent's subcommand there; ships the agent where it is not yet."""
        if node.host not in self._shipped:
            self._shipped[node.host] = await AGENT.ship(node, DIRECTORY)
        return [self._python, "-I", self._shipped[node.host], *words]

    async def _call(
        self,
        node: Node,
        words: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002 - as subprocess.run calls it
        timeout: float = _ASK,
        any_answer: bool = False,
    ) -> Any:
        """What a subcommand answers. Raises NodeError where it says that it failed, unless any_answer."""
        done = await node.run(await self._argv(node, words), timeout=timeout, input=input)
        said = parsed(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "")
        if said == {}:
            raise failed(node.host, f"{words[0]} {self.name or ''}".strip(), done)
        if isinstance(said, dict) and said.get("ok") is False and not any_answer:
            raise error_of(node, said, words)
        return said


def _all(found: Mapping[str, Any]) -> dict[str, Any]:
    """The results of all nodes. Raises the first error among them."""
    for result in found.values():
        if isinstance(result, GlmsparkError):
            raise result
    return dict(found)
