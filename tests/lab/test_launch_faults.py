"""What can go wrong with a start on a cluster: it ends in time, names node and reason, and leaves no rank.

With GLMSPARK_EVERY_START set (`make faults`) each fault is followed by a start that must become ready, which
takes some minutes more; without it only the last one is.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from glmspark.launch.record import State
from tests.lab.launches import Launches, changed_cluster, kill, parted, pids, small_recipe
from tests.lab.virtual import VirtualSparks

RANK = "^[^ ]*python[^ ]* -m glmspark.engine.serve"

pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def launches(lab_with_image: VirtualSparks) -> Launches:
    return Launches(lab_with_image, lab_with_image.home.cluster_file)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two stages, two canaries, under a name of its own."""
    return str(small_recipe(tmp_path_factory.mktemp("recipes"), "faulty", pp=2))


@pytest.fixture(autouse=True)
def next_start(launches: Launches, recipe: str) -> Iterator[None]:
    """What comes after a fault; a test that failed leaves nothing to the one after it."""
    yield
    launches.sparks.glmspark("down", "faulty", ok=False)
    if os.environ.get("GLMSPARK_EVERY_START"):
        assert "2 canaries passed" in launches.up(recipe)
        launches.down("faulty")


@contextmanager
def changed(launches: Launches, node: str, there: str, back: str) -> Iterator[None]:
    """A change on a node for the length of a with block, both as shell text for root."""
    launches.sparks.shell(node, "sh", "-c", there, root=True)
    try:
        yield
    finally:
        launches.sparks.shell(node, "sh", "-c", back, root=True)


# -- before anything is started ----------------------------------------------------------------------------


def test_a_node_that_is_down(launches: Launches, recipe: str) -> None:
    launches.sparks.lab("cut", "spark2")
    try:
        said = launches.refused(recipe, within=40)
    finally:
        launches.sparks.lab("mend", "spark2")
    assert "host: spark2" in said
    assert "did not answer within" in said or "cannot reach" in said


def test_sshd_that_refuses(launches: Launches, recipe: str) -> None:
    stop = "kill $(cat /run/sshd.pid)"
    with changed(launches, "spark2", stop, "/usr/sbin/sshd -f /etc/ssh/sshd_config -E /var/log/sshd.log"):
        said = launches.refused(recipe)
    assert "host: spark2" in said
    assert "nothing listens for SSH" in said


def test_a_host_key_that_is_not_the_known_one(launches: Launches, recipe: str, tmp_path: Path) -> None:
    known = launches.sparks.home.known_hosts.read_text().splitlines()
    first = known[0].split(" ", 1)[1]
    wrong = [line if "spark2" not in line else f"{line.split(' ', 1)[0]} {first}" for line in known]
    (tmp_path / "known_hosts").write_text("\n".join(wrong) + "\n")
    file = changed_cluster(
        launches.cluster, tmp_path / "cluster.yaml", ssh__known_hosts=str(tmp_path / "known_hosts")
    )
    said = launches.refused(recipe, cluster=file)
    assert "host: spark2" in said
    assert "host key" in said
    assert "ssh-keygen -R" in said


def test_no_sudo(launches: Launches, recipe: str) -> None:
    away = "cp -a /etc/sudoers /etc/sudoers.away && echo 'root ALL=(ALL:ALL) ALL' > /etc/sudoers"
    hide = f"{away} && mv /etc/sudoers.d /etc/sudoers.d.away"
    back = "mv /etc/sudoers.d.away /etc/sudoers.d && mv /etc/sudoers.away /etc/sudoers"
    with changed(launches, "spark2", hide, back):
        said = launches.refused(recipe)
    assert "host: spark2" in said
    assert "sudo" in said
    assert "NOPASSWD" in said


def test_a_full_disk(launches: Launches, recipe: str) -> None:
    models = "/home/spark/models"
    fill = f"mkdir -p {models} && mount -t tmpfs -o size=4m,uid=$(id -u spark) tmpfs {models}"
    with changed(launches, "spark2", fill, f"umount {models} && chown spark: {models}"):
        said = launches.refused(recipe)
    assert "host: spark2" in said
    assert "model glm-tiny takes" in said
    assert "/home/spark/models has 4 MiB free" in said


def test_an_image_that_is_nowhere(launches: Launches, recipe: str, tmp_path: Path) -> None:
    file = changed_cluster(
        launches.cluster, tmp_path / "cluster.yaml", runtime__image="registry.invalid/none:1"
    )
    said = launches.refused(recipe, cluster=file, within=90)
    assert "host: spark1" in said
    assert "docker pull" in said
    assert "glmspark image build" in said


def test_an_image_that_differs(launches: Launches, recipe: str) -> None:
    image = "glmspark-lab:base"
    other = f"docker tag {image} kept:1 && printf x > /tmp/x && tar -C /tmp -c x | docker import - {image}"
    back = f"docker image rm -f {image} && docker tag kept:1 {image} && docker image rm kept:1 && rm /tmp/x"
    with changed(launches, "spark2", other, back):
        said = launches.refused(recipe)
    assert "host: spark2" in said
    assert "not the same image" in said
    assert f"docker image rm {image}" in said


def test_links_that_are_not_what_the_recipe_needs(launches: Launches, recipe: str, tmp_path: Path) -> None:
    fast, rdma = tmp_path / "fast.yaml", tmp_path / "rdma.yaml"
    fast.write_text(Path(recipe).read_text() + "needs: {link_gbit: 1000}\n")
    rdma.write_text(Path(recipe).read_text() + "needs: {link: rdma}\n")
    start = launches.start(str(fast), "--dry-run")
    assert start.end() == 0, start.text
    assert "warning: spark2: recipe's link: 10 Gbit/s, faulty wants 1000" in start.text
    assert "wants RDMA, and cluster.yaml names no hca for spark1" in launches.refused(str(rdma))


def test_a_port_that_is_taken(launches: Launches, recipe: str) -> None:
    listen = (
        "setsid python3 -c 'import socket, time; s = socket.create_server((\"\", 8000)); time.sleep(300)' "
        "> /dev/null 2>&1 & echo $! > /tmp/taker; sleep 0.7"
    )
    with changed(launches, "spark1", listen, "pkill -F /tmp/taker"):
        said = launches.refused(recipe)
    assert "host: spark1" in said
    assert "port 8000 is taken by process" in said
    assert "create_server" in said


# -- while it starts ----------------------------------------------------------------------------------------
# Each of these is also the next start after the fault before it, as far as it gets; the last one gets ready.


def test_a_node_that_goes_down_while_it_starts(launches: Launches, recipe: str) -> None:
    start = launches.start(recipe)
    start.until("rank 1: importing vLLM")
    launches.sparks.lab("cut", "spark2")
    began = time.monotonic()
    try:
        assert start.end() == 1
        took = time.monotonic() - began
        launches.assert_nothing_left(20)
    finally:
        launches.sparks.lab("mend", "spark2")
    assert took < 40, start.text
    assert "host: spark2" in start.text


def test_a_fabric_that_is_cut_while_ssh_lives(launches: Launches, recipe: str) -> None:
    start = launches.start(recipe)
    start.until("rank 0: importing vLLM", "rank 1: importing vLLM")
    with parted(launches.sparks, "spark1", "spark2"):
        began = time.monotonic()
        assert start.end() == 1
        took = time.monotonic() - began
        launches.assert_nothing_left(10)
    assert took < 25, start.text
    assert "spark2" in start.text or "spark1" in start.text
    assert "fabric" in start.text


def test_a_rank_that_dies_while_it_loads(launches: Launches, recipe: str) -> None:
    start = launches.start(recipe)
    start.until_any("rank 1: starting the engine", "rank 1: reading", "rank 1: joining", "rank 1: loading")
    began = time.monotonic()
    victims = pids(launches.sparks, "spark2", RANK)
    assert victims
    launches.sparks.shell("spark2", "kill", "-KILL", *victims, root=True)
    assert start.end() == 1
    assert time.monotonic() - began < 15, start.text
    launches.assert_nothing_left(5)
    assert "host: spark2" in start.text
    assert "rank 1" in start.text
    assert "SIGKILL" in start.text


def test_a_rank_that_hangs(launches: Launches, recipe: str) -> None:
    start = launches.start(recipe, "--timeout", "40")
    start.until("rank 1: importing vLLM")
    hung = pids(launches.sparks, "spark2", RANK)
    assert hung
    launches.sparks.shell("spark2", "kill", "-STOP", *hung, root=True)
    assert start.end() == 1
    assert start.seconds < 75, start.text
    launches.assert_nothing_left(5)
    assert "host: spark2" in start.text
    assert "rank 1 is still importing vLLM" in start.text


def test_ctrl_c(launches: Launches, recipe: str) -> None:
    start = launches.start(recipe)
    start.until("rank 0: starting Python", "rank 1: starting Python")
    start.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert start.end() == 130, start.text
    assert time.monotonic() - began < 10
    launches.assert_nothing_left()
    assert "interrupted" in start.text
    assert launches.record("faulty").state is State.STOPPED


def test_a_control_machine_that_is_killed(launches: Launches, recipe: str) -> None:
    start = launches.start(recipe)
    start.until("rank 0: importing vLLM", "rank 1: importing vLLM")
    kill(start.process)
    launches.assert_nothing_left(25)
    assert "2 canaries passed" in launches.up(recipe)
    launches.down("faulty")
