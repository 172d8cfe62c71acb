"""A lab comes whole and goes whole, also when it is killed half made."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from glmspark.lab import commands
from tests.lab.virtual import GLMSPARK, VirtualSparks, interfaces, namespaces, run, traces

STEPS = [
    ("starting the switch", 0.0),
    ("starting the switch", 0.1),
    ("starting 2 nodes", 0.0),
    ("starting 2 nodes", 0.3),
    ("laying cables", 0.0),
    ("laying cables", 0.3),
    ("starting sshd and Docker", 0.0),
    ("starting sshd and Docker", 0.4),
]


def start(sparks: VirtualSparks, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*GLMSPARK, "lab", *words],
        env=sparks.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"{text!r} never came: {''.join(seen)}")


def kill_half_made(sparks: VirtualSparks, step: str, delay: float) -> None:
    """Kill `lab up 2` so many seconds after a step began; sooner where the lab was whole by then."""
    for seconds in (delay, delay / 2, delay / 4, 0.0):
        process = start(sparks, "up", "2")
        read_until(process, step)
        time.sleep(seconds)
        process.kill()
        if process.wait() == -signal.SIGKILL and sparks.lab("status", ok=False).returncode == 1:
            return
        sparks.lab("down")
    raise AssertionError(f"the lab was always whole before the kill at {step!r}")


@pytest.mark.parametrize(("step", "delay"), STEPS)
def test_after_a_kill_up_works_and_down_leaves_nothing(other: VirtualSparks, step: str, delay: float) -> None:
    before = interfaces()
    kill_half_made(other, step, delay)
    left = traces(other.home)
    done = other.lab("up", "1")
    assert left, "nothing had been made yet: this kill proves nothing"
    assert "cleared what an earlier lab had left" in done.stderr
    assert other.ssh("spark1", "hostname").stdout == "spark1\n"
    spaces = namespaces(other.record)
    assert len(spaces) == 6  # the node's five and the switch's network
    interface = other.record.wiring.machine.interface
    assert interface in interfaces() - before
    other.lab("down")
    assert traces(other.home, spaces) == []
    assert interface not in interfaces()


def test_a_killed_lab_is_cleared_by_down_alone(other: VirtualSparks) -> None:
    kill_half_made(other, "starting sshd and Docker", 0.2)
    spaces = namespaces(other.record)
    other.lab("down")
    assert traces(other.home, spaces) == []


def test_ctrl_c_leaves_nothing(other: VirtualSparks) -> None:
    process = start(other, "up", "2")
    read_until(process, "laying cables")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 130
    assert traces(other.home) == []


def test_a_killed_down_is_finished_by_the_next(other: VirtualSparks) -> None:
    other.lab("up", "2")
    spaces = namespaces(other.record)
    process = start(other, "down")
    read_until(process, "ending")
    process.kill()
    process.wait()
    other.lab("down")
    assert traces(other.home, spaces) == []


def test_down_twice_is_fine(other: VirtualSparks) -> None:
    assert "there is no lab" in other.lab("down").stdout
    other.lab("up", "1")
    assert "the lab is down" in other.lab("down").stdout
    assert "there is no lab" in other.lab("down").stdout
    assert other.lab("status", ok=False).returncode == 3


def test_a_node_that_died_shows_and_up_makes_the_lab_anew(other: VirtualSparks) -> None:
    other.lab("up", "2")
    init = other.record.nodes[1].init
    assert init is not None
    os.kill(init.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{init.pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    status = other.status()
    assert status["state"] == "broken"
    assert [node["alive"] for node in status["nodes"]] == [True, False]
    refused = other.lab("cut", "spark1", ok=False)
    assert refused.returncode == 1
    assert "glmspark lab down" in refused.stderr
    other.lab("up", "2")
    assert other.status()["state"] == "up"


def test_a_lost_record_does_not_keep_a_lab_from_going(other: VirtualSparks) -> None:
    other.lab("up", "1")
    spaces = namespaces(other.record)
    other.home.record_file.unlink()
    other.lab("down")
    assert traces(other.home, spaces) == []


def test_containers_go_with_their_node(other: VirtualSparks) -> None:
    other.lab("up", "1")
    # An image of one program is enough: `docker import` takes any tree.
    tree = other.state / "tree"
    libraries = [word for word in run(["ldd", "/bin/sleep"]).split() if word.startswith("/")]
    for path in ["/bin/sleep", *libraries]:
        (tree / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tree / path[1:]).write_bytes(Path(path).read_bytes())
        (tree / path[1:]).chmod(0o755)
    archive = other.path("spark1", "/tmp/tree.tar")
    run(["tar", "--create", f"--file={archive}", f"--directory={tree}", "."])
    other.shell("spark1", "docker", "import", "/tmp/tree.tar", "one")
    other.shell("spark1", "docker", "run", "--detach", "--network", "host", "one", "/bin/sleep", "65432")
    spaces = namespaces(other.record)
    assert any("control group" in trace for trace in traces(other.home))
    other.lab("down")
    assert traces(other.home, spaces) == []
    assert "sleep 65432" not in run(["ps", "-eo", "args"])


def test_a_killed_making_of_the_image_leaves_nothing(other: VirtualSparks) -> None:
    other.lab("up", "1")
    process = start(other, "image")
    read_until(process, "retrieving")
    time.sleep(0.5)
    process.kill()
    process.wait()
    assert other.home.unfinished()
    other.lab("down")
    assert other.home.unfinished() == []
    assert str(other.home.cache) not in run(["ps", "-eo", "args"])


def test_two_labs_at_once_keep_apart(lab: VirtualSparks, other: VirtualSparks) -> None:
    other.lab("up", "1")
    assert other.record.slot != lab.record.slot
    assert set(other.fabric("spark1")).isdisjoint(lab.fabric("spark1"))
    other.lab("down")
    assert lab.status()["state"] == "up"
    assert lab.ssh("spark1", "hostname").stdout == "spark1\n"


def test_in_a_ring_of_three_every_fabric_address_is_reached_both_ways(other: VirtualSparks) -> None:
    other.lab("up", "3", "--topology", "ring")
    names = [node.name for node in other.cluster.nodes]
    assert all(len(other.fabric(name)) == 2 for name in names)
    assert not any(address.startswith("198.19.") for name in names for address in other.fabric(name))
    for one in names:
        for address in (address for name in names if name != one for address in other.fabric(name)):
            other.shell(one, "ping", "-c", "1", "-W", "5", address)
    assert other.ssh("spark2", "hostname").stdout == "spark2\n"
    other.lab("cut", "spark1-spark2")
    assert other.shell("spark1", "cat", "/sys/class/net/enp1s0f1np1/carrier") == "0"
    assert other.shell("spark2", "cat", "/sys/class/net/enp1s0f0np0/carrier") == "0"
    assert other.shell("spark1", "cat", "/sys/class/net/enp1s0f0np0/carrier") == "1"


def test_a_pair_is_one_cable(other: VirtualSparks) -> None:
    other.lab("up", "2", "--topology", "pair")
    assert [len(other.fabric(name)) for name in ("spark1", "spark2")] == [1, 1]
    other.shell("spark1", "ping", "-c", "1", "-W", "5", other.fabric("spark2")[0])
    assert "rtt" in other.shell("spark2", "ping", "-c", "1", "-W", "5", other.fabric("spark1")[0])


def test_delay_and_loss_are_there_or_refused_with_the_reason(other: VirtualSparks) -> None:
    has_netem = subprocess.run(commands.has_netem(), capture_output=True, check=False).returncode == 0
    done = other.lab("up", "2", "--delay", "20ms", ok=False)
    if has_netem:
        assert done.returncode == 0
        report = other.shell("spark1", "ping", "-c", "3", "-i", "0.2", other.fabric("spark2")[0])
        least = float(report.rsplit("= ", 1)[1].split("/")[0])
        assert least >= 40
    else:
        assert done.returncode == 1
        assert "netem" in done.stderr
        assert traces(other.home) == []


@pytest.mark.parametrize(
    "words",
    [
        ["up", "9"],
        ["up", "2", "--link", "fast"],
        ["up", "3", "--topology", "pair"],
        ["up", "2", "--topology", "star"],
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(other: VirtualSparks, words: list[str]) -> None:
    assert other.lab(*words, ok=False).returncode == 2
    assert not other.home.path.exists()
