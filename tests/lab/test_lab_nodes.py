"""What a virtual Spark is to who logs in."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from glmspark.nodes.ssh import Address, connect
from glmspark.nodes.transport import Completed, NodeError
from tests.lab.virtual import VirtualSparks, run

NODES = ("spark1", "spark2", "spark3")
PAIRS = list(itertools.permutations(NODES, 2))


def over_ssh(address: Address, argv: Sequence[str]) -> Completed:
    async def go() -> Completed:
        node = await connect(address)
        try:
            return await node.run(argv)
        finally:
            await node.close()

    return asyncio.run(go())


@pytest.mark.parametrize("node", NODES)
def test_ssh_leads_to_the_ordinary_user_of_that_node(lab: VirtualSparks, node: str) -> None:
    done = over_ssh(
        lab.address(node), ["sh", "-c", "hostname; id -un; sudo -n id -un; pwd; cat /etc/hostname"]
    )
    assert done.stdout.split() == [node, "spark", "root", "/home/spark", node], done.stderr


def test_openssh_reads_the_config_that_up_wrote(lab: VirtualSparks) -> None:
    assert lab.ssh("spark2", "hostname").stdout == "spark2\n"


def test_another_node_s_host_key_is_refused(lab: VirtualSparks, tmp_path: Path) -> None:
    lines = lab.home.known_hosts.read_text().splitlines()
    keys = [line.split()[2] for line in lines]
    assert len(set(keys)) == len(NODES)
    swapped = tmp_path / "known_hosts"
    swapped.write_text(lines[0].replace(keys[0], keys[1]) + "\n")
    address = lab.address("spark1")
    wrong = Address(**{**vars(address), "known_hosts": swapped})
    with pytest.raises(NodeError) as caught:
        over_ssh(wrong, ["true"])
    assert caught.value.host == "spark1"
    # And that it was the key: with the right one the same address answers.
    assert over_ssh(address, ["true"]).code == 0


def test_root_and_strangers_do_not_log_in(lab: VirtualSparks, tmp_path: Path) -> None:
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")])
    for changes in ({"user": "root"}, {"keys": (tmp_path / "key",)}):
        with pytest.raises(NodeError):
            over_ssh(Address(**{**vars(lab.address("spark1")), **changes}), ["true"])


def test_shared_memory_is_each_node_s_own(lab: VirtualSparks) -> None:
    lab.shell("spark1", "touch", "/dev/shm/only-here")
    try:
        assert "only-here" in lab.shell("spark1", "ls", "/dev/shm")
        assert "only-here" not in lab.shell("spark2", "ls", "/dev/shm")
        assert not Path("/dev/shm/only-here").exists()
    finally:
        lab.shell("spark1", "rm", "/dev/shm/only-here")


@pytest.mark.parametrize("directory", ["/tmp", "/home/spark", "/var/tmp", "/run", "/etc"])
def test_files_are_each_node_s_own(lab: VirtualSparks, directory: str) -> None:
    path = f"{directory}/written-on-spark1"
    lab.shell("spark1", "touch", path, root=True)
    assert lab.code("spark2", "test", "-e", path) == 1
    assert not Path(path).exists()


def test_the_machine_s_files_cannot_be_written(lab: VirtualSparks) -> None:
    for directory in ("/usr/local", "/opt", str(Path(__file__).parent)):
        assert lab.code("spark1", "touch", f"{directory}/written-on-spark1", root=True) != 0
        assert not (Path(directory) / "written-on-spark1").exists()


def test_a_node_sees_its_own_processes_and_its_own_start_only(lab: VirtualSparks) -> None:
    lab.shell("spark1", "sh", "-c", "sleep 54321 >/dev/null 2>&1 &")
    seen = {node: lab.shell(node, "ps", "-eo", "args") for node in NODES}
    assert "sleep 54321" in seen["spark1"]
    assert "sleep 54321" not in seen["spark2"]
    assert "pytest" not in seen["spark1"]
    boots = {lab.shell(node, "cat", "/proc/sys/kernel/random/boot_id") for node in NODES}
    assert len(boots) == len(NODES)
    lab.shell("spark1", "pkill", "-x", "-f", "sleep 54321")


def test_settings_of_a_node_change_nothing_of_the_kernel_s(lab: VirtualSparks) -> None:
    before = Path("/proc/sys/vm/swappiness").read_text()
    lab.shell("spark1", "sysctl", "-w", "vm.swappiness=7", root=True)
    assert lab.shell("spark1", "cat", "/proc/sys/vm/swappiness") == "7"
    assert lab.shell("spark2", "cat", "/proc/sys/vm/swappiness") == before.strip()
    assert Path("/proc/sys/vm/swappiness").read_text() == before
    assert lab.code("spark1", "sysctl", "-w", "kernel.panic=3", root=True) != 0


def test_the_default_route_is_on_the_wifi_and_leads_nowhere(lab: VirtualSparks) -> None:
    (route,) = json.loads(lab.shell("spark2", "ip", "-json", "route", "show", "default"))
    assert route["dev"] == "wlP9s9"
    begin = time.monotonic()
    # 192.0.2.0/24 is set aside for documentation.
    attempt = "import socket; socket.create_connection(('192.0.2.99', 80), timeout=20)"
    done = lab.inside("spark2", "python3", "-c", attempt)
    assert "No route to host" in done.stderr
    assert time.monotonic() - begin < 10


def test_interfaces_are_the_node_s(lab: VirtualSparks) -> None:
    assert set(lab.shell("spark3", "ls", "/sys/class/net").split()) == {"lo", "enp1s0f0np0", "wlP9s9"}


@pytest.mark.parametrize(("one", "other_node"), PAIRS)
def test_the_fabric_carries_whole_packets_both_ways(lab: VirtualSparks, one: str, other_node: str) -> None:
    (address,) = lab.fabric(other_node)
    # 8972 bytes and 28 of headers fill the MTU of 9000; none of it may be split.
    lab.shell(one, "ping", "-c", "2", "-i", "0.2", "-W", "5", "-M", "do", "-s", "8972", address)


def test_each_reaches_the_others_by_name_over_the_wifi(lab: VirtualSparks) -> None:
    assert "198.19." in lab.shell("spark1", "getent", "hosts", "spark3")
    lab.shell("spark1", "ping", "-c", "1", "-W", "5", "spark3")


@pytest.mark.parametrize("reverse", [False, True])
def test_links_are_as_fast_as_asked(lab: VirtualSparks, reverse: bool) -> None:
    (address,) = lab.fabric("spark2")
    lab.shell("spark2", "iperf3", "--server", "--one-off", "--daemon", "--bind", address)
    client = [
        "iperf3",
        "--client",
        address,
        "--time",
        "3",
        "--omit",
        "1",
        "--json",
        "--connect-timeout",
        "5000",
    ]
    time.sleep(0.3)
    report = json.loads(lab.shell("spark1", *client, *(["--reverse"] if reverse else []), timeout=60))
    rate = report["end"]["sum_received"]["bits_per_second"]
    assert 0.85e9 < rate < 1.15e9, f"{rate / 1e6:.0f} Mbit/s"


def test_cut_and_mended_links(lab: VirtualSparks) -> None:
    (address,) = lab.fabric("spark2")
    ping = ["ping", "-c", "1", "-W", "1", address]
    carrier = ["cat", "/sys/class/net/enp1s0f0np0/carrier"]
    routes = lab.shell("spark2", "ip", "route")
    try:
        lab.lab("cut", "spark2:enp1s0f0np0")
        assert lab.code("spark1", *ping) != 0
        assert lab.shell("spark2", *carrier) == "0"
        assert lab.shell("spark1", *carrier) == "1"
        assert lab.ssh("spark2", "true", ok=False).returncode == 255
        links = {link["name"]: link["cut"] for node in lab.status()["nodes"] for link in node["links"]}
        assert [name for name, cut in links.items() if cut] == ["spark2:enp1s0f0np0"]
    finally:
        lab.lab("mend", "spark2:enp1s0f0np0")
    assert lab.code("spark1", "ping", "-c", "3", "-i", "0.3", "-W", "2", address) == 0
    assert lab.shell("spark2", "ip", "route") == routes
    assert lab.ssh("spark2", "hostname").stdout == "spark2\n"


def test_without_the_wifi_the_fabric_serves_on(lab: VirtualSparks) -> None:
    try:
        lab.lab("cut", "wifi")
        assert lab.shell("spark1", "cat", "/sys/class/net/wlP9s9/carrier") == "0"
        assert lab.code("spark1", "ping", "-c", "1", "-W", "1", "198.19.0.1") != 0
        assert lab.ssh("spark1", "hostname").stdout == "spark1\n"
        assert lab.code("spark1", "ping", "-c", "1", "-W", "5", lab.fabric("spark3")[0]) == 0
    finally:
        lab.lab("mend", "wifi")


def test_a_node_that_is_cut_off_can_still_be_looked_into(lab: VirtualSparks) -> None:
    try:
        lab.lab("cut", "spark3")
        assert lab.shell("spark3", "hostname") == "spark3"
        assert lab.code("spark1", "ping", "-c", "1", "-W", "1", lab.fabric("spark3")[0]) != 0
    finally:
        lab.lab("mend", "spark3")
    assert lab.code("spark1", "ping", "-c", "3", "-i", "0.3", "-W", "2", lab.fabric("spark3")[0]) == 0


def test_an_unknown_link_changes_nothing_and_names_the_nearest(lab: VirtualSparks) -> None:
    done = lab.lab("cut", "spark1", "spark2:enp1s0f0np1", ok=False)
    assert done.returncode == 2
    assert "did you mean spark2:enp1s0f0np0?" in done.stderr
    assert lab.ssh("spark1", "true").returncode == 0


def test_shell_hands_arguments_and_exit_code_through(lab: VirtualSparks) -> None:
    odd = ["a b", "$HOME", "'", "--", "*", "\\", "--root", "-n"]
    printed = lab.lab("shell", "spark1", "--", "printf", "%s|", *odd).stdout
    assert printed == "".join(f"{word}|" for word in odd)
    assert lab.lab("shell", "spark1", "--", "sh", "-c", "exit 7", ok=False).returncode == 7
    assert lab.lab("shell", "spark1", "--root", "--", "id", "-u").stdout == "0\n"
    assert lab.shell("spark1", "sh", "-c", "echo $USER $HOME; pwd").split() == [
        "spark",
        "/home/spark",
        "/home/spark",
    ]
    assert lab.lab("shell", "spark9", ok=False).returncode == 2


def test_status(lab: VirtualSparks) -> None:
    status = lab.status()
    assert status["state"] == "up"
    assert status["rate"] == 10**9
    assert [node["name"] for node in status["nodes"]] == list(NODES)
    for node in status["nodes"]:
        assert node["alive"]
        assert node["sshd"]
        assert node["docker"]
        assert [link["wifi"] for link in node["links"]] == [False, True]
    done = lab.lab("status")
    assert "spark3" in done.stdout
    assert "1 Gbit/s" in done.stdout


def test_up_again_is_fine_for_the_same_lab_and_refused_for_another(lab: VirtualSparks) -> None:
    before = lab.record
    done = lab.lab("up", "3", "--link", "1gbe")
    assert "stands already" in done.stderr
    refused = lab.lab("up", "2", ok=False)
    assert refused.returncode == 1
    assert "glmspark lab down" in refused.stderr
    assert lab.record == before
    assert lab.status()["state"] == "up"
