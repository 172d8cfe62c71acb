"""The control machine's side of a deployment on nodes: the agents there, asked and followed over SSH.

What runs on a node is `launch.node_agent`, shipped as one zip archive. Each call is one command on every
node at the same time; what goes wrong on a node is a NodeError with the node's name, the step, what was seen
and what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from glmspark.errors import GlmsparkError
from glmspark.launch import node_agent
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import Node, failed
from glmspark.nodes.ssh import SshNode
from glmspark.nodes.transport import NodeError

PYTHON = "python3"
"""The interpreter on the nodes: the system's own, 3.10 or newer."""
BEAT, SILENCE, AGAIN = 2.0, 6.0, 12.0
"""Seconds between signs of life, without one until a connection counts as lost, for it to come back."""
_START, _STOP, _ASK = 240.0, 45.0, 30.0  # seconds one command may take on a node
_LONGEST_LINE = 1 << 22

_MAIN = """\
import sys
if sys.version_info < (3, 10):
    print('{"ok": false, "error": "Python 3.10 or newer is needed, this is %d.%d", "step": "run the agent", '
          '"next": "install python3 of Ubuntu 22.04 or newer"}' % sys.version_info[:2])
    sys.exit(1)
from node_agent.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

_WHERE = """printf '%s\\n' "${GLMSPARK_STATE_DIR:-$HOME/.local/state/glmspark}/ranks" """

_SHIP = """\
set -eu
umask 077
base=${GLMSPARK_STATE_DIR:-$HOME/.local/state/glmspark}/ranks
agent=$base/agent-$1.pyz
if [ -e "$agent" ]; then
  cat > /dev/null
else
  mkdir -p -- "$base"
  temporary=$(mktemp -- "$base/.agent.XXXXXXXX")
  trap 'rm -f -- "$temporary"' EXIT
  cat > "$temporary"
  arrived=$(sha256sum < "$temporary")
  [ "${arrived%% *}" = "$1" ] || { echo 'the agent did not arrive whole' >&2; exit 1; }
  find "$base" -maxdepth 1 -name 'agent-*.pyz' -mtime +7 -delete
  mv -f -- "$temporary" "$agent"
  trap - EXIT
fi
printf '%s\\n' "$agent"
"""


@functools.cache
def archive() -> bytes:
    """The agent as one zip archive that Python runs; the same bytes for the same source."""
    packed = io.BytesIO()
    sources = sorted(Path(node_agent.__file__).parent.glob("*.py"))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in [("__main__.py", _MAIN.encode())] + [
            (f"node_agent/{source.name}", source.read_bytes()) for source in sources
        ]:
            file.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


@dataclass(frozen=True)
class Event:
    """What a node said. kind: 'state' (data: its state.json), 'log' (data: rank, line), 'lost' (data: what)
    when its connection broke, 'back' when it came again."""

    node: str
    rank: int | None
    kind: str
    data: Mapping[str, Any]


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
            done = await node.must(["sh", "-c", _WHERE], "find the home directory")
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
                raise _error(node, said, words)
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
        """The last lines of every rank's log, all if negative, by node."""

        async def one(node: Node) -> Logged:
            words = ["follow", self._name, "--once", f"--lines={lines}"]
            done = await node.run(await self._argv(node, words), timeout=_ASK)
            rank, at, found = 0, "", []
            for said in (_parsed(text) for text in done.stdout.splitlines()):
                if said.get("ok") is False:
                    raise _error(node, said, words)
                if said.get("t") == "state":
                    rank = int((said["state"] or {}).get("rank", 0))
                elif said.get("t") == "log":
                    found += said["lines"]
                    at = said["at"]
            if done.code:
                raise failed(node.host, "read the log", done)
            return Logged(node.host, rank, found, at)

        return await self.fleet.each(one)

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
            tasks.append(asyncio.create_task(_Follower(self, name, words, queue).run()))
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
            digest = hashlib.sha256(archive()).hexdigest()
            done = await node.must(["sh", "-c", _SHIP, "ship", digest], "ship the agent", input=archive())
            self._shipped[node.host] = done.stdout.strip().splitlines()[-1]
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
        said = _parsed(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "")
        if said == {}:
            raise failed(node.host, f"{words[0]} {self.name or ''}".strip(), done)
        if isinstance(said, dict) and said.get("ok") is False and not any_answer:
            raise _error(node, said, words)
        return said


class _Follower:
    """One node followed: its connection opened again when it breaks."""

    def __init__(
        self, agents: Agents, name: str, words: Sequence[str], queue: asyncio.Queue[Event | None]
    ) -> None:
        self._agents, self._name, self._words, self._queue = agents, name, list(words), queue
        self._rank: int | None = None
        self._lost: float | None = None

    async def run(self) -> NodeError | None:
        """Follow to the end; the error of a node that stays lost."""
        try:
            return await self._run()
        finally:
            with contextlib.suppress(asyncio.QueueFull):
                await self._queue.put(None)

    async def _run(self) -> NodeError | None:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                if self._lost is not None:
                    await self._agents.fleet.again(self._name)
                if await self._once():
                    return None
                raise NodeError("the connection was lost", host=self._name, step="follow the rank")
            except _RefusedError as refused:
                return refused.error
            except NodeError as error:
                now = clock()
                if self._lost is None:
                    self._lost = now
                    await self._say("lost", {"what": error.message})
                if now - self._lost > AGAIN:
                    return error
                await asyncio.sleep(1.0)

    async def _say(self, kind: str, data: Mapping[str, Any]) -> None:
        await self._queue.put(Event(self._name, self._rank, kind, data))

    async def _once(self) -> bool:
        """Follow over one connection. True when the rank's end was told, False when it broke before."""
        node = self._agents.fleet.nodes[self._name]
        if not isinstance(node, SshNode):
            raise _RefusedError(NodeError("only nodes behind SSH can be followed", host=node.host))
        argv = await self._agents._argv(node, self._words)
        process = await node.open(argv)
        beats = asyncio.create_task(_beat(process))
        try:
            while True:
                line = await asyncio.wait_for(process.stdout.readline(), SILENCE)
                if not line.endswith(b"\n"):
                    return False
                if await self._heard(node, _parsed(line.decode("utf-8", "replace"))):
                    return True
        except (TimeoutError, asyncssh.Error, OSError):
            return False
        finally:
            beats.cancel()
            process.close()

    async def _heard(self, node: Node, said: Any) -> bool:
        if said.get("ok") is False:
            raise _RefusedError(_error(node, said, self._words))
        if self._lost is not None:
            self._lost = None
            await self._say("back", {})
        what = said.get("t")
        if what == "state" and said["state"] is not None:
            self._rank = said["state"]["rank"]
            await self._say("state", said["state"])
        elif what == "log":
            for line in said["lines"]:
                await self._say("log", {"rank": self._rank, "line": line})
            self._words = [f"--at={said['at']}" if word.startswith(("--at=", "--lines=")) else word
                           for word in self._words]  # fmt: skip
        return bool(what == "end")


class _RefusedError(Exception):
    """The node answered that it will not: there is no use in asking again."""

    def __init__(self, error: NodeError) -> None:
        super().__init__(error.message)
        self.error = error


async def _beat(process: asyncssh.SSHClientProcess[bytes]) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        while True:
            process.stdin.write(b".")
            await asyncio.sleep(BEAT)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return {}


def _error(node: Node, said: Mapping[str, Any], words: Sequence[str]) -> NodeError:
    return NodeError(
        str(said.get("error")),
        host=node.host,
        step=said.get("step") or " ".join(words[:2]),
        seen=said.get("seen"),
        next=said.get("next"),
    )


def _all(found: Mapping[str, Any]) -> dict[str, Any]:
    """The results of all nodes. Raises the first error among them."""
    for result in found.values():
        if isinstance(result, GlmsparkError):
            raise result
    return dict(found)
