"""Weights along a chain of nodes: each takes from the one before it and passes on what it has verified.

The control machine starts the relay on every node over SSH, tells each where the one before it listens, and
starts one that was killed anew; what is verified is never sent again. The relays end with the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncssh

from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import LocalNode, LocalProcess
from glmspark.nodes.ssh import SshNode
from glmspark.nodes.transport import NodeError
from glmspark.weights.archive import Program, heard, place
from glmspark.weights.ways import Ways

__all__ = ["HubSource", "Outcome", "Part", "Piece", "Plan", "Progress", "certificate", "chain", "spread"]

Process = asyncssh.SSHClientProcess[bytes] | LocalProcess
"""A relay that runs, on a node or on this machine."""

_RESTARTS = 5
"""Times that one node's relay is started anew within a transfer."""
_LINE = 1 << 20


@dataclass(frozen=True)
class HubSource:
    """Where a file lies on the hub, and the hash of it that the hub states."""

    url: str
    sha256: str | None = None
    blob: str | None = None


@dataclass(frozen=True)
class Part:
    """Some tensors of a shard, kept as a file of their own. header: of that file, as JSON text. spans: bytes
    [begin, end) of the original that follow it, in rising order; without any nothing is kept."""

    header: str
    spans: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Bytes of the file that is kept."""
        own = 8 + len(self.header.encode()) if self.spans else 0
        return own + sum(end - begin for begin, end in self.spans)


@dataclass(frozen=True)
class Piece:
    """A file of the model. source: a node's name, a place on the hub, the content itself, or None where the
    node has it. part: what is kept of it, None for all. through: others get all of it from here. identity:
    the hub's hash of it, if known."""

    name: str
    size: int
    source: str | HubSource | bytes | None
    part: Part | None = None
    through: bool = False
    identity: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As the relay reads it."""
        said: Any = self.source
        if isinstance(said, HubSource):
            said = {"url": said.url, "sha256": said.sha256, "blob": said.blob}
        elif isinstance(said, bytes):
            said = {"text": said.decode()}
        entry = {"name": self.name, "size": self.size, "from": said}
        if self.part is not None:
            entry["part"] = {"header": self.part.header, "spans": self.part.spans}
        if self.through:
            entry["through"] = True
        return entry if self.identity is None else {**entry, "identity": self.identity}


@dataclass(frozen=True)
class Plan:
    """What each node is to have, and where from. addresses: by giver and taker, the giver's. elsewhere:
    patterns of directories on nodes in which the files may lie already. rate: bytes a second that each node
    sends."""

    directory: str
    pieces: Mapping[str, Sequence[Piece]]
    addresses: Mapping[str, Mapping[str, str]]
    elsewhere: tuple[str, ...] = ()
    rate: int | None = None
    trusted: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass
class Progress:
    """One node's, in bytes. cpu: seconds its relay used. eta: seconds left, None while that is not known."""

    node: str
    verified: int = 0
    total: int = 0
    received: int = 0
    reused: int = 0
    sent: int = 0
    cpu: float = 0.0
    wrong: int = 0
    broken: int = 0
    restarts: int = 0
    done: bool = False
    eta: float | None = None


@dataclass(frozen=True)
class Outcome:
    """A transfer that ended well."""

    nodes: Mapping[str, Progress]
    seconds: float
    algorithm: str


def chain(
    way: Ways,
    files: Mapping[str, int],
    hub: Mapping[str, HubSource] | None = None,
) -> dict[str, list[Piece]]:
    """Where each node takes the files from: the one before it.

    The first has all files, or takes them from the hub. config.json comes last: a directory without it is no
    model yet.
    """
    order = sorted(files, key=lambda name: (name == "config.json", name))
    first = way.order[0]
    pieces = {first: [Piece(name, files[name], hub[name] if hub else None) for name in order]}
    for node in way.order[1:]:
        pieces[node] = [Piece(name, files[name], way.before[node]) for name in order]
    return pieces


def certificate() -> str:
    """A key and a certificate for one transfer, as PEM: both sides of each connection show it, and trust it
    alone. It is never written to a disk."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "glmspark transfer")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of nodes differ; what limits its use is that nobody has the key when the transfer is over.
        .not_valid_before(now - datetime.timedelta(days=365))
        .not_valid_after(now + datetime.timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (private + made.public_bytes(serialization.Encoding.PEM)).decode()


async def spread(
    fleet: Fleet,
    plan: Plan,
    *,
    pythons: tuple[str, ...] = (),
    told: Callable[[Mapping[str, Progress]], None] = lambda _: None,
) -> Outcome:
    """Bring every node what it is to have. pythons: to try on nodes besides python3. told: now and then.

    Raises NodeError naming node, step and what to do; what is verified by then is kept, and goes on from
    there when it is called again.
    """
    names = list(plan.pieces)
    for name in names:
        if name in fleet.lost:
            raise fleet.lost[name]
        for address in plan.addresses[name].values():
            ipaddress.ip_address(address)
    programs: dict[str, Program] = {}
    for name, found in (await fleet.each(lambda node: place(node, pythons), names=names)).items():
        if isinstance(found, NodeError):
            raise found
        programs[name] = found
    shared = set.intersection(*(set(one.algorithms) for one in programs.values()))
    algorithm = "blake3" if "blake3" in shared else "blake2b"
    key = {"secret": secrets.token_hex(32)} if plan.trusted else {"pem": certificate()}
    run = _Run(fleet, plan, programs, algorithm, key, told)
    begun = time.monotonic()
    await run.all()
    return Outcome(run.progress, time.monotonic() - begun, algorithm)


def _takers(plan: Plan, holder: str, piece: Piece) -> set[str]:
    """The nodes that a file has to have come to before its holder may let go of what it does not keep."""
    own = {holder} if piece.part is not None and piece.part.spans else set()
    return own | {
        node
        for node, pieces in plan.pieces.items()
        for one in pieces
        if one.name == piece.name and one.source == holder
    }


class _Run:
    def __init__(
        self,
        fleet: Fleet,
        plan: Plan,
        programs: Mapping[str, Program],
        algorithm: str,
        key: Mapping[str, str],
        told: Callable[[Mapping[str, Progress]], None],
    ) -> None:
        self.fleet, self.plan, self.programs = fleet, plan, programs
        self.algorithm, self.key, self.told = algorithm, key, told
        self.progress = {name: Progress(name) for name in plan.pieces}
        self._where: dict[str, Mapping[str, str]] = {}
        self._processes: dict[str, Process] = {}
        self._begun = time.monotonic()
        self._over = asyncio.Event()
        # What a node only passes on goes as soon as these nodes have it.
        self._waiting = {
            (name, piece.name): _takers(plan, name, piece)
            for name, pieces in plan.pieces.items()
            for piece in pieces
            if piece.through
        }

    async def all(self) -> None:
        """All relays, until every node has what it is to have."""
        tasks = [asyncio.create_task(self._node(name)) for name in self.plan.pieces]
        try:
            for task in asyncio.as_completed(tasks):
                await task
        finally:
            self._over.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _node(self, name: str) -> None:
        while True:
            try:
                await self._relay(name)
            except (asyncssh.Error, OSError) as error:
                reason = str(error) or type(error).__name__
            else:
                if self._all_done():
                    return
                reason = "its relay ended"
            finally:
                self._where.pop(name, None)
            self.progress[name].restarts += 1
            if self.progress[name].restarts > _RESTARTS:
                raise NodeError(
                    f"the relay there ended {_RESTARTS + 1} times before it was done",
                    host=name,
                    step="spread the weights",
                    seen=reason,
                    next="see the node's kernel log (dmesg): was it killed for memory?",
                )
            await asyncio.sleep(0.5)
            with contextlib.suppress(NodeError):
                await self.fleet.again(name)

    async def _relay(self, name: str) -> None:
        node = self.fleet.nodes[name]
        assert isinstance(node, SshNode | LocalNode)  # noqa: S101 - there are no others
        try:
            process = await node.open(self.programs[name].argv("run"))
        except NodeError as error:  # the connection is gone: it may come again
            raise OSError(error.message) from error
        self._processes[name] = process
        try:
            process.stdin.write(json.dumps(self._spec(name)).encode() + b"\n")
            for giver, where in self._where.items():
                self._tell(name, giver, where)
            while line := await process.stdout.readline():
                self._heard(name, heard(line))
            await process.wait_closed()
            if process.exit_status not in (0, None) and not self._all_done():
                complaint = (await process.stderr.read(2000)).decode(errors="replace")
                raise OSError(complaint.strip()[-300:] or f"its relay left with {process.exit_status}")
        finally:
            process.close()
            self._processes.pop(name, None)

    def _spec(self, name: str) -> dict[str, Any]:
        plan = self.plan
        takers = [one for one, pieces in plan.pieces.items() if any(piece.source == name for piece in pieces)]
        downloads = any(isinstance(piece.source, HubSource) for piece in plan.pieces[name])
        return {
            "directory": plan.directory,
            "algorithm": self.algorithm,
            "files": [piece.to_json() for piece in plan.pieces[name]],
            "listen": sorted({plan.addresses[name][one] for one in takers}),
            "key": self.key,
            "rate": plan.rate,
            "elsewhere": plan.elsewhere,
            "headers": dict(plan.headers) if downloads else {},
        }

    def _heard(self, name: str, said: dict[str, Any]) -> None:
        mine = self.progress[name]
        match said.get("t"):
            case "listening" if said["addresses"]:
                self._where[name] = said["addresses"]
                for taker in self._processes:
                    self._tell(taker, name, said["addresses"])
            case "progress" | "done":
                for key in ("verified", "total", "received", "sent", "cpu", "wrong", "broken", "reused"):
                    if key in said:
                        setattr(mine, key, said[key])
                mine.done = mine.done or said["t"] == "done"
                seconds = time.monotonic() - self._begun
                left = mine.total - mine.verified
                mine.eta = None if not mine.received else left * seconds / mine.received
                self.told(self.progress)
                if self._all_done():
                    for other in self._processes.values():
                        with contextlib.suppress(OSError, asyncssh.Error):
                            other.stdin.write(b'{"stop": true}\n')
            case "have":
                self._release(name, str(said["name"]))
            case "failed":
                raise NodeError(
                    str(said.get("error")),
                    host=name,
                    step=said.get("step") or "spread the weights",
                    next=said.get("next") or "fetch again: it goes on where it stopped",
                )

    def _release(self, node: str, file: str) -> None:
        for (holder, name), takers in list(self._waiting.items()):
            if name != file or node not in takers:
                continue
            takers.discard(node)
            if not takers and (process := self._processes.get(holder)) is not None:
                del self._waiting[holder, name]
                with contextlib.suppress(OSError, asyncssh.Error):
                    process.stdin.write(json.dumps({"release": [name]}).encode() + b"\n")

    def _tell(self, taker: str, giver: str, where: Mapping[str, str]) -> None:
        """Where a giver listens, for one that may take from it."""
        address = where.get(self.plan.addresses.get(giver, {}).get(taker, ""))
        if address is not None:
            with contextlib.suppress(OSError, asyncssh.Error):
                said = json.dumps({"upstreams": {giver: address}})
                self._processes[taker].stdin.write(said.encode() + b"\n")

    def _all_done(self) -> bool:
        return all(one.done for one in self.progress.values())
