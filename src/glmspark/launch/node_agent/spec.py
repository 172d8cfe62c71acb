"""What a rank is to be, as the control machine sends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .files import Trouble
from .proc import HOME_MARK, ID_MARK

VERSION = 1
# Variables torch and vLLM act on: a rank gets them from its spec, never by chance from a login.
_PER_RANK = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "VLLM_API_KEY")


@dataclass(frozen=True)
class Canary:
    """A question with a known answer. expect: a regular expression that is found in it. seconds: for it."""

    prompt: str
    expect: str
    max_tokens: int
    seconds: float
    thinking: bool = False


@dataclass(frozen=True)
class Api:
    """Where rank 0 serves, as this node reaches it. listen: the address it binds."""

    host: str
    listen: str
    port: int
    model: str


@dataclass(frozen=True)
class Watching:
    """What the leader judges by, and what it does then. Seconds, but for times (0: never) and minutes.

    times, minutes: at most so many restarts in so long. start: for the engine to serve again. api: for it to
    say how it is. tokens: without a token while requests run. canary: for an answer of one token; every:
    between two of those while nothing else runs. halted: that a process of a rank may be stopped.
    keep_up: come back when a node that was lost is there again, also after a reboot.
    """

    times: int = 0
    minutes: float = 30.0
    start: float = 600.0
    api: float = 30.0
    tokens: float = 60.0
    canary: float = 60.0
    every: float = 60.0
    halted: float = 5.0
    keep_up: bool = False


@dataclass(frozen=True)
class Spec:
    """One rank as the control machine wants it; see `parse`."""

    id: str
    name: str
    node: str
    rank: int
    world: int
    container: bool
    argv: tuple[str, ...]
    env: Mapping[str, str]
    env_file: Mapping[str, str]
    secrets: Mapping[str, str]
    listen: tuple[str, int] | None
    connect: tuple[str, int] | None
    silence: float
    join: float
    scratch: str | None
    stop: float
    api: Api | None = None
    canaries: tuple[Canary, ...] = ()
    watching: Watching = Watching()
    guard: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, value: Any) -> Spec:
        """The spec in a JSON value. Raises Trouble that names the field."""
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise Trouble(f"not a spec of version {VERSION}", step="read the spec")

        def get(name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
            found = value.get(name, default)
            if not isinstance(found, kind) or isinstance(found, bool):
                raise Trouble(f"the spec's {name} is {found!r}", step="read the spec")
            return found

        def texts(name: str) -> dict[str, str]:
            found = get(name, dict, {})
            kept = {key: text for key, text in found.items() if text is not None}
            if not all(isinstance(part, str) and "\0" not in part for pair in kept.items() for part in pair):
                raise Trouble(f"the spec's {name} holds what is not text", step="read the spec")
            return kept

        watch, limits = get("watch", dict, {}), get("limits", dict, {})
        argv = get("argv", list)
        runtime = get("runtime", str)
        if not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
            raise Trouble("the spec's argv is no command", step="read the spec")
        if runtime not in ("process", "container") or (runtime == "container" and "run" not in argv):
            raise Trouble(f"the spec's runtime is {runtime!r}", step="read the spec")
        if any("\n" in part for pair in texts("env_file").items() for part in pair):
            raise Trouble("a variable for a container may hold no line end", step="read the spec")
        scratch = get("scratch", (str, type(None)))
        if scratch is not None and not (
            scratch.startswith("/") and Path(scratch).name.startswith("glmspark-")
        ):
            raise Trouble(f"the spec's scratch is {scratch!r}: not /.../glmspark-*", step="read the spec")
        return cls(
            id=get("id", str),
            name=get("name", str),
            node=get("node", str),
            rank=get("rank", int),
            world=get("world", int),
            container=runtime == "container",
            argv=tuple(argv),
            env=texts("env"),
            env_file=texts("env_file"),
            secrets=texts("secrets"),
            listen=_endpoint(watch.get("listen")),
            connect=_endpoint(watch.get("connect")),
            silence=float(watch.get("silence") or 8.0),
            join=float(watch.get("join") or 60.0),
            scratch=scratch,
            stop=float(limits.get("stop") or 5.0),
            api=_part(Api, value.get("api")),
            canaries=tuple(_part(Canary, one) for one in get("canaries", list, [])),
            watching=_part(Watching, value.get("watching")) or Watching(),
            guard=get("guard", (dict, type(None))),
        )

    @property
    def docker(self) -> list[str]:
        """The Docker command as the spec calls it: `docker`, or `sudo -n docker`."""
        return list(self.argv[: self.argv.index("run")]) if self.container else ["docker"]

    def argv_labelled(self, label: str) -> list[str]:
        """The command, of a container with a label right after `run`."""
        if not self.container:
            return list(self.argv)
        at = self.argv.index("run") + 1
        return [*self.argv[:at], "--label", label, *self.argv[at:]]

    def rank_env(self, home: Path, inherited: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of a rank that is a process."""
        env = {name: text for name, text in inherited.items() if name not in _PER_RANK}
        env |= {**self.env, **self.env_file}
        if self.rank == 0 and self.secrets.get("api_key"):
            env["VLLM_API_KEY"] = self.secrets["api_key"]
        return env | {ID_MARK: self.id, HOME_MARK: str(home)}


_KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}


def _part(kind: type[Any], value: Any) -> Any:
    """A part of the spec from its JSON object, None without one. Raises Trouble that names the field."""
    if value is None:
        return None
    known = {one.name: one.type for one in fields(kind)}
    if not isinstance(value, dict) or not set(value) <= set(known):
        raise Trouble(f"the spec's {kind.__name__.lower()} is {value!r}", step="read the spec")
    for name, found in value.items():
        wanted = _KINDS[str(known[name])]
        if not isinstance(found, wanted) or (isinstance(found, bool) and bool not in wanted):
            raise Trouble(f"the spec's {kind.__name__.lower()}.{name} is {found!r}", step="read the spec")
    try:
        return kind(**value)
    except TypeError as error:
        raise Trouble(
            f"the spec's {kind.__name__.lower()} lacks something: {error}", step="read the spec"
        ) from None


def _endpoint(text: Any) -> tuple[str, int] | None:
    if text is None:
        return None
    host, colon, port = str(text).rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise Trouble(f"the spec's watch address is {text!r}, not IP:PORT", step="read the spec")
    return host.strip("[]"), int(port)
