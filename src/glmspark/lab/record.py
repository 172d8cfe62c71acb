"""The lab's record and where its files lie.

    STATE/lab/
        lab.json        what stands or is being made; written whole or not at all, by who holds the lock
        lock            held by `lab up`, `down`, `cut`, `mend` and `image` while they work
        cluster.yaml    the lab as a cluster
        ssh/            the lab's key, the nodes' host keys (known_hosts), config for `ssh -F`
        nodes/NAME/     a node's own directories; log/ has what its daemons print
        cache/          base images; the only part that `lab down` keeps

Everything else a lab consists of is kept alive by its processes alone: each namespace lasts as long as the
process that holds it, each interface and mount as long as its namespace. A process is recognised by the
record and by a marker in its environment, so cleaning up needs no complete record.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from glmspark.config import state_dir
from glmspark.config.files import read_json, write_json
from glmspark.errors import StateError
from glmspark.lab.spec import LabSpec
from glmspark.lab.wiring import Wiring, wire
from glmspark.nodes.processes import Identity

MARK = "GLMSPARK_LAB"
"""Environment variable of every process of a lab: the lab's directory."""

UNFINISHED = "making-"
"""How directories in which an image is made are called."""

VERSION = 1


class State(StrEnum):
    """How far a lab has come."""

    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"


@dataclass
class NodeRecord:
    """A node's processes: the outer one that started the namespaces, and process 1 inside."""

    name: str
    holder: Identity | None = None
    init: Identity | None = None


@dataclass
class LabRecord:
    """What stands or is being made.

    created: Unix seconds. uid: of the lab's user. claimed: whether the machine's interface of this slot is
    known to be the lab's; until then another lab may have it.
    """

    spec: LabSpec
    slot: int
    boot: str
    created: float
    uid: int
    state: State = State.STARTING
    claimed: bool = False
    switch: Identity | None = None
    nodes: list[NodeRecord] = field(default_factory=list)

    @property
    def wiring(self) -> Wiring:
        """The lab's network."""
        return wire(self.spec, self.slot)

    def node(self, name: str) -> NodeRecord | None:
        """The record of a node, None for an unknown name."""
        return next((node for node in self.nodes if node.name == name), None)

    def processes(self) -> list[Identity]:
        """All recorded processes."""
        each = [self.switch, *(one for node in self.nodes for one in (node.holder, node.init))]
        return [one for one in each if one is not None]

    def to_json(self) -> dict[str, Any]:
        """The record as JSON data."""
        return {
            "version": VERSION,
            "spec": self.spec.to_json(),
            "slot": self.slot,
            "boot": self.boot,
            "created": self.created,
            "uid": self.uid,
            "state": str(self.state),
            "claimed": self.claimed,
            "switch": _out(self.switch),
            "nodes": [
                {"name": node.name, "holder": _out(node.holder), "init": _out(node.init)}
                for node in self.nodes
            ],
        }

    @classmethod
    def from_json(cls, data: Any) -> LabRecord:
        """The record in JSON data. Raises KeyError, TypeError or ValueError where it is not one."""
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']!r} is not known")
        return cls(
            spec=LabSpec.from_json(data["spec"]),
            slot=int(data["slot"]),
            boot=str(data["boot"]),
            created=float(data["created"]),
            uid=int(data["uid"]),
            state=State(data["state"]),
            claimed=bool(data["claimed"]),
            switch=_in(data["switch"]),
            nodes=[
                NodeRecord(str(node["name"]), _in(node["holder"]), _in(node["init"]))
                for node in data["nodes"]
            ],
        )


def _out(identity: Identity | None) -> list[int] | None:
    return None if identity is None else [identity.pid, identity.started]


def _in(data: Any) -> Identity | None:
    if data is None:
        return None
    pid, started = data
    return Identity(int(pid), int(started))


@dataclass(frozen=True)
class LabHome:
    """The directory of a lab."""

    path: Path

    @property
    def record_file(self) -> Path:
        """The record."""
        return self.path / "lab.json"

    @property
    def lock_file(self) -> Path:
        """Held while a command changes the lab."""
        return self.path / "lock"

    @property
    def cluster_file(self) -> Path:
        """The lab as a cluster."""
        return self.path / "cluster.yaml"

    @property
    def ssh(self) -> Path:
        """Keys, known_hosts and config."""
        return self.path / "ssh"

    @property
    def key(self) -> Path:
        """The private key of the lab's user."""
        return self.ssh / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The nodes' host keys."""
        return self.ssh / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`."""
        return self.ssh / "config"

    @property
    def nodes(self) -> Path:
        """The nodes' own directories."""
        return self.path / "nodes"

    @property
    def cache(self) -> Path:
        """Base images."""
        return self.path / "cache"

    def unfinished(self) -> list[Path]:
        """What a killed making of an image has left in the cache."""
        return sorted(self.cache.glob(f"{UNFINISHED}*"))

    @property
    def cgroup(self) -> str:
        """The control group that holds the nodes' containers; the name follows from the path alone."""
        return "glmspark-lab-" + hashlib.sha256(str(self.path).encode()).hexdigest()[:12]

    def read(self) -> LabRecord | None:
        """The record, None where there is none. StateError where it cannot be read or understood."""
        if not self.record_file.exists():
            return None
        data = read_json(self.record_file)
        try:
            return LabRecord.from_json(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(
                f"{self.record_file} is not a record of a lab",
                step="read the lab's record",
                seen=f"{type(error).__name__}: {error}",
                next="`glmspark lab down` clears everything the lab has left",
            ) from error

    def write(self, record: LabRecord) -> None:
        """Write the record. StateError where that is not possible."""
        write_json(self.record_file, record.to_json())


def lab_home() -> LabHome:
    """The lab of this state directory."""
    return LabHome(state_dir() / "lab")
