"""cluster.yaml: the nodes, how to reach them, and the fabric between them.

The classes here are the file format; `load_cluster` reads it, `dump_cluster` writes it.
"""

from __future__ import annotations

import io
import ipaddress
import os
import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)
from ruamel.yaml import YAML

from glmspark.config.canaries import Section, at_least
from glmspark.config.paths import expand
from glmspark.config.problems import FileError, check_file, read_file
from glmspark.config.yamltree import Problem
from glmspark.errors import UsageError

__all__ = [
    "IMAGE_NAME",
    "Cluster",
    "ClusterError",
    "Link",
    "Node",
    "Paths",
    "Runtime",
    "SshOptions",
    "check_cluster",
    "dump_cluster",
    "load_cluster",
    "parse_cluster",
]


IMAGE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$"
"""What can name an image; nothing that Docker could take for an option."""


class ClusterError(FileError):
    """A cluster file that is missing or wrong; see FileError."""

    step_name = "read cluster"


def _host(value: str) -> str:
    """An IP address or a host name; what could be taken for an option or a shell's word is refused."""
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        labels = value.removesuffix(".").split(".")
        if len(value) <= 253 and all(_LABEL.fullmatch(label) for label in labels):
            return value
    raise ValueError(f"{value!r} is neither an IP address nor a host name")


def _interface_address(value: object) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    if isinstance(value, ipaddress.IPv4Interface | ipaddress.IPv6Interface):
        return value
    if not isinstance(value, str) or "/" not in value:
        raise ValueError(f"expected an address with its prefix such as 192.168.177.11/24, got {value!r}")
    try:
        return ipaddress.ip_interface(value)
    except ValueError:
        raise ValueError(
            f"{value!r} is not an address with its prefix; write it like 192.168.177.11/24"
        ) from None


def _absolute(value: str) -> str:
    if not value.startswith(("/", "~/")) or "\0" in value or "\n" in value:
        raise ValueError(f"{value!r} is not an absolute path; write /dir or ~/dir")
    return value


def _mounted(value: str) -> str:
    """A directory by its whole path, as `docker run --mount` can take it."""
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or any(one in value for one in ("\0", "\n", ",", '"')):
        raise ValueError(f"{value!r} cannot be mounted: write an absolute path without .. , and quotes")
    if str(path) in _NEVER_MOUNTED:
        raise ValueError(f"{value!r} would hide what the container itself needs")
    return str(path)


def _as_text(value: object) -> object:
    """An SSH user may well be called 1234: YAML reads that as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_NEVER_MOUNTED = {"/", "/dev", "/etc", "/proc", "/sys", "/tmp"}  # noqa: S108 - refused, not used
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Host = Annotated[str, AfterValidator(_host)]
User = Annotated[str, BeforeValidator(_as_text), Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]
NetPort = Annotated[int, Field(ge=1, le=65535)]
AbsolutePath = Annotated[str, AfterValidator(_absolute), Field(max_length=4096)]
MountedPath = Annotated[str, AfterValidator(_mounted), Field(max_length=4096)]
InterfaceAddress = Annotated[
    ipaddress.IPv4Interface | ipaddress.IPv6Interface,
    PlainValidator(_interface_address),
    PlainSerializer(str),
]


class SshOptions(Section):
    """How nodes are reached. What is not given is left to ~/.ssh/config, the agent and ~/.ssh/known_hosts."""

    user: User | None = None
    port: NetPort | None = None
    identity_file: AbsolutePath | None = None
    known_hosts: AbsolutePath | None = None


class Link(Section):
    """One fabric interface of a node.

    hca: the RDMA device behind it, as ibv_devices names it. gid_index: only to insist on one; else it is
    looked up at every start, since it differs between nodes and moves.
    """

    interface: Annotated[str, Field(pattern=r"^[^\s/:]{1,15}$")]
    address: InterfaceAddress
    hca: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,64}$")] | None = None
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None


class Node(Section):
    """One machine. address: where SSH reaches it. fabric: its links to other nodes, the ranks' own first."""

    name: Name
    address: Host
    user: User | None = None
    port: NetPort | None = None
    identity_file: AbsolutePath | None = None
    known_hosts: AbsolutePath | None = None
    fabric: tuple[Link, ...] = ()


class Paths(Section):
    """Where things lie on every node; ~ is the home of the SSH user there."""

    models: AbsolutePath = "~/.local/share/glmspark/models"
    cache: AbsolutePath = "~/.cache/glmspark"


class Runtime(Section):
    """What ranks run in: containers of an image, or a Python environment (venv: its directory).

    python: the engine's Python in the container. mounts: directories that containers get from their node,
    read-only and at the same path: an environment that is not in the image.
    """

    kind: Literal["docker", "venv"] = "docker"
    image: Annotated[str, Field(pattern=IMAGE_NAME)] | None = None
    python: Annotated[str, Field(pattern=r"^/?[A-Za-z0-9._+-][A-Za-z0-9._+/ -]{0,1000}$")] | None = None
    mounts: tuple[MountedPath, ...] = ()
    venv: AbsolutePath | None = None

    @model_validator(mode="after")
    def _fits(self) -> Runtime:
        if self.kind == "docker" and self.venv is not None:
            raise ValueError("venv is given, but kind is docker: write kind: venv, or leave venv out")
        if self.kind == "venv" and self.image is not None:
            raise ValueError("image is given, but kind is venv: write kind: docker, or leave image out")
        if self.kind == "venv" and (self.mounts or self.python is not None):
            raise ValueError("python and mounts are a container's; with kind: venv leave them out")
        if self.kind == "venv" and self.venv is None:
            raise ValueError("kind is venv, but venv, the environment's directory on the nodes, is missing")
        return self


class Cluster(Section):
    """A whole cluster file."""

    cluster: Literal[1]
    name: Name = "cluster"
    ssh: SshOptions = SshOptions()
    paths: Paths = Paths()
    runtime: Runtime = Runtime()
    nodes: Annotated[tuple[Node, ...], at_least(1)]

    @model_validator(mode="after")
    def _consistent(self) -> Cluster:
        for what, values in (
            ("name", [node.name for node in self.nodes]),
            ("address", [f"{node.address} port {self.reach(node).port or 22}" for node in self.nodes]),
            ("fabric address", [str(link.address.ip) for node in self.nodes for link in node.fabric]),
        ):
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"two nodes have the {what} {twice}")
        for node in self.nodes:
            names = [link.interface for link in node.fabric]
            if len(set(names)) < len(names):
                raise ValueError(f"{node.name} lists an interface twice")
            if len(self.nodes) > 1 and not self._has_neighbour(node):
                raise ValueError(
                    f"no fabric link of {node.name} is in the same network as one of another node"
                    if node.fabric
                    else f"{node.name} has no fabric, which more than one node need"
                )
        return self

    def _has_neighbour(self, node: Node) -> bool:
        return any(
            mine.address.network == theirs.address.network
            for mine in node.fabric
            for other in self.nodes
            if other is not node
            for theirs in other.fabric
        )

    def reach(self, node: Node) -> SshOptions:
        """How to reach a node: its own settings before the cluster's."""
        own = {name: getattr(node, name) for name in SshOptions.model_fields}
        return SshOptions(**{name: own[name] or getattr(self.ssh, name) for name in own})

    def node(self, name: str) -> Node | None:
        """The node of this name, None where there is none."""
        return next((node for node in self.nodes if node.name == name), None)


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Read and check a cluster file. Raises ClusterError, and nothing else, for anything wrong with it."""
    try:
        file = expand(path)
    except UsageError as error:
        raise ClusterError(str(path), [Problem(None, error.message, error.next)]) from None
    raw = read_file(
        file,
        ClusterError,
        "a cluster file",
        missing=lambda: "`glmspark init HOST...` writes one, `glmspark lab up` a lab's",
    )
    return parse_cluster(raw, str(file))


def parse_cluster(raw: bytes, path: str) -> Cluster:
    """The cluster in a file's bytes; path is only for messages. Raises ClusterError with all problems."""
    cluster, problems = check_cluster(raw)
    if cluster is None or problems:
        raise ClusterError(path, problems)
    return cluster


def check_cluster(raw: bytes) -> tuple[Cluster | None, list[Problem]]:
    """The cluster in a file's bytes, if it can be built, and everything wrong with it in order of lines."""
    cluster, _, problems = check_file(Cluster, raw, "a cluster file")
    return cluster, sorted(problems, key=lambda problem: problem.line or 0)


def dump_cluster(cluster: Cluster, *, comment: str = "") -> bytes:
    """A cluster as the bytes of a file, without what has its default; parse_cluster reads the same back."""
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 100
    out = io.BytesIO()
    yaml.dump({"cluster": cluster.cluster} | cluster.model_dump(mode="json", exclude_defaults=True), out)
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head.encode() + out.getvalue()
