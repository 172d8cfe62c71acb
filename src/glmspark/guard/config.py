"""What the guard is told: config.json of the node, guard.json of a deployment with the plan's figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .files import Trouble

VERSION = 1
GIB, MIB = 2**30, 2**20
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What a node may be called: its copies lie in a directory of that name."""
METRICS_PORT, PEER_PORT = 9109, 9110

_LINKS = 16
"""Interfaces of a deployment that are looked at."""
_SPARK = 121 * GIB
"""What a Spark's 128 GB leave to programs."""
_LOAD_FREE = 8 * GIB
"""Free memory below which the page cache is dropped while a model of unknown size loads on a Spark:
https://github.com/tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark/pull/19."""


@dataclass(frozen=True)
class Peer:
    """Another node's guard. address: on the fabric."""

    node: str
    address: str


@dataclass(frozen=True)
class Config:
    """config.json. See `parse_config`.

    states: directories of users' glmspark state, in which `ranks/NAME` lie. owner: the user (uid) whose they
    are: as him alone what lies there is run; None: as whoever owns them. group: who may read what the guard
    writes. listen: fabric address at which copies from peers are taken. peers: all other nodes, the one
    that gets this node's copies first. metrics: address and port for Prometheus. overlay, kmsg: see `Roots`
    and `KernelLog`. memory_group: a control group whose limit is the node's memory. fabric: interfaces.
    """

    node: str
    states: tuple[str, ...] = ()
    group: int | None = None
    owner: int | None = None
    listen: str | None = None
    peer_port: int = PEER_PORT
    peers: tuple[Peer, ...] = ()
    metrics: tuple[str, int] = ("127.0.0.1", METRICS_PORT)
    fabric: tuple[str, ...] = ()
    overlay: str | None = None
    kmsg: str = "/dev/kmsg"
    memory_group: str | None = None
    drop_caches: str = "/proc/sys/vm/drop_caches"
    compact: str = "/proc/sys/vm/compact_memory"


def is_port(text: str) -> bool:
    """Whether a text is a port's number; the system's calls raise what nobody expects for larger ones."""
    return text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) < 2**16


def parse_config(value: Any) -> Config:
    """The Config in a JSON value. Raises Trouble that names the field."""
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise Trouble(f"config.json is not of version {VERSION}", next="`glmspark tune apply --only guard`")
    read = _Fields(value, "config.json")
    node = read.text("node")
    if node is None or not NODE_NAME.fullmatch(node):
        raise read.wrong("node")
    listen = read.text("listen")
    metrics = read.text("metrics") or f"127.0.0.1:{METRICS_PORT}"
    host, _, port = metrics.rpartition(":")
    if not host or not is_port(port):
        raise read.wrong("metrics")
    peer_port = read.number("peer_port")
    if peer_port is not None and not is_port(str(peer_port)):
        raise read.wrong("peer_port")
    peers = []
    for one in read.many("peers", dict):
        name, address = one.get("node"), one.get("address")
        if not isinstance(name, str) or not NODE_NAME.fullmatch(name) or not isinstance(address, str):
            raise read.wrong("peers")
        peers.append(Peer(name, address))
    defaults = Config(node)
    return Config(
        node=node,
        states=tuple(read.many("states", str)),
        group=read.number("group"),
        owner=read.number("owner"),
        listen=listen,
        peer_port=peer_port or PEER_PORT,
        peers=tuple(one for one in peers if one.node != node),
        metrics=(host.strip("[]"), int(port)),
        fabric=tuple(read.many("fabric", str)),
        overlay=read.text("overlay"),
        kmsg=read.text("kmsg") or defaults.kmsg,
        memory_group=read.text("memory_group"),
    )


@dataclass(frozen=True)
class Thresholds:
    """When to act for one deployment. Bytes unless said otherwise.

    low, critical: memory left at which new work stops and at which the deployment does. load_need: what a
    load takes in all, None where the plan does not say. unified: whether GPU and host share the memory, so
    that the page cache stands in the way of a load; None: as the GPU itself says. stall_s: seconds without an
    engine step while requests run. spin_w: power below which a GPU that claims to be busy only waits
    (reported with 20 W on a GB10: https://github.com/vllm-project/vllm/issues/41725).
    """

    low: int
    critical: int
    load_need: int | None = None
    unified: bool | None = None
    metrics_url: str | None = None
    fabric: tuple[str, ...] = ()
    stall_s: float = 60.0
    spin_w: float = 30.0
    rank: int | None = None
    problem: str | None = field(default=None, compare=False)


def default_thresholds(total: int, *, problem: str | None = None) -> Thresholds:
    """Thresholds where there is no plan, from the node's memory in bytes: new work stops at 1/32 (3.8 GiB on
    a Spark, where fleets that run well keep 4.5 to 6 GiB available), the deployment at half of that."""
    return Thresholds(low=total // 32, critical=total // 64, problem=problem)


def load_floor(total: int) -> int:
    """Free memory that a load of unknown need should find: 8 GiB on a Spark, its share on other nodes."""
    return total * _LOAD_FREE // _SPARK


def parse_thresholds(value: Any, total: int) -> Thresholds:
    """The thresholds in guard.json's value. What it leaves out is as without it; where it makes no sense, all
    is, and `problem` says why. total: bytes of memory."""
    usual = default_thresholds(total)
    if value is None:
        return usual
    try:
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise Trouble(f"guard.json is not of version {VERSION}")
        read = _Fields(value, "guard.json")
        low = read.number("free_low_bytes")
        critical = read.number("free_critical_bytes")
        low = usual.low if low is None else low
        critical = min(usual.critical, low // 2) if critical is None else critical
        if not 0 <= critical <= low < total:
            raise Trouble(f"guard.json: thresholds {critical} and {low} of {total} bytes make no sense")
        unified = value.get("unified")
        if unified is not None and not isinstance(unified, bool):
            raise read.wrong("unified")
        return Thresholds(
            low=low,
            critical=critical,
            load_need=read.number("load_need_bytes"),
            unified=unified,
            metrics_url=read.text("metrics_url"),
            fabric=tuple(read.many("fabric", str)[:_LINKS]),
            stall_s=read.seconds("stall_s", usual.stall_s),
            spin_w=read.seconds("spin_power_w", usual.spin_w),
            rank=read.number("rank"),
        )
    except Trouble as trouble:
        return default_thresholds(total, problem=str(trouble))


class _Fields:
    def __init__(self, value: Mapping[str, Any], what: str) -> None:
        self._value = value
        self._what = what

    def wrong(self, name: str) -> Trouble:
        return Trouble(f"{self._what}: {name} is {self._value.get(name)!r}"[:200])

    def text(self, name: str) -> str | None:
        found = self._value.get(name)
        if found is not None and (not isinstance(found, str) or not found or "\0" in found):
            raise self.wrong(name)
        return found

    def number(self, name: str) -> int | None:
        found = self._value.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 2**53:
            raise self.wrong(name)
        return found

    def seconds(self, name: str, otherwise: float) -> float:
        found = self._value.get(name)
        if found is None:
            return otherwise
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 < found < 1e6:
            raise self.wrong(name)
        return float(found)

    def many(self, name: str, kind: type) -> list[Any]:
        found = self._value.get(name, [])
        if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
            raise self.wrong(name)
        return list(found)
