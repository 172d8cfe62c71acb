"""Facts of two healthy Sparks, made for tests of checks: each test changes one of them."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Interface, IPv4Network
from typing import Any

from glmspark import __version__
from glmspark.config.cluster import Cluster, parse_cluster
from glmspark.nodes.checks import Expected, Look
from glmspark.nodes.checks.fabric import pairs
from glmspark.nodes.facts import Fact, paths
from glmspark.nodes.facts.clock import SYNCHRONIZED
from glmspark.nodes.facts.disks import DISKS, Disk
from glmspark.nodes.facts.docker import ENGINE, IMAGES, Engine, Image
from glmspark.nodes.facts.gpu_load import Load, gpu_load
from glmspark.nodes.facts.host import CMDLINE, KERNEL, Kernel
from glmspark.nodes.facts.inside import Inside, inside
from glmspark.nodes.facts.kernel_log import KERNEL_LOG
from glmspark.nodes.facts.login import LIMITS, LINGER, REMOVE_IPC, SUDO, USER, VERBS, Limits, User
from glmspark.nodes.facts.memory_detail import HUGE_FREE, MEMORY_DETAIL, MemoryDetail
from glmspark.nodes.facts.nccl import Nccl, nccl
from glmspark.nodes.facts.network import INTERFACES, LINKS, ROUTES, Interface, Link, Route
from glmspark.nodes.facts.nvidia import CUDA, GPU_PROCESSES, GPUS, TOOLKIT, Gpu
from glmspark.nodes.facts.places import Place
from glmspark.nodes.facts.ports import LISTENERS, Listener
from glmspark.nodes.facts.processes import PROCESSES, Running
from glmspark.nodes.facts.rdma import RDMA, Gid, RdmaPort
from glmspark.nodes.facts.services import SERVICES, Service
from glmspark.nodes.facts.swaps import SWAPS, Swap
from glmspark.nodes.facts.sysctls import SYSCTLS
from glmspark.nodes.guards import DIRECTORY, GUARD, SEEN, Seen
from glmspark.nodes.survey import Facts, Reading

GIB = 2**30
IMAGE = "glmspark:1"
PLACE = Place(image=IMAGE)
NCCL, LOAD, INSIDE = nccl(PLACE), gpu_load(PLACE), inside(PLACE)

CLUSTER = """\
cluster: 1
runtime: {kind: docker, image: "glmspark:1"}
nodes:
  - name: spark1
    address: 192.168.1.11
    fabric:
      - {interface: enp1s0f0np0, address: 10.10.1.1/24, hca: rocep1s0f0}
      - {interface: enP2p1s0f0np0, address: 10.10.2.1/24, hca: roceP2p1s0f0}
  - name: spark2
    address: 192.168.1.12
    fabric:
      - {interface: enp1s0f0np0, address: 10.10.1.2/24, hca: rocep1s0f0}
      - {interface: enP2p1s0f0np0, address: 10.10.2.2/24, hca: roceP2p1s0f0}
"""

EXPECTED = Expected(image=IMAGE, weights=160 * GIB, memory=90 * GIB, rdma=True)
MEMORY = MemoryDetail(
    total=121 * GIB,
    free=110 * GIB,
    available=114 * GIB,
    page_cache=5 * GIB,
    shared=0,
    anonymous=3 * GIB,
    slab=GIB,
    cma_total=0,
    cma_free=0,
    hugepages=0,
    hugepage_size=2 * 2**20,
    swap_total=64 * GIB,
    swap_free=64 * GIB,
)
SETTINGS = {
    "vm.swappiness": 10,
    "vm.vfs_cache_pressure": 100,
    "vm.min_free_kbytes": 262144,
    "vm.watermark_scale_factor": 10,
    "vm.overcommit_memory": 0,
    "vm.compaction_proactiveness": 0,
    "vm.panic_on_oom": 0,
    "net.ipv4.conf.all.rp_filter": 2,
}


def cluster() -> Cluster:
    return parse_cluster(CLUSTER.encode(), "cluster.yaml")


def interfaces(number: int) -> tuple[Interface, ...]:
    return (
        Interface("lo", "", 65536, up=True, addresses=(IPv4Interface("127.0.0.1/8"),), loopback=True),
        Interface("wlP9s9", "a", 1500, up=True, addresses=(IPv4Interface(f"192.168.1.1{number}/24"),)),
        Interface("enp1s0f0np0", "b", 9000, up=True, addresses=(IPv4Interface(f"10.10.1.{number}/24"),)),
        Interface("enp1s0f1np1", "c", 1500, up=False, addresses=()),
        Interface("enP2p1s0f0np0", "d", 9000, up=True, addresses=(IPv4Interface(f"10.10.2.{number}/24"),)),
    )


def gids(address: str) -> tuple[Gid, ...]:
    first, second, third, fourth = (int(part) for part in address.split("."))
    value = f"0000:0000:0000:0000:0000:ffff:{first:02x}{second:02x}:{third:02x}{fourth:02x}"
    return (Gid(2, 1, value), Gid(3, 2, value))


def guard_seen(**more: Any) -> Seen:
    """A guard that systemd runs."""
    fields: dict[str, Any] = {
        "systemd": True,
        "base": "/home/me/.local/state/glmspark",
        "group": 1000,
        "home": DIRECTORY,
        "state": {"time": 1e9, "guard": "0.1.0", "alerts": []},
        "age": 0.5,
        "program": GUARD.digest,
        "config": "c" * 64,
        "secret": "d" * 64,
        "unit": "active",
    }
    return Seen(**fields | more)


def readings(number: int) -> dict[str, Reading[Any]]:
    """A healthy Spark's."""
    values: dict[Fact[Any], Any] = {
        SUDO: True,
        USER: User("me", 1000, ("me", "docker")),
        SYNCHRONIZED: True,
        KERNEL: Kernel("6.17.0-1014-nvidia", "aarch64"),
        CMDLINE: ("quiet",),
        GPUS: (Gpu("NVIDIA GB10", "580.142", "P8", 208, 2418, 5.4, 40, 0, persistence=True),),
        GPU_PROCESSES: (),
        CUDA: "13.0",
        TOOLKIT: "1.19.0",
        ENGINE: Engine("29.2.1", f"id{number}", "/var/lib/docker", "overlay2", ("nvidia", "runc"), cdi=False),
        IMAGES: (Image("sha256:aaaaaaaaaaaaaaaa", IMAGE),),
        DISKS: (Disk("/dev/nvme0n1p2", "ext4", 3700 * GIB, 3000 * GIB, "/"),),
        MEMORY_DETAIL: MEMORY,
        HUGE_FREE: 100 * GIB,
        SYSCTLS: SETTINGS,
        SWAPS: (Swap("/swap.img", "file", 64 * GIB, 0),),
        PROCESSES: (
            Running(1, "root", 2**20, "systemd"),
            Running(700, "root", 2**20, "systemd-logind"),
            Running(900, "root", 2**20, "dockerd"),
        ),
        SERVICES: {
            "docker.service": Service("docker.service", loaded=True, active="active", enabled="enabled")
        },
        REMOVE_IPC: True,
        LINGER: ("me",),
        LIMITS: Limits(memlock=None, files=1024),
        VERBS: ("uverbs0", "uverbs1", "rdma_cm"),
        LISTENERS: (Listener("0.0.0.0", 22, 0, 1),),
        KERNEL_LOG: {},
        SEEN: guard_seen(),
        INSIDE: Inside(
            None,
            {"uverbs0": True, "uverbs1": True, "rdma_cm": True, "umad0": False},
            {"glmspark": __version__, "vllm": "0.33.0", "ray": "2.60.0"},
        ),
        INTERFACES: interfaces(number),
        ROUTES: (Route(IPv4Network("0.0.0.0/0"), "wlP9s9", "192.168.1.1"),),
        LINKS: (
            Link("wlP9s9", None, wireless=True, device="0009:01:00.0"),
            Link("enp1s0f0np0", 200000, wireless=False, device="0000:01:00.0"),
            Link("enp1s0f1np1", None, wireless=False, device="0000:01:00.1"),
            Link("enP2p1s0f0np0", 200000, wireless=False, device="0002:01:00.0"),
        ),
        RDMA: (
            RdmaPort("rocep1s0f0", 1, "ACTIVE", "LinkUp", 200, "enp1s0f0np0", gids(f"10.10.1.{number}")),
            RdmaPort("roceP2p1s0f0", 1, "ACTIVE", "LinkUp", 200, "enP2p1s0f0np0", gids(f"10.10.2.{number}")),
        ),
        NCCL: Nccl("2.30.7", "ab" * 20, "/nccl.so"),
        LOAD: Load("NVIDIA GB10", 2400, 2418, 60, 70, 90.0),
    }
    for pair in pairs(cluster(), cluster().nodes[number - 1]):
        values[pair.way] = paths.Way(pair.interface, None)
        values[pair.reached] = ""
        values[paths.carries(pair.source, pair.destination, 9000)] = True
    return {fact.name: Reading(value) for fact, value in values.items()}


def look(
    changes: Mapping[Fact[Any], Any] | None = None,
    *,
    expected: Expected = EXPECTED,
    both: bool = False,
    text: str = CLUSTER,
    skew: tuple[float, float] = (0.01, 0.002),
) -> Look:
    """Two healthy Sparks with some facts of spark2 (or of both) changed; an Exception is one unreadable."""
    found = {}
    for number in (1, 2):
        known = readings(number)
        if number == 2 or both:
            for fact, value in (changes or {}).items():
                known[fact.name] = (
                    Reading(None, str(value)) if isinstance(value, Exception) else Reading(value)
                )
        found[f"spark{number}"] = Facts(f"spark{number}", known, skew=skew if number == 2 else (0.0, 0.002))
    return Look(found, {}, parse_cluster(text.encode(), "cluster.yaml"), expected)
