"""Every check: two healthy Sparks pass, and one changed fact makes it say so."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface, IPv4Network
from typing import Any

import pytest

from glmspark import __version__
from glmspark.nodes.checks import Expected, Look, State, Verdict
from glmspark.nodes.checks.everything import judge
from glmspark.nodes.checks.fabric import pair_facts, pairs
from glmspark.nodes.checks.memory import available_loss
from glmspark.nodes.facts import Fact, paths
from glmspark.nodes.facts.clock import SYNCHRONIZED
from glmspark.nodes.facts.disks import DISKS, Disk
from glmspark.nodes.facts.docker import ENGINE, IMAGES, Engine, Image
from glmspark.nodes.facts.everything import EVERYTHING
from glmspark.nodes.facts.gpu_load import Load
from glmspark.nodes.facts.host import CMDLINE, KERNEL, Kernel
from glmspark.nodes.facts.inside import Inside
from glmspark.nodes.facts.kernel_log import KERNEL_LOG
from glmspark.nodes.facts.login import LIMITS, LINGER, REMOVE_IPC, SUDO, VERBS, Limits
from glmspark.nodes.facts.memory_detail import HUGE_FREE, MEMORY_DETAIL
from glmspark.nodes.facts.nccl import Nccl
from glmspark.nodes.facts.network import INTERFACES, LINKS, ROUTES, Link, Route
from glmspark.nodes.facts.nvidia import CUDA, GPU_PROCESSES, GPUS, TOOLKIT, Gpu, GpuProcess
from glmspark.nodes.facts.ports import LISTENERS, Listener
from glmspark.nodes.facts.processes import PROCESSES, Running
from glmspark.nodes.facts.rdma import RDMA, RdmaPort
from glmspark.nodes.facts.services import SERVICES, Service
from glmspark.nodes.facts.swaps import SWAPS
from glmspark.nodes.facts.sysctls import SYSCTLS
from glmspark.nodes.survey import Facts, Reading
from glmspark.nodes.transport import NodeError
from tests.unit.nodes.sparks import (
    CLUSTER,
    EXPECTED,
    GIB,
    IMAGE,
    INSIDE,
    LOAD,
    MEMORY,
    NCCL,
    SETTINGS,
    cluster,
    gids,
    interfaces,
    look,
)

SLOW, BLOCKED, UNKNOWN = State.SLOW, State.BLOCKED, State.UNKNOWN
VENV = replace(EXPECTED, runtime="venv", image=None)


def bad(seen: Look) -> list[Verdict]:
    return [one for one in judge(seen) if one.state is not State.OK]


def test_two_healthy_sparks_pass_every_check() -> None:
    assert bad(look()) == []
    assert len({one.check for one in judge(look())}) >= 35


def test_a_healthy_spark_without_docker_passes_too() -> None:
    assert bad(look(expected=VENV)) == []


def engine(**changes: Any) -> Engine:
    whole = Engine("29.2.1", "id", "/var/lib/docker", "overlay2", ("nvidia", "runc"), cdi=False)
    return replace(whole, **changes)


def gpu(**changes: Any) -> tuple[Gpu, ...]:
    return (replace(Gpu("NVIDIA GB10", "580.142", "P8", 208, 2418, 5.4, 40, 0, persistence=True), **changes),)


def port(**changes: Any) -> tuple[RdmaPort, ...]:
    one = RdmaPort("rocep1s0f0", 1, "ACTIVE", "LinkUp", 200, "enp1s0f0np0", gids("10.10.1.2"))
    two = RdmaPort("roceP2p1s0f0", 1, "ACTIVE", "LinkUp", 200, "enP2p1s0f0np0", gids("10.10.2.2"))
    return (replace(one, **changes), two)


def interface(**changes: Any) -> Any:
    return tuple(replace(one, **changes) if one.name == "enp1s0f0np0" else one for one in interfaces(2))


def link(**changes: Any) -> tuple[Link, ...]:
    one = Link("enp1s0f0np0", 200000, wireless=False, device="0000:01:00.0")
    return (replace(one, **changes), Link("enP2p1s0f0np0", 200000, wireless=False, device="0002:01:00.0"))


def unit(name: str) -> dict[str, Service]:
    return {name: Service(name, loaded=True, active="active", enabled="enabled")}


def found_inside(memlock: int | None = None, verbs: dict[str, bool] | None = None, **versions: str) -> Inside:
    there = {"glmspark": __version__, "vllm": "0.33.0", "ray": "2.60.0"} | versions
    return Inside(memlock, {"uverbs0": True, "rdma_cm": True} if verbs is None else verbs, there)


WAY, BACK = pairs(cluster(), cluster().nodes[1])
WHOLE = paths.carries(WAY.source, WAY.destination, 9000)

CASES: list[tuple[str, Fact[Any], Any, State, str]] = [
    ("sudo", SUDO, False, BLOCKED, "may not use sudo"),
    ("sudo", SUDO, ValueError("odd"), UNKNOWN, "odd"),
    ("clock synchronised", SYNCHRONIZED, False, SLOW, "not synchronised"),
    ("same kernel", KERNEL, Kernel("6.17.0-1008-nvidia", "aarch64"), SLOW, "6.17.0-1008-nvidia on spark2"),
    ("kernel", KERNEL, ValueError("no uname"), UNKNOWN, "no uname"),
    ("same GPU driver", GPUS, gpu(driver="580.95.05"), SLOW, "580.95.05 on spark2"),
    ("same CUDA", CUDA, "13.1", SLOW, "13.1 on spark2"),
    ("same Docker", ENGINE, engine(version="28.1"), SLOW, "28.1 on spark2"),
    ("same container toolkit", TOOLKIT, "1.18.0", SLOW, "1.18.0 on spark2"),
    ("same image", IMAGES, (), BLOCKED, "not on spark2"),
    ("same image", IMAGES, (Image("sha256:bbbbbbbbbbbbbb", IMAGE),), BLOCKED, "not the same image"),
    ("same image", IMAGES, ValueError("no docker"), UNKNOWN, "no docker"),
    ("same NCCL", NCCL, Nccl("2.30.7", "cd" * 20, "/x"), BLOCKED, "build cdcdcdcdcdcd on spark2"),
    ("same NCCL", NCCL, ValueError("no torch"), UNKNOWN, "no torch"),
    ("GPU", GPUS, (), BLOCKED, "sees no GPU"),
    ("GPU", GPUS, ValueError("nvidia-smi left with 9: no devices"), BLOCKED, "left with 9"),
    ("GPU", GPUS, ValueError("nvidia-smi is not installed"), UNKNOWN, "on the CPU"),
    ("Docker Engine", ENGINE, ValueError("permission denied while trying to connect"), BLOCKED, "permission"),
    ("Docker Engine", ENGINE, ValueError("docker is not installed"), BLOCKED, "not installed"),
    ("Docker Engine", ENGINE, engine(root="/var/snap/docker/common/var-lib-docker"), BLOCKED, "snap"),
    ("container toolkit", TOOLKIT, ValueError("nvidia-ctk is not installed"), BLOCKED, "not installed"),
    ("container toolkit", ENGINE, engine(runtimes=("runc",)), BLOCKED, "neither its runtime"),
    ("disk", DISKS, (Disk("d", "ext4", 1000 * GIB, 100 * GIB, "/"),), BLOCKED, "160 GiB needed for weights"),
    ("disk", DISKS, (Disk("d", "ext4", 1000 * GIB, 170 * GIB, "/"),), SLOW, "hardly anything"),
    ("disk", DISKS, (), UNKNOWN, "no file system"),
    ("memory", MEMORY_DETAIL, replace(MEMORY, free=50 * GIB), BLOCKED, "a rank needs 90 GiB"),
    ("memory", MEMORY_DETAIL, replace(MEMORY, free=87 * GIB), SLOW, "90 GiB free"),
    (
        "page cache",
        MEMORY_DETAIL,
        replace(MEMORY, free=30 * GIB, page_cache=80 * GIB),
        SLOW,
        "more than is free",
    ),
    ("2 MiB blocks", HUGE_FREE, 20 * GIB, SLOW, "20 GiB of 110 GiB"),
    ("shared memory", MEMORY_DETAIL, replace(MEMORY, shared=64 * GIB), SLOW, "64 GiB"),
    ("reserved memory", MEMORY_DETAIL, replace(MEMORY, cma_free=10 * GIB), BLOCKED, "kexec"),
    ("reserved memory", MEMORY_DETAIL, replace(MEMORY, cma_total=4 * GIB), SLOW, "CMA takes"),
    ("reserved memory", MEMORY_DETAIL, replace(MEMORY, hugepages=4096), SLOW, "huge pages"),
    ("GPU free", GPU_PROCESSES, (GpuProcess(7, "python3", 4 * GIB),), SLOW, "python3 (pid 7) 4 GiB"),
    ("swap", SWAPS, (), SLOW, "none"),
    ("swap", SYSCTLS, SETTINGS | {"vm.swappiness": 100}, SLOW, "swappiness 100"),
    ("swap", SYSCTLS, SETTINGS | {"vm.swappiness": 0}, SLOW, "wedge"),
    ("min_free_kbytes", SYSCTLS, SETTINGS | {"vm.min_free_kbytes": 2097152}, SLOW, "2 GiB, takes 5.5 GiB"),
    ("reclaim settings", SYSCTLS, SETTINGS | {"vm.vfs_cache_pressure": 1000}, SLOW, "vfs_cache_pressure"),
    ("reclaim settings", SYSCTLS, SETTINGS | {"vm.compaction_proactiveness": 20}, SLOW, "compaction"),
    ("reclaim settings", SYSCTLS, SETTINGS | {"vm.panic_on_oom": 1}, SLOW, "panic_on_oom"),
    ("reclaim settings", SYSCTLS, SETTINGS | {"vm.overcommit_memory": 2}, SLOW, "overcommit"),
    ("reclaim settings", SYSCTLS, ValueError("no grep"), UNKNOWN, "no grep"),
    ("reverse path filter", SYSCTLS, SETTINGS | {"net.ipv4.conf.all.rp_filter": 1}, SLOW, "rp_filter 1"),
    ("RemoveIPC", LINGER, (), SLOW, "does not linger"),
    ("RemoveIPC", REMOVE_IPC, ValueError("no systemd"), UNKNOWN, "no systemd"),
    ("/dev/infiniband", VERBS, ("rdma_cm",), BLOCKED, "rdma_cm"),
    ("OOM daemons", PROCESSES, (Running(5, "root", 1, "earlyoom"),), SLOW, "earlyoom"),
    ("OOM daemons", SERVICES, unit("systemd-oomd.service"), SLOW, "systemd-oomd"),
    ("desktop", PROCESSES, (Running(5, "gdm", 1, "gnome-shell"),), SLOW, "gnome-shell"),
    ("desktop", SERVICES, unit("gdm.service"), SLOW, "gdm"),
    ("ports", LISTENERS, (Listener("0.0.0.0", 8000, 0, 1),), BLOCKED, "8000 is taken"),
    ("GPU under load", LOAD, Load("GB10", 721, 2418, 20, 50, 30.0), SLOW, "stuck far below 2418 MHz"),
    ("GPU under load", LOAD, Load("GB10", 2300, 2418, 40, 50, 60.0), SLOW, "best node does 90"),
    ("GPU under load", LOAD, ValueError("no image"), UNKNOWN, "no image"),
    ("kernel log", KERNEL_LOG, {"memory": ["NVRM: 0x51 NV_ERR_NO_MEMORY"] * 3}, SLOW, "(3 such lines)"),
    ("kernel log", KERNEL_LOG, {"killed": ["oom"], "fabric": ["mlx5"]}, SLOW, "oom; also 1 on fabric"),
    ("kernel log", KERNEL_LOG, ValueError("root only"), UNKNOWN, "root only"),
    ("engine", INSIDE, found_inside(vllm=""), BLOCKED, "the image glmspark:1 has no vLLM"),
    ("engine", INSIDE, found_inside(glmspark=""), BLOCKED, "has no glmspark"),
    ("engine", INSIDE, found_inside(glmspark="0.0.9"), SLOW, "while this is glmspark"),
    ("engine", INSIDE, ValueError("no such image"), UNKNOWN, "no such image"),
    ("locked memory in containers", INSIDE, found_inside(memlock=8 * 2**20), BLOCKED, "at most 8 MiB"),
    ("/dev/infiniband in containers", INSIDE, found_inside(verbs={}), BLOCKED, "NCCL would use sockets"),
    (
        "/dev/infiniband in containers",
        INSIDE,
        found_inside(verbs={"uverbs0": False, "rdma_cm": True}),
        BLOCKED,
        "uverbs0 may not be opened",
    ),
    ("fabric enp1s0f0np0", INTERFACES, interfaces(2)[:2], BLOCKED, "no such interface"),
    ("fabric enp1s0f0np0", INTERFACES, interface(up=False), BLOCKED, "no carrier"),
    (
        "fabric enp1s0f0np0",
        INTERFACES,
        interface(addresses=(IPv4Interface("10.10.9.9/24"),)),
        BLOCKED,
        "it has 10.10.9.9/24",
    ),
    (
        "fabric enp1s0f0np0",
        ROUTES,
        (Route(IPv4Network("0.0.0.0/0"), "enp1s0f0np0"),),
        BLOCKED,
        "default route",
    ),
    ("fabric enp1s0f0np0", LINKS, link(wireless=True), BLOCKED, "Wi-Fi"),
    ("fabric enp1s0f0np0", LINKS, link(speed=1000), SLOW, "1 Gbit/s"),
    ("link speed", LINKS, link(speed=100000), SLOW, "spark2 enp1s0f0np0 runs at 100 Gbit/s"),
    ("RDMA rocep1s0f0", RDMA, port(device="mlx5_0"), BLOCKED, "no such device"),
    ("RDMA rocep1s0f0", RDMA, port(state="DOWN", physical="Disabled"), BLOCKED, "DOWN"),
    ("RDMA rocep1s0f0", RDMA, port(interface="enp1s0f1np1"), BLOCKED, "belongs to enp1s0f1np1"),
    ("RDMA rocep1s0f0", RDMA, port(gids=gids("10.10.1.99")), BLOCKED, "no RoCE v2 GID"),
    ("path to spark1 10.10.1.1", WAY.way, ValueError("ip left with 2"), BLOCKED, "ip left with 2"),
    ("path to spark1 10.10.1.1", WAY.way, paths.Way("wlP9s9", "192.168.1.1"), BLOCKED, "over wlP9s9 through"),
    ("path to spark1 10.10.1.1", WAY.reached, "No route to host", BLOCKED, "No route to host"),
    ("path to spark1 10.10.1.1", WAY.reached, ValueError("bash is not installed"), UNKNOWN, "bash"),
    ("path to spark1 10.10.1.1", WHOLE, False, BLOCKED, "9000 bytes"),
    ("path to spark1 10.10.1.1", INTERFACES, interface(mtu=1500), BLOCKED, "MTU 1500 here and 9000 there"),
]


@pytest.mark.parametrize(("check", "fact", "value", "state", "text"), CASES)
def test_a_changed_fact_is_named(check: str, fact: Fact[Any], value: Any, state: State, text: str) -> None:
    found = [one for one in bad(look({fact: value})) if one.check == check]
    assert [one.state for one in found] == [state], bad(look({fact: value}))
    assert text in found[0].evidence
    if state in (SLOW, BLOCKED):
        assert found[0].remedy


def test_every_fact_of_a_survey_may_be_missing() -> None:
    """Nothing that could not be read passes for fine, and no check falls over it."""
    facts = {"spark1": Facts("spark1", {}), "spark2": Facts("spark2", {})}
    verdicts = judge(Look(facts, {}, cluster(), EXPECTED))
    assert all(one.state is not State.OK for one in verdicts if one.check not in ("ssh", "cabling"))


@pytest.mark.parametrize("fact", EVERYTHING, ids=lambda fact: fact.name)
def test_one_unreadable_fact_breaks_no_check(fact: Fact[Any]) -> None:
    judge(look({fact: ValueError("unreadable")}, both=True))


def test_a_lost_node_is_named_with_what_to_do() -> None:
    seen = look()
    lost = Look(
        {"spark1": seen.facts["spark1"]}, {"spark2": NodeError("sshd is gone", next="power cycle")}, cluster()
    )
    (verdict,) = [one for one in judge(lost) if one.node == "spark2"]
    assert (verdict.state, verdict.evidence, verdict.remedy) == (BLOCKED, "sshd is gone", "power cycle")


@pytest.mark.parametrize(("ahead", "state"), [(0.3, None), (2.0, SLOW), (-90.0, BLOCKED)])
def test_clock_skew(ahead: float, state: State | None) -> None:
    found = [one.state for one in bad(look(skew=(ahead, 0.01))) if one.check == "clock skew"]
    assert set(found) == (set() if state is None else {state})


def test_a_slow_link_does_not_make_a_skewed_clock() -> None:
    assert bad(look(skew=(3.0, 2.9))) == []


def test_nccl_known_to_hang_is_blocked_everywhere() -> None:
    found = bad(look({NCCL: Nccl("2.28.9", "ab" * 20, "/x")}, both=True))
    assert [(one.check, one.state) for one in found] == [("same NCCL", BLOCKED)]


@pytest.mark.parametrize(
    ("parameters", "cma_free", "blocked"), [((), 10 * GIB, True), (("kho=off",), 0, False), ((), 0, False)]
)
def test_kernel_with_kexec_handover(parameters: tuple[str, ...], cma_free: int, blocked: bool) -> None:
    changes = {
        KERNEL: Kernel("7.0.0-1019-nvidia", "aarch64"),
        CMDLINE: parameters,
        MEMORY_DETAIL: replace(MEMORY, cma_free=cma_free),
    }
    found = {one.check: one.state for one in bad(look(changes, both=True))}
    assert found == ({"kernel": BLOCKED, "reserved memory": BLOCKED} if blocked else {})


def test_watermark_that_makes_the_engine_refuse_is_blocked() -> None:
    changes = {
        SYSCTLS: SETTINGS | {"vm.min_free_kbytes": 2097152},
        MEMORY_DETAIL: replace(MEMORY, available=88 * GIB),
    }
    (found,) = bad(look(changes))
    assert (found.check, found.state, found.fix) == ("min_free_kbytes", BLOCKED, "sysctl")


def test_two_gib_of_min_free_take_what_was_reported() -> None:
    """A field report says about 6 GiB of MemAvailable on a Spark."""
    assert 5 * GIB < available_loss(121 * GIB, 2 * GIB, 10) < 7 * GIB


def test_what_holds_the_memory_is_named() -> None:
    changes = {
        MEMORY_DETAIL: replace(MEMORY, free=10 * GIB),
        PROCESSES: (Running(7, "me", 80 * GIB, "VLLM::Worker"), Running(8, "me", 2**20, "bash")),
    }
    (found,) = [one for one in bad(look(changes)) if one.check == "memory"]
    assert "VLLM::Worker (pid 7) 80 GiB" in found.evidence
    assert "bash" not in found.evidence


def test_without_docker_limits_and_lingering_block() -> None:
    found = bad(look({LIMITS: Limits(memlock=8 * 2**20, files=1024), LINGER: ()}, expected=VENV))
    assert {(one.check, one.state, one.fix) for one in found} == {
        ("locked memory", BLOCKED, "limits"),
        ("RemoveIPC", BLOCKED, "linger"),
    }


def test_where_no_logind_runs_nothing_is_removed() -> None:
    processes = (Running(1, "root", 2**20, "tini"), Running(9, "root", 2**20, "sshd"))
    assert bad(look({LINGER: (), PROCESSES: processes}, expected=VENV)) == []


def test_a_half_of_a_port_that_is_not_listed_is_named() -> None:
    text = "\n".join(line for line in CLUSTER.splitlines() if "enP2p1s0f0np0" not in line) + "\n"
    found = [one for one in bad(look(text=text)) if one.check.startswith("RDMA")]
    assert [one.node for one in found] == ["spark1", "spark2"]
    assert "enP2p1s0f0np0, the other PCIe half" in found[0].evidence


def test_a_gid_index_that_has_moved_is_blocked() -> None:
    text = CLUSTER.replace(
        "address: 10.10.1.2/24, hca: rocep1s0f0", "address: 10.10.1.2/24, hca: rocep1s0f0, gid_index: 5"
    )
    (found,) = bad(look(text=text))
    assert "is at index 3, cluster.yaml says 5" in found.evidence


def clusters(*fabrics: tuple[str, ...]) -> Look:
    nodes = "".join(
        f"  - name: n{i}\n    address: 10.9.9.{i + 1}\n    fabric:\n"
        + "".join(f"      - {{interface: p{j}, address: {address}}}\n" for j, address in enumerate(addresses))
        for i, addresses in enumerate(fabrics)
    )
    return look(text=f"cluster: 1\nnodes:\n{nodes}", expected=VENV)


@pytest.mark.parametrize(
    ("fabrics", "state", "text"),
    [
        ((("10.0.0.1/24",), ("10.0.0.2/24", "10.0.1.1/24"), ("10.0.1.2/24",)), SLOW, "line of 3"),
        (
            tuple((f"10.0.{i}.1/24", f"10.0.{(i + 1) % 4}.2/24") for i in range(4)),
            SLOW,
            "ring of 4: a ring of four",
        ),
        (
            (("10.0.0.1/24",), ("10.0.0.2/24",), ("10.0.1.1/24",), ("10.0.1.2/24",)),
            BLOCKED,
            "10.0.0.0/24: n0, n1; 10.0.1.0/24: n2, n3",
        ),
        (tuple((f"10.0.{i}.1/24", f"10.0.{(i + 1) % 3}.2/24") for i in range(3)), State.OK, "ring of 3"),
    ],
)
def test_cabling(fabrics: tuple[tuple[str, ...], ...], state: State, text: str) -> None:
    (found,) = [one for one in judge(clusters(*fabrics)) if one.check == "cabling"]
    assert found.state is state
    assert text in found.evidence


def test_packets_go_untried_without_ping() -> None:
    seen = look({WHOLE: ValueError("ping is not installed")})
    assert bad(seen) == []
    assert any("untried" in one.evidence for one in judge(seen))


def test_both_halves_in_one_network_pair_with_their_like() -> None:
    text = CLUSTER.replace("10.10.2.", "10.10.1.10")
    first = [
        (pair.source, pair.destination)
        for pair in pairs(look(text=text).cluster, look(text=text).cluster.nodes[0])
    ]  # type: ignore[union-attr,arg-type]
    assert first == [("10.10.1.1", "10.10.1.2"), ("10.10.1.101", "10.10.1.102")]


def test_what_is_asked_of_a_pair() -> None:
    names = [fact.name for fact in pair_facts(cluster(), look().facts["spark2"])]
    assert names[:3] == [
        "way from 10.10.1.2 to 10.10.1.1",
        "answer of 10.10.1.1",
        "packets of 9000 from 10.10.1.2 to 10.10.1.1",
    ]
    assert len(names) == 6


def test_a_machine_alone_without_a_file() -> None:
    facts = {"here": Facts("here", {SUDO.name: Reading(value=True)})}
    states = {one.check: one.state for one in judge(Look(facts, {}, None, Expected()))}
    assert states["sudo"] is State.OK
    assert not [check for check in states if check.startswith(("fabric", "path"))]
