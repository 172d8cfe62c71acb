"""The deployment record: what was started, where it stands, and why it ended. One directory per deployment.

    STATE/deployments/NAME/
        deployment.json   this record; written whole or not at all, only by who holds the lock
        lock              held by `glmspark up` and then by the supervisor, for as long as anything may run
        logs/rank-N.log   what the ranks print, logs/supervisor.log what the supervisor does
        verdicts.json     the canaries' verdicts while they are being taken
        api-key           mode 0600, only while an endpoint runs that asks for a key
        reserve           room for the last record on a disk that is full by then

The record holds no secret. It carries a version; a newer one is refused, not guessed at.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from glmspark.config import state_dir
from glmspark.config.files import make_dir, read_json, state_error, write_atomic, write_json
from glmspark.errors import StateError, UsageError
from glmspark.nodes.processes import Identity, boot_id

VERSION = 1

_RESERVE = 256 * 1024
"""Bytes set aside for a deployment's last record; one of eight ranks with all canaries takes a quarter."""

_LONGEST_NAME = 63
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_LONGEST_NAME - 1}}}", re.ASCII)

_LONGEST_BASE, _SHORT_BASE = 32, "/tmp"  # noqa: S108 - the directory in it has mode 0700


class State(StrEnum):
    """Where a deployment stands. Ready and unproven serve; stopped and failed have nothing running."""

    STARTING = "starting"
    READY = "ready"
    UNPROVEN = "unproven"  # a canary failed and --keep left it running
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self in (State.STOPPED, State.FAILED)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Process(_Part):
    """A process of one boot; see nodes.processes.Identity."""

    pid: int
    started: int

    @property
    def identity(self) -> Identity:
        """The same as the nodes room has it."""
        return Identity(self.pid, self.started)

    @classmethod
    def of(cls, identity: Identity) -> Process:
        """The record's form of an identity."""
        return cls(pid=identity.pid, started=identity.started)


class RankRecord(_Part):
    """One rank. env: what was added to the environment, without secrets. since: Unix seconds."""

    rank: int
    node: str
    argv: list[str]
    env: dict[str, str]
    log: str
    process: Process | None = None
    phase: str = "not started"
    since: float = 0.0


class Endpoint(_Part):
    """Where it serves. host: what the server binds; url: what a client on this machine uses."""

    host: str
    port: int
    url: str
    model: str
    needs_key: bool = False


class Limits(_Part):
    """Seconds a start may take: in all, waiting for one another, and answering the canaries."""

    start: float = 300.0
    join: float = 120.0
    prove: float = 180.0


class Reason(_Part):
    """Why a deployment failed. seen: the evidence; next: what to do about it; symptom: its name in the
    catalogue, where it is known."""

    what: str
    rank: int | None = None
    node: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    seen: str | None = None
    next: str | None = None
    symptom: str | None = None
    at: float


class Verdict(_Part):
    """What one canary said. evidence: what was seen; causes: likely ones, for a canary that failed."""

    name: str
    probe: str
    passed: bool
    seconds: float
    evidence: str
    causes: list[str] = []


class ClusterSite(_Part):
    """Where a deployment on a cluster lies: the cluster file's data, and by node the deployment's directory
    and, with the docker runtime, its container."""

    cluster: dict[str, Any]
    directories: dict[str, str]
    containers: dict[str, str] = {}


class Deployment(_Part):
    """The whole record. Times are Unix seconds.

    keep_up: whether it comes back by itself when a node that was lost is there again.

    cluster: None for a deployment of this machine's own supervisor. On a cluster a node's agent answers for
    its rank; nothing but the record and the API key lies on the machine that `glmspark up` was typed on.

    family, shared_memory: processes and files under /dev/shm that the ranks were last seen to have, for
    whoever must clean up without the supervisor.
    """

    version: Literal[1] = 1
    id: str
    name: str
    boot_id: str
    created: float
    state: State = State.STARTING
    since: float
    keep: bool = False
    keep_up: bool = False
    recipe: dict[str, Any]
    plan: dict[str, Any]
    endpoint: Endpoint
    limits: Limits = Limits()
    cluster: ClusterSite | None = None
    scratch: str
    supervisor: Process | None = None
    ranks: list[RankRecord]
    proving: bool = False
    verdicts: list[Verdict] = []
    family: list[Process] = []
    shared_memory: list[str] = []
    reason: Reason | None = None

    @property
    def relatives(self) -> list[Identity]:
        """The ranks' processes as last seen, if they are of this boot; else none of them can be alive."""
        if self.boot_id != boot_id():
            return []
        return [
            one.identity for one in (*self.family, *(rank.process for rank in self.ranks if rank.process))
        ]

    def close(self, state: State, *, at: float | None = None) -> None:
        """Go to a final state: nothing of it runs or lies about any more."""
        self.supervisor, self.proving = None, False
        self.family, self.shared_memory = [], []
        self.turn(state, at=at)

    def turn(self, state: State, *, at: float | None = None) -> None:
        """Go to another state, now or at a given time."""
        self.state = state
        self.since = time.time() if at is None else at


class Home:
    """The directory of one deployment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.record_file = path / "deployment.json"
        self.verdicts_file = path / "verdicts.json"
        self.lock_file = path / "lock"
        self.key_file = path / "api-key"
        self.logs = path / "logs"
        self.supervisor_log = self.logs / "supervisor.log"
        self.reserve_file = path / "reserve"

    def rank_log(self, rank: int) -> Path:
        """Where a rank's output goes."""
        return self.logs / f"rank-{rank}.log"

    def has_record(self) -> bool:
        """Whether there is a record. StateError where that cannot be seen: another user started it."""
        try:
            return self.record_file.exists()
        except OSError as error:
            raise StateError(
                f"cannot look into {self.path}: {error.strerror}",
                step=f"read {self.record_file}",
                next="another user started it, or sudo: use it as that user, or set GLMSPARK_STATE_DIR",
            ) from error

    def read(self) -> Deployment | None:
        """The record, None where there is none. StateError where it is damaged or of a newer glmspark."""
        if not self.has_record():
            return None
        value = read_json(self.record_file)
        version = value.get("version") if isinstance(value, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise StateError(
                f"{self.record_file} was written by a newer glmspark (record version {version})",
                step=f"read {self.record_file}",
                next="use that glmspark to stop it, or upgrade this one",
            )
        try:
            return Deployment.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the whole file"
            raise StateError(
                f"{self.record_file} is not a deployment record",
                step=f"read {self.record_file}",
                seen=f"{place}: {first['msg']}",
                next=f"`glmspark down {self.name}` stops what it started and sets the record aside",
            ) from error

    def write(self, deployment: Deployment) -> None:
        """Replace the record. StateError where the disk does not take it; the old record then stands."""
        write_json(self.record_file, deployment.model_dump(mode="json"))

    def write_last(self, deployment: Deployment) -> None:
        """Replace the record of a deployment that has ended, also on a full disk: the room for it was set
        aside when it began. StateError where not even that is enough."""
        try:
            self.write(deployment)
        except StateError:
            self._give_back_reserve()
            self.write(deployment)
        else:
            self._give_back_reserve()

    def _give_back_reserve(self) -> None:
        with contextlib.suppress(OSError):
            self.reserve_file.unlink(missing_ok=True)

    def write_verdicts(self, verdicts: list[Verdict]) -> None:
        """Replace the verdicts taken so far."""
        write_json(self.verdicts_file, [verdict.model_dump(mode="json") for verdict in verdicts])

    def read_verdicts(self) -> list[Verdict]:
        """The verdicts taken so far; none where there is no file yet."""
        if not self.verdicts_file.exists():
            return []
        try:
            return [Verdict.model_validate(value) for value in read_json(self.verdicts_file)]
        except (ValidationError, TypeError) as error:
            raise StateError(f"{self.verdicts_file} does not hold verdicts", seen=str(error)[:200]) from error

    def write_key(self, key: str) -> None:
        """Keep the API key where only the owner reads it."""
        write_atomic(self.key_file, key.encode(), mode=0o600)

    def read_key(self) -> str | None:
        """The API key, None where the endpoint asks for none. StateError where it cannot be read."""
        try:
            return self.key_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise state_error(error, "read", self.key_file) from error

    def forget_key(self) -> None:
        """Remove the API key: nothing answers to it any more. Where that is not possible it stays."""
        with contextlib.suppress(OSError):
            self.key_file.unlink(missing_ok=True)

    def prepare(self) -> None:
        """Make the directories, and room for a new start: the last one's logs move to logs.previous.

        StateError where the disk does not take it. To be called with the lock held.
        """
        make_dir(self.path)
        previous = self.path / "logs.previous"
        try:
            for leftover in self.path.glob(".*.tmp"):  # of a write that was killed
                leftover.unlink(missing_ok=True)
            self.verdicts_file.unlink(missing_ok=True)
            self.key_file.unlink(missing_ok=True)
            if self.logs.exists():
                shutil.rmtree(previous, ignore_errors=True)
                self.logs.rename(previous)
            with self.reserve_file.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, _RESERVE)
        except OSError as error:
            raise state_error(error, "make room in", self.path) from error
        make_dir(self.logs)

    def remove_if_empty(self) -> None:
        """Remove the directory of a start that came to nothing. To be called with the lock held.

        One with a record or with logs of an earlier start stays.
        """
        with contextlib.suppress(OSError):
            self.logs.rmdir()
        if not self.has_record():
            self._give_back_reserve()
        if {entry.name for entry in self.path.iterdir()} <= {self.lock_file.name}:
            with contextlib.suppress(OSError):
                self.lock_file.unlink(missing_ok=True)
                self.path.rmdir()


def deployments_dir() -> Path:
    """Where the deployments of this user lie."""
    return state_dir() / "deployments"


def home(name: str) -> Home:
    """The directory of a deployment, whether it exists or not. UsageError for what is no name."""
    if not _NAME.fullmatch(name):
        shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
        raise UsageError(
            f"{shown!r} is not a deployment name",
            next=f"a name has at most {_LONGEST_NAME} letters, digits, '.', '_' and '-', "
            "and begins with a letter or digit",
        )
    return Home(deployments_dir() / name)


def homes() -> Iterator[Home]:
    """The directories of all deployments of this user that have a record, or may have one, by name."""
    try:
        found = sorted(entry for entry in deployments_dir().iterdir() if entry.is_dir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise state_error(error, "read", deployments_dir()) from error
    for path in found:
        try:
            there = Home(path).has_record()
        except StateError:  # whoever reads it is told
            there = True
        if there:
            yield Home(path)


def new_id() -> str:
    """A name for one start that no other start has."""
    return secrets.token_hex(8)


def scratch_of(directory: Path) -> Path:
    """The directory for sockets and temporary files of the deployment whose own directory this is.

    It is short because a socket's path holds at most 107 bytes, and always the same one, so that whoever
    cleans up knows it even where the record is damaged.
    """
    base = os.environ.get(
        "TMPDIR", ""
    )  # not tempfile.gettempdir(): it tries to write, and the disk may be full
    tag = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    usable = base.startswith("/") and len(base) <= _LONGEST_BASE
    return Path(base if usable else _SHORT_BASE) / f"glmspark-{os.getuid()}-{tag}"
