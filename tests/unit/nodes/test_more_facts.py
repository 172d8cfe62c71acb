"""Parsers of what a look at a node asks for, on recorded output (recorded/README.md has the sources)."""

from __future__ import annotations

import contextlib
import json
import subprocess
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.nodes.facts import (
    Fact,
    clock,
    disks,
    docker,
    gpu_load,
    host,
    inside,
    kernel_log,
    login,
    memory_detail,
    nccl,
    network,
    nvidia,
    processes,
    rdma,
    services,
    swaps,
    sysctls,
)
from glmspark.nodes.facts.everything import EVERYTHING
from glmspark.nodes.facts.places import Place

RECORDED = Path(__file__).with_name("recorded")
GIB = 2**30
PLACE = Place(image="glmspark:1")


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


@pytest.mark.parametrize(
    "fact",
    [*EVERYTHING, clock.CLOCK, *(probe(PLACE) for probe in (gpu_load.gpu_load, nccl.nccl, inside.inside))],
    ids=lambda fact: fact.name,
)
@settings(max_examples=15)  # of each of some sixty
@given(text=st.text(max_size=80))
def test_any_output_is_read_or_refused(fact: Fact[Any], text: str) -> None:
    with contextlib.suppress(ValueError):
        fact.parse(text)


def test_names_are_unique() -> None:
    assert len({fact.name for fact in EVERYTHING}) == len(EVERYTHING)


def test_memory_in_detail() -> None:
    found = memory_detail.parse_detail(recorded("debian/meminfo.txt"))
    assert 23 * GIB < found.total < 24 * GIB
    assert found.free < found.available < found.total
    assert found.page_cache > 0
    assert (found.cma_total, found.hugepages, found.swap_total) == (0, 0, 0)
    assert found.hugepage_size == memory_detail.HUGE


def test_free_large_blocks_of_both_page_sizes() -> None:
    assert (
        memory_detail.parse_buddyinfo("4096\nNode 0, zone Normal 9 9 9 9 9 9 9 9 9 3 2\n")
        == 3 * 2**21 + 2 * 2**22
    )
    assert memory_detail.parse_buddyinfo("65536\nNode 0, zone Normal 9 9 9 9 9 1 1\n") == 2**21 + 2**22
    assert 0 < memory_detail.parse_buddyinfo(recorded("debian/buddyinfo.txt")) < 24 * GIB


def test_sysctls() -> None:
    found = sysctls.parse_sysctls(recorded("debian/sysctls.txt"))
    assert found["vm.swappiness"] == 60
    assert found["vm.min_free_kbytes"] == 67584
    assert set(found) == set(sysctls.NAMES)


def test_swap_areas() -> None:
    assert swaps.parse_swaps(recorded("debian/swaps.txt")) == (
        swaps.Swap("/swap.img", "file", 25596 * 1024, 0),
    )


def test_disks_and_the_one_a_path_lies_on() -> None:
    found = disks.parse_df(recorded("debian/df.txt"))
    assert disks.disk_of(found, "/home/me/models").target == "/"  # type: ignore[union-attr]
    assert disks.disk_of(found, "/dev/shm/x").target == "/dev/shm"  # type: ignore[union-attr]
    assert disks.disk_of(found, "/dev/shmx").target == "/dev"  # type: ignore[union-attr]
    assert disks.disk_of((), "/") is None


def test_interfaces_routes_links() -> None:
    found = {one.name: one for one in network.parse_interfaces(recorded("debian/ip-address.txt"))}
    assert found["eth0"].addresses == (IPv4Interface("192.0.2.2/24"),)
    assert found["eth0"].up
    assert found["lo"].loopback
    assert not found["ifb0"].up
    routes = network.parse_routes(recorded("debian/ip-route.txt"))
    assert [route.interface for route in routes if route.default] == ["eth0"]
    links = {one.name: one for one in network.parse_links(recorded("debian/links.txt"))}
    assert links["eth0"].device == "virtio2"
    assert links["eth0"].speed is None
    assert not links["eth0"].wireless


def test_links_of_a_sysfs_tree(tmp_path: Path) -> None:
    for name, speed in (("enp1s0f0np0", "200000"), ("wlP9s9", "-1")):
        (tmp_path / "net" / name).mkdir(parents=True)
        (tmp_path / "net" / name / "mtu").write_text("9000\n")
        (tmp_path / "net" / name / "speed").write_text(f"{speed}\n")
    (tmp_path / "net" / "wlP9s9" / "wireless").mkdir()
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "net" / "enp1s0f0np0" / "device").symlink_to(tmp_path / "0000:01:00.0")
    done = subprocess.run(
        network.links_under(str(tmp_path / "net")), capture_output=True, text=True, check=True
    )
    assert set(network.parse_links(done.stdout)) == {
        network.Link("enp1s0f0np0", 200000, wireless=False, device="0000:01:00.0"),
        network.Link("wlP9s9", None, wireless=True, device=""),
    }


def infiniband(root: Path) -> Path:
    """A sysfs tree with what two published listings of one machine say."""
    tree = root / "infiniband"
    for line in recorded("dgx/rdma-link.txt").splitlines():
        _, name, _, state, _, physical, _, interface = line.split()
        device, number = name.split("/")
        port = tree / device / "ports" / number
        for sub in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
            (port / sub).mkdir(parents=True)
        (port / "state").write_text(f"4: {state}\n" if state == "ACTIVE" else f"1: {state}\n")
        (port / "phys_state").write_text(f"5: {physical}\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        (tree / device / "device" / "net" / interface).mkdir(parents=True)
        (port / "gids" / "7").write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
    for line in recorded("dgx/show-gids.txt").splitlines():
        device, number, index, value, _, version, interface = line.split()
        port = tree / device / "ports" / number
        (port / "gids" / index).write_text(value + "\n")
        (port / "gid_attrs/types" / index).write_text("RoCE v2\n" if version == "v2" else "IB/RoCE v1\n")
        (port / "gid_attrs/ndevs" / index).write_text(interface + "\n")
    return tree


def test_rdma_ports_and_the_gid_of_an_address(tmp_path: Path) -> None:
    done = subprocess.run(
        rdma.ports_under(str(infiniband(tmp_path))), capture_output=True, text=True, check=True
    )
    ports = {port.device: port for port in rdma.parse_rdma(done.stdout)}
    assert set(ports) == {"rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1"}
    assert ports["rocep1s0f0"].active
    assert ports["rocep1s0f0"].rate == 200
    assert ports["roceP2p1s0f0"].interface == "enP2p1s0f0np0"
    assert not ports["rocep1s0f1"].active
    assert ports["rocep1s0f0"].gid_of("192.168.100.10") == 3
    assert ports["roceP2p1s0f0"].gid_of("192.168.100.14") == 3
    assert ports["rocep1s0f0"].gid_of("192.168.100.14") is None
    assert [gid.index for gid in ports["rocep1s0f0"].gids] == [2, 3]


def test_no_rdma_at_all(tmp_path: Path) -> None:
    done = subprocess.run(rdma.ports_under(str(tmp_path)), capture_output=True, text=True, check=True)
    assert rdma.parse_rdma(done.stdout) == ()


def test_gpu() -> None:
    (gpu,) = nvidia.parse_gpus(recorded("h200-gpus.txt"))
    assert (gpu.name, gpu.driver, gpu.clock, gpu.clock_max, gpu.power) == (
        "NVIDIA H200",
        "580.159.04",
        375,
        1980,
        108.07,
    )
    assert gpu.persistence
    (gb10,) = nvidia.parse_gpus("NVIDIA GB10, 580.142, P8, 208, [N/A], [N/A], 40, 0, Disabled\n")
    assert (gb10.clock, gb10.clock_max, gb10.power, gb10.persistence) == (208, None, None, False)
    assert nvidia.parse_cuda(recorded("h200-smi.txt")) == "13.0"
    assert nvidia.parse_cuda(recorded("dgx/nvidia-smi.txt")) == "13.0"
    assert nvidia.parse_toolkit(recorded("dgx/nvidia-ctk.txt")) == "1.19.0"


def test_processes_on_the_gpu() -> None:
    assert nvidia.parse_processes("") == ()
    found = nvidia.parse_processes("6975, VLLM::EngineCore, 6104\n7, a, b, [N/A]\n")
    assert found == (
        nvidia.GpuProcess(6975, "VLLM::EngineCore", 6104 * 2**20),
        nvidia.GpuProcess(7, "a, b", None),
    )


def test_load_of_a_gpu() -> None:
    found = gpu_load.parse_load(recorded("h200-load.txt"))
    assert found.clock == 1500
    assert found.clock_max == 1980
    assert 600 < found.teraflops < 700


def test_nccl() -> None:
    found = nccl.parse_nccl(recorded("h200-nccl.txt"))
    assert (found.version, found.build) == ("2.28.9", "9fcf74d93a8c3605bf7718f594d0a24366e38536")
    with pytest.raises(ValueError, match="no NCCL"):
        nccl.parse_nccl('{"version": "", "build": "", "path": ""}')
    compile(nccl.PROBE, "probe", "exec")
    compile(gpu_load.PROBE, "probe", "exec")


def test_docker() -> None:
    info = {
        "ID": "a1",
        "ServerVersion": "29.2.1",
        "DockerRootDir": "/var/lib/docker",
        "Driver": "overlay2",
        "Runtimes": {"runc": {}, "nvidia": {}},
    }
    assert docker.parse_info(json.dumps(info)) == docker.Engine(
        "29.2.1", "a1", "/var/lib/docker", "overlay2", ("nvidia", "runc"), cdi=False
    )
    images = (
        '{"ID":"sha256:1","Repository":"glmspark","Tag":"1"}\n'
        '{"ID":"sha256:2","Repository":"<none>","Tag":"<none>"}\n'
    )
    assert docker.parse_images(images) == (
        docker.Image("sha256:1", "glmspark:1"),
        docker.Image("sha256:2", ""),
    )


def test_services() -> None:
    text = (
        "Id=gdm.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n\n"
        "Id=earlyoom.service\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n"
    )
    found = services.parse_services(text)
    assert found["gdm.service"].running
    assert not found["earlyoom.service"].loaded


def test_login() -> None:
    assert login.parse_remove_ipc(recorded("debian/logind.txt")) is True
    assert login.parse_remove_ipc(recorded("debian/logind.txt") + "[Login]\nRemoveIPC=no\n") is False
    assert login.parse_limits(recorded("debian/limits.txt")) == login.Limits(memlock=8388608, files=20000)
    assert login.parse_user("me\n1000\nme sudo docker\n") == login.User("me", 1000, ("me", "sudo", "docker"))
    assert processes.parse_ps(recorded("debian/ps.txt"))[0] == processes.Running(2, "root", 0, "kthreadd")


def test_host() -> None:
    assert host.parse_os_release(recorded("debian/os-release.txt")).id == "debian"
    assert host.parse_uname("6.17.0-1032-nvidia aarch64\n") == host.Kernel("6.17.0-1032-nvidia", "aarch64")


def test_clock_offset_is_bounded_by_half_the_travel() -> None:
    ahead, sure = clock.offset(100.0, 107.0, 104.0)
    assert (ahead, sure) == (5.0, 2.0)
    assert clock.parse_synchronized("Timezone=UTC\nNTPSynchronized=yes\n") is True


def test_where_ranks_run() -> None:
    as_user = ("sh", "-c", 'exec docker run --user "$(id -u):$(id -g)" "$@"', "docker")
    alone = ("--rm", "--pull", "never", "--network", "none")
    assert PLACE.run("pass", "1") == (
        *as_user,
        *alone,
        *("--entrypoint", "python3", "glmspark:1", "-c", "pass", "1"),
    )
    mounted = Place(image="lab:base", python="/v/bin/python", mounts=("/v",))
    assert mounted.run("pass", gpu=True, verbs=True) == (
        *as_user,
        *alone,
        *(
            "--gpus",
            "all",
            "--ulimit",
            "memlock=-1:-1",
            "--device",
            "/dev/infiniband",
            "--cap-add",
            "IPC_LOCK",
        ),
        *("--mount", "type=bind,src=/v,dst=/v,readonly"),
        *("--entrypoint", "/v/bin/python", "lab:base", "-c", "pass"),
    )
    assert Place(venv="/v").run("pass", "1", gpu=True) == ("/v/bin/python", "-c", "pass", "1")
    assert not Place().known
    with pytest.raises(ValueError, match="neither an image nor an environment"):
        Place().run("pass")


def test_what_ranks_find_here() -> None:
    """The probe itself, run by this very Python."""
    import sys

    done = subprocess.run(
        [sys.executable, "-c", inside.PROBE], capture_output=True, text=True, check=True, timeout=60
    )
    found = inside.parse_inside(done.stdout)
    assert set(found.versions) == {"glmspark", "vllm", "ray"}
    assert found.versions["glmspark"]
    assert found.memlock is None or found.memlock > 0
    text = '{"memlock": null, "verbs": {"uverbs0": true}, "versions": {"vllm": ""}}'
    assert inside.parse_inside(f"noise\n{text}\n") == inside.Inside(None, {"uverbs0": True}, {"vllm": ""})
    for other in ("", "[]", "{}", '{"memlock": null, "verbs": 1, "versions": {}}'):
        with pytest.raises(ValueError, match="printed something else"):
            inside.parse_inside(other)


LOG = """\
[    0.000000] Booting Linux on physical CPU 0x0000000000
[ 8123.456789] NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)
[ 8124.000001] NVRM: Xid (PCI:000f:01:00): 13, pid=4711, Graphics Exception
[ 9000.1] Out of memory: Killed process 4711 (VLLM::Worker) total-vm:1kB
[ 9001.5] mlx5_core 0000:01:00.0: poll_health:956: device's health poll failed
[ 9002.0] usb 1-1: new high-speed USB device
"""


def test_what_the_kernel_complains_of() -> None:
    found = kernel_log.parse_kernel_log(LOG)
    assert {kind: len(lines) for kind, lines in found.items()} == {
        "memory": 1,
        "GPU": 1,
        "killed": 1,
        "fabric": 1,
    }
    assert found["GPU"] == ["NVRM: Xid (PCI:000f:01:00): 13, pid=4711, Graphics Exception"]
    assert kernel_log.parse_kernel_log("[1.0] usb 1-1: fine\n") == {}


def test_the_kernel_log_is_picked_through_on_the_node(tmp_path: Path) -> None:
    """The fact's own command, with a dmesg and an id that play a node's."""
    log = tmp_path / "log"
    log.write_text(LOG)
    for name, text in (("dmesg", f"cat {log}"), ("id", "echo 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"

    def ask() -> subprocess.CompletedProcess[str]:
        command = kernel_log.KERNEL_LOG.command
        return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)

    done = ask()
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4
    assert set(kernel_log.KERNEL_LOG.parse(done.stdout)) == {"memory", "GPU", "killed", "fabric"}
    log.write_text("[1.0] fine\n")
    assert (ask().returncode, ask().stdout) == (0, "")
    (tmp_path / "dmesg").write_text("#!/bin/sh\nexit 1\n")
    assert ask().returncode == 2
    assert "root only" in ask().stderr


def test_how_much_lies_below_a_path(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "blob").write_bytes(b"x" * 100_000)
    (tmp_path / "model" / "shard").symlink_to(tmp_path / "blob")
    for path in (str(tmp_path / "model"), "~/model"):
        fact = disks.stored(path)
        done = subprocess.run(
            fact.command,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert 100_000 <= fact.parse(done.stdout) < 200_000
    nothing = subprocess.run(
        disks.stored("/nonexistent").command, capture_output=True, text=True, check=True
    ).stdout
    assert disks.parse_stored(nothing) == 0


def test_a_part_of_a_model_counts_as_all_of_it(tmp_path):
    of = {"model-1.safetensors": [5_000_000_000, "ab"], "model-2.safetensors": [7, "cd"]}
    index = {"metadata": {"glmspark": {"of": of}}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (tmp_path / "config.json").write_text("{}")
    command = disks.stored(str(tmp_path)).command
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert disks.parse_stored(done.stdout) == 5_000_000_007
    (tmp_path / "config.json").unlink()  # not complete
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert disks.parse_stored(done.stdout) < 100_000
