"""init, doctor and tune on virtual Sparks over real SSH."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glmspark import __version__
from glmspark.config.cluster import load_cluster
from glmspark.nodes.doctor import addresses
from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.everything import EVERYTHING
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import Node
from glmspark.nodes.ssh import connect
from glmspark.nodes.survey import survey
from tests.lab.virtual import VirtualSparks

TUNED = ("--only", "sysctl", "--only", "limits", "--only", "linger")


def init(sparks: VirtualSparks, output: Path) -> str:
    """Run `glmspark init` on all nodes by address, as one who knows nothing else of them."""
    known = sparks.cluster
    hosts = [f"{known.ssh.user}@{node.address}" for node in known.nodes]
    keys = ["--identity", str(known.ssh.identity_file), "--known-hosts", str(known.ssh.known_hosts)]
    return sparks.glmspark("init", *hosts, *keys, "--output", str(output), "--force").stdout


def doctor(sparks: VirtualSparks, *words: str) -> list[dict[str, Any]]:
    done = sparks.glmspark("doctor", "--cluster", str(sparks.home.cluster_file), *words, "--json", ok=False)
    verdicts: list[dict[str, Any]] = json.loads(done.stdout)["verdicts"]
    assert done.returncode == int(any(one["state"] == "blocked" for one in verdicts))
    return verdicts


def blocked(verdicts: list[dict[str, Any]]) -> set[tuple[str | None, str]]:
    """What is blocked but for the image, which most tests have no need of."""
    return {
        (one["node"], one["check"])
        for one in verdicts
        if one["state"] == "blocked" and one["check"] != "same image"
    }


def fabric(path: Path) -> dict[str, set[tuple[str, str]]]:
    return {
        node.name: {(link.interface, str(link.address)) for link in node.fabric}
        for node in load_cluster(path).nodes
    }


def accepted(sparks: VirtualSparks, cluster: Path) -> None:
    """`up` takes the file as `init` wrote it: a pipeline stage on each node, in this very environment."""
    found = load_cluster(cluster)
    assert (found.runtime.kind, found.runtime.venv) == ("venv", sys.prefix)
    count = len(found.nodes)
    words = ("--pp", str(count), "--dry-run", "--json")
    plan = json.loads(sparks.glmspark("up", "--cluster", str(cluster), *words).stdout)["plan"]
    assert [rank["host"] for rank in plan["ranks"]] == [node.name for node in found.nodes]


def test_init_finds_the_switch_and_writes_what_the_lab_knows(lab: VirtualSparks, tmp_path: Path) -> None:
    said = init(lab, tmp_path / "cluster.yaml")
    assert "connected through a switch" in said
    assert fabric(tmp_path / "cluster.yaml") == fabric(lab.home.cluster_file)
    assert "wlP9s9" not in (tmp_path / "cluster.yaml").read_text()
    accepted(lab, tmp_path / "cluster.yaml")


@pytest.mark.parametrize(
    ("count", "topology", "words"), [(3, "ring", "cabled as a ring"), (2, "pair", "as a pair")]
)
def test_init_finds_other_shapes(
    other: VirtualSparks, tmp_path: Path, count: int, topology: str, words: str
) -> None:
    other.lab("up", str(count), "--topology", topology)
    assert words in init(other, tmp_path / "cluster.yaml")
    assert fabric(tmp_path / "cluster.yaml") == fabric(other.home.cluster_file)
    accepted(other, tmp_path / "cluster.yaml")


def test_a_healthy_lab_is_not_blocked(lab: VirtualSparks) -> None:
    verdicts = doctor(lab)
    assert blocked(verdicts) == set()
    paths = [one for one in verdicts if one["check"].startswith("path to")]
    assert len(paths) == 6
    assert all("packets of 9000 bytes pass" in one["evidence"] for one in paths)
    assert {one["node"] for one in verdicts if one["check"] == "sudo" and one["state"] == "ok"} == {
        "spark1",
        "spark2",
        "spark3",
    }
    assert all(one["state"] == "ok" for one in verdicts if one["check"] == "clock skew")


def test_a_look_from_where_ranks_run(lab_with_image: VirtualSparks) -> None:
    """Containers of the lab's image with this environment mounted; the nodes have no GPU to load."""
    engines = {one["node"]: one for one in doctor(lab_with_image, "--load", "1") if one["check"] == "engine"}
    assert set(engines) == {"spark1", "spark2", "spark3"}
    assert {one["state"] for one in engines.values()} == {"ok"}, engines
    assert all(f"glmspark {__version__}" in one["evidence"] for one in engines.values())


def test_an_image_without_an_engine_is_named(lab_with_image: VirtualSparks, tmp_path: Path) -> None:
    """The same image without the environment: the plain Python in it has no engine."""
    text = lab_with_image.home.cluster_file.read_text()
    runtime = f"runtime: {{kind: docker, image: '{lab_with_image.cluster.runtime.image}'}}"
    bare = tmp_path / "bare.yaml"
    bare.write_text(re.sub(r"(?ms)^runtime:.*?(?=^\S)", runtime + "\n", text))
    done = lab_with_image.glmspark("doctor", "--cluster", str(bare), "--load", "1", "--json", ok=False)
    found = [one for one in json.loads(done.stdout)["verdicts"] if one["check"] == "engine"]
    assert [one["state"] for one in found] == ["blocked"] * 3
    assert all("has no vLLM, no glmspark" in one["evidence"] for one in found)


def test_a_plan_for_the_nodes_as_they_are(lab: VirtualSparks) -> None:
    """One machine's memory for all of them; and no speed without a GPU."""
    file = str(lab.home.cluster_file)
    plan = json.loads(lab.glmspark("plan", "glm-tiny", "--cluster", file, "--pp", "3", "--json").stdout)
    assert [rank["node"] for rank in plan["ranks"]] == ["spark1", "spark2", "spark3"]
    assert plan["measured_nodes"]
    assert plan["fits"]
    assert plan["platform"] == "cpu"
    assert len({rank["left"] // 2**30 for rank in plan["ranks"]}) == 1
    done = lab.glmspark("plan", "glm-5.2-8x-mtp", "--cluster", file, "--json", ok=False)
    assert "is for nodes with a GPU" in json.loads(done.stdout)["error"]


def test_what_a_recipe_needs_is_held_against_the_lab(lab: VirtualSparks) -> None:
    found = {one["check"]: one for one in doctor(lab, "--recipe", "glm-5.2-4x-mtp") if one["node"] is None}
    assert found["recipe"]["state"] == "blocked"
    assert found["recipe"]["evidence"] == "glm-5.2-4x-mtp needs 4 nodes, there are 3"


def test_an_image_that_is_nowhere_is_named(lab: VirtualSparks) -> None:
    (verdict,) = [one for one in doctor(lab, "--image", "none:1") if one["check"] == "same image"]
    assert verdict["state"] == "blocked"
    assert "spark1, spark2, spark3" in verdict["evidence"]


def test_a_pulled_cable_is_named(lab: VirtualSparks) -> None:
    lab.lab("cut", "spark2:enp1s0f0np0")
    try:
        found = blocked(doctor(lab))
    finally:
        lab.lab("mend", "spark2:enp1s0f0np0")
    assert ("spark2", "ssh") in found
    assert {check for node, check in found if node != "spark2"} == {
        "path to spark2 " + _address(lab, "spark2")
    }


def _address(sparks: VirtualSparks, name: str) -> str:
    node = sparks.cluster.node(name)
    assert node is not None
    return str(node.fabric[0].address.ip)


@contextlib.contextmanager
def changed(sparks: VirtualSparks, node: str, there: str, back: str) -> Iterator[None]:
    """A change on a node for the length of a with block, both given as shell text."""
    sparks.shell(node, "sh", "-c", there, root=True)
    try:
        yield
    finally:
        sparks.shell(node, "sh", "-c", back, root=True)


def test_another_mtu_at_one_end_is_named(lab: VirtualSparks) -> None:
    mtu = "ip link set enp1s0f0np0 mtu"
    with changed(lab, "spark3", f"{mtu} 1500", f"{mtu} 9000"):
        found = [one for one in doctor(lab) if one["state"] == "blocked" and one["check"].startswith("path")]
    assert {one["node"] for one in found} == {"spark1", "spark2", "spark3"}
    assert all("MTU" in one["evidence"] for one in found)


def test_the_default_route_on_the_fabric_is_named(lab: VirtualSparks) -> None:
    route = "ip route {} default dev enp1s0f0np0 metric 50"
    with changed(lab, "spark2", route.format("add"), route.format("del")):
        assert blocked(doctor(lab)) == {("spark2", "fabric enp1s0f0np0")}


def test_no_sudo_is_named(lab: VirtualSparks) -> None:
    away = "cp -a /etc/sudoers /etc/sudoers.away && echo 'root ALL=(ALL:ALL) ALL' > /etc/sudoers"
    hide = f"{away} && mv /etc/sudoers.d /etc/sudoers.d.away"
    back = "mv /etc/sudoers.d.away /etc/sudoers.d && mv /etc/sudoers.away /etc/sudoers"
    with changed(lab, "spark1", hide, back):
        assert ("spark1", "sudo") in blocked(doctor(lab))


def test_a_taken_port_is_named(lab: VirtualSparks) -> None:
    node = addresses(lab.cluster)["spark3"]
    assert node is not None

    async def listen() -> set[tuple[str | None, str]]:
        one = await connect(node)
        code = (
            "import socket, time; s = socket.create_server(('', 8000)); print(1, flush=True); time.sleep(60)"
        )
        task = asyncio.ensure_future(one.run(["python3", "-c", code], timeout=60))
        try:
            await asyncio.sleep(2)
            return await asyncio.to_thread(lambda: blocked(doctor(lab)))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await one.close()

    assert asyncio.run(listen()) == {("spark3", "ports")}


def test_cancelling_ends_a_command_on_the_node(lab: VirtualSparks) -> None:
    where = addresses(lab.cluster)["spark1"]
    assert where is not None

    async def go() -> None:
        node = await connect(where)
        try:
            task = asyncio.ensure_future(node.run(["sleep", "4711"]))
            await _until(node, "sleep 4711", there=True)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await _until(node, "sleep 4711", there=False)
        finally:
            await node.close()

    asyncio.run(go())


async def _until(node: Node, command: str, *, there: bool) -> None:
    for _ in range(100):
        done = await node.run(["ps", "-eo", "args="])
        if any(line.startswith(command) for line in done.stdout.splitlines()) == there:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{command} {'never ran' if there else 'still runs'}")


_SNAPSHOT = """\
cd /
find etc var/lib -xdev -path var/lib/docker -prune -o -printf '%y %m %U %G %p %l\\n' | sort
find etc var/lib -xdev -path var/lib/docker -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
grep -s '' /proc/sys/vm/swappiness /proc/sys/vm/dirty_* /proc/sys/vm/compaction_proactiveness
"""


def test_tune_apply_and_restore_leave_a_node_byte_for_byte_as_it_was(lab: VirtualSparks) -> None:
    def state() -> dict[str, str]:
        return {
            name: lab.shell(name, "sh", "-c", _SNAPSHOT, root=True) for name in ("spark1", "spark2", "spark3")
        }

    machine = Path("/proc/sys/vm/swappiness").read_text()
    cluster = ("--cluster", str(lab.home.cluster_file))
    before = state()
    lab.glmspark("tune", "apply", *cluster, *TUNED)
    tuned = state()
    assert all(tuned[name] != before[name] for name in before)
    assert "swappiness:10" in tuned["spark2"].replace("/proc/sys/vm/", "")
    assert "9 changes" in lab.glmspark("tune", "status", *cluster).stdout
    lab.glmspark("tune", "restore", *cluster)
    assert state() == before
    assert Path("/proc/sys/vm/swappiness").read_text() == machine


def test_asking_all_nodes_takes_about_as_long_as_asking_one(lab: VirtualSparks) -> None:
    """With one fact that takes its time, as a GPU's tools do; the rest is this machine's own work for all."""
    slow = Fact("slow", ("sleep", "2"), str)
    where = addresses(lab.cluster)

    async def ask(names: list[str]) -> float:
        async with Fleet({name: where[name] for name in names}) as fleet:
            begin = time.monotonic()
            found = await fleet.each(lambda node: survey(node, [*EVERYTHING, slow]))
            assert len(found) == len(names)
            assert not fleet.lost
            return time.monotonic() - begin

    one = asyncio.run(ask(["spark1"]))
    everyone = asyncio.run(ask(["spark1", "spark2", "spark3"]))
    assert everyone <= 1.5 * one
