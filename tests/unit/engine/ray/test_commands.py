"""What a ray node runs, and what it refuses before anything runs."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import pytest

from glmspark.engine import ray_node, start_method
from glmspark.engine.addresses import AddressError
from glmspark.engine.fabric import Fabric
from glmspark.engine.ray.commands import (
    LONGEST_DIRECTORY,
    RayNode,
    node_environment,
    serve_command,
    start_command,
)
from glmspark.engine.ray_node import (
    UsageError,
    check_addresses,
    expected_nodes,
    make_directory,
    parse,
    read_secret,
)
from glmspark.launch.cluster_prepare import _scratch
from glmspark.nodes.facts.account import Account

HEAD = RayNode(True, "127.0.0.2", 29500, "127.0.0.2", 2, 120.0, ("/models/glm", "-pp", "2", "--port", "8000"))
WORKER = RayNode(False, "127.0.0.2", 29500, "127.0.0.3", 2, 120.0, ("/models/glm", "-pp", "2"))
LINE = "--head --address 127.0.0.2:29500 --node-ip 127.0.0.2 --nodes 2 -- /models/glm -pp 2"
WORDS = LINE.split()


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_method, "is_cpu_build", lambda: True)


def test_the_head_starts_ray_without_what_nobody_uses() -> None:
    assert start_command(HEAD, "127.0.0.2:6379", Path("/tmp/x"), cpu=True) == [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--port=6379",
        "--include-dashboard=false",
        "--no-monitor",
        "--node-ip-address=127.0.0.2",
        "--temp-dir=/tmp/x",
        "--disable-usage-stats",
        "--include-log-monitor=false",
        "--object-store-memory=80000000",
        "--num-cpus=1",
        "--num-gpus=1",
    ]


def test_a_node_joins_and_on_cuda_ray_counts_devices_itself() -> None:
    words = start_command(WORKER, "127.0.0.2:6379", Path("/tmp/x"), cpu=False)
    assert words[3:6] == ["start", "--address=127.0.0.2:6379", "--node-ip-address=127.0.0.3"]
    assert not any(word.startswith(("--num-gpus", "--head", "--port")) for word in words)


def test_the_server_is_told_to_use_ray() -> None:
    assert serve_command(HEAD)[1:] == [
        *("-m", "glmspark.engine.serve", "/models/glm", "-pp", "2", "--port", "8000"),
        *("--distributed-executor-backend", "ray"),
    ]


def test_the_environment() -> None:
    given = {
        "RAY_health_check_period_ms": "3000",
        "RAY_ADDRESS": "elsewhere:1",
        "RAY_AUTH_TOKEN": "old",
        "VLLM_HOST_IP": "127.0.0.2",
    }
    made = node_environment(given, HEAD, "lo", None)
    assert made["RAY_health_check_period_ms"] == "3000"  # the recipe's
    assert made["RAY_memory_monitor_refresh_ms"] == "0"
    assert made["GLOO_SOCKET_IFNAME"] == made["NCCL_SOCKET_IFNAME"] == "lo"
    assert made["RAY_AUTH_MODE"] == "disabled"
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN"} & made.keys()
    with_secret = node_environment(given, HEAD, "lo", "/run/secret")
    assert (with_secret["RAY_AUTH_MODE"], with_secret["RAY_AUTH_TOKEN_PATH"]) == ("token", "/run/secret")


def test_a_command_line() -> None:
    node = parse(WORDS)
    assert node == RayNode(True, "127.0.0.2", 29500, "127.0.0.2", 2, 120.0, ("/models/glm", "-pp", "2"))
    assert parse(["--worker", *WORDS[1:3], "--node-ip", "127.0.0.3", *WORDS[5:]]).head is False


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("-- /models/glm -pp 2", "", "after `--` comes the model"),
        (":29500", "", "is not IP:PORT"),
        (":29500", ":0", "is not IP:PORT"),
        ("--node-ip 127.0.0.2", "--node-ip node1", "'node1' is not an IP address"),
        ("--node-ip 127.0.0.2", "--node-ip 127.0.0.3", "is the head's"),
        ("--head", "--worker", "is the head's"),
        ("--nodes 2", "--nodes 0", "must be above zero"),
        ("--nodes 2", "--nodes 3", "is 2 ranks, but --nodes is 3"),
        ("-pp 2", "-pp 2 --nnodes 2 --headless", "--headless, --nnodes: these are for ranks without Ray"),
        ("-pp 2", "-pp 2 --distributed-executor-backend mp", "--distributed-executor-backend mp"),
    ],
)
def test_what_cannot_work(old: str, new: str, why: str) -> None:
    words = " ".join(WORDS)
    assert old in words
    with pytest.raises(UsageError, match=re.escape(why)):
        parse(words.replace(old, new).split())


def test_ranks_need_not_be_nodes_where_nodes_have_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_method, "is_cpu_build", lambda: False)
    assert parse([*WORDS, "-tp", "2"]).flags[-2:] == ("-tp", "2")


def test_addresses() -> None:
    assert check_addresses(WORKER, {}) == "lo"
    assert check_addresses(WORKER, {"VLLM_HOST_IP": "127.0.0.3", "GLOO_SOCKET_IFNAME": "lo"}) == "lo"
    with pytest.raises(AddressError, match=r"--node-ip is 127.0.0.3, but VLLM_HOST_IP=127.0.0.2"):
        check_addresses(WORKER, {"VLLM_HOST_IP": "127.0.0.2"})
    with pytest.raises(AddressError, match="GLOO_SOCKET_IFNAME=eth9 names eth9"):
        check_addresses(WORKER, {"GLOO_SOCKET_IFNAME": "eth9"})
    abroad = RayNode(False, "198.51.100.1", 1, "198.51.100.2", 2, 1.0, ("m",))
    with pytest.raises(AddressError, match=r"VLLM_HOST_IP=198.51.100.2 is no address of this machine"):
        check_addresses(abroad, {})


def test_the_plan_and_the_command_line_agree() -> None:
    def plan(text: str) -> Fabric | None:
        return Fabric.from_environment({"GLMSPARK_FABRIC": text})

    assert expected_nodes(WORKER, None) == ()
    assert expected_nodes(WORKER, plan("127.0.0.2@lo,127.0.0.3@lo")) == ("127.0.0.2", "127.0.0.3")
    for text, why in (
        ("127.0.0.2@lo", "has 1 nodes, but --nodes is 2"),
        ("127.0.0.2@lo,127.0.0.4@lo", "--node-ip 127.0.0.3 is not in"),
        ("127.0.0.3@lo,127.0.0.2@lo", "begins with 127.0.0.3, but the head is 127.0.0.2"),
    ):
        with pytest.raises(AddressError, match=why):
            expected_nodes(WORKER, plan(text))


def test_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    file.chmod(0o600)
    assert read_secret(HEAD, str(file)) == b"0123456789abcdef0123456789abcdef"
    file.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        read_secret(HEAD, str(file))
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(UsageError, match="has 5 characters; it takes 32 or more"):
        read_secret(HEAD, str(file))
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_secret(HEAD, str(tmp_path / "none"))
    assert read_secret(HEAD, None) == b""
    abroad = RayNode(True, "198.51.100.1", 1, "198.51.100.1", 2, 1.0, ("m",))
    with pytest.raises(UsageError, match="beyond loopback there must be a secret"):
        read_secret(abroad, None)


def test_rays_session_lies_in_the_deployments_own_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the node's agent removes it, also when the ray node is killed before it could."""
    with tempfile.TemporaryDirectory(prefix="glmspark-", dir="/tmp") as scratch:
        monkeypatch.setattr(ray_node.tempfile, "gettempdir", lambda: scratch)
        made = make_directory()
        assert made.parent == Path(scratch)
        assert made.stat().st_mode & 0o777 == 0o700
        again = make_directory()  # another's stays another's
        again.rmdir()
        assert again != made
    account = Account("/home/me", "me", 2**32 - 2, 1)  # no user has a longer number
    assert len(_scratch("/home/me/d", account)) + len("/rs") <= LONGEST_DIRECTORY


def test_sockets_paths_are_short_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for base in (tmp_path / ("long" * 12), Path("/tmp")):
        base.mkdir(exist_ok=True)
        monkeypatch.setattr(ray_node.tempfile, "gettempdir", lambda base=base: str(base))
        made = make_directory()
        made.rmdir()
        assert len(str(made)) <= LONGEST_DIRECTORY
        assert made.parent == Path("/tmp")
