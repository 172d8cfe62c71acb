"""What is run for each rank, as lists."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from glmspark.errors import UsageError
from glmspark.launch.command import (
    Reach,
    Site,
    client_url,
    free_port,
    inherited_env,
    is_loopback,
    lay_out_secret,
    rank_argv,
    rank_env,
)
from glmspark.plan import Plan, plan_local
from tests.unit.plan.plans import BOX, checkpoint, recipe

SITE = Site(
    "0123456789abcdef", Path("/state/toy"), Path("/tmp/glmspark-0-1"), 29500, (Reach("127.0.0.1", "lo"),) * 2
)


def plan(tmp_path: Path, **layout: Any) -> Plan:
    return plan_local(recipe(), checkpoint(tmp_path), facts=BOX, **layout)


def test_two_ranks_find_one_another(tmp_path: Path) -> None:
    two = plan(tmp_path, tp=2)
    common = ["py", "-m", "glmspark.engine.serve", two.model_dir, *two.flag_words(), "--nnodes", "2"]
    meet = ["--master-addr", "127.0.0.1", "--master-port", "29500"]
    assert rank_argv(two, 0, SITE, python="py") == [
        *common,
        *["--node-rank", "0", *meet],
        *["--host", "127.0.0.1", "--port", "8000"],
    ]
    assert rank_argv(two, 1, SITE, python="py") == [*common, "--node-rank", "1", *meet, "--headless"]
    assert common[(i := common.index("--tensor-parallel-size")) : i + 2] == ["--tensor-parallel-size", "2"]


def test_one_rank_needs_no_group(tmp_path: Path) -> None:
    argv = rank_argv(plan(tmp_path, tp=1), 0, SITE, python="py")
    assert not {"--nnodes", "--master-addr", "--headless"} & set(argv)


def test_the_environment_of_a_rank(tmp_path: Path) -> None:
    two = plan(tmp_path, tp=2)
    env = rank_env(two, 1, SITE)
    assert env.items() >= two.env.items()
    assert {name: env[name] for name in env if name not in two.env} == {
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_CPU_OMP_THREADS_BIND": "1",
        "VLLM_RPC_BASE_PATH": "/tmp/glmspark-0-1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_COLOR": "0",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": "/tmp/glmspark-0-1",
        "SPT_NOENV": "1",
        "GLMSPARK_DEPLOYMENT": "0123456789abcdef",
        "GLMSPARK_DEPLOYMENT_DIR": "/state/toy",
    }


def test_ranks_in_lockstep_differ_by_their_environment(tmp_path: Path) -> None:
    two = plan(tmp_path, tp=2, backend="lockstep")
    common = ["py", "-m", "glmspark.engine.serve", two.model_dir, *two.flag_words()]
    common += ["--distributed-executor-backend", "glmspark-lockstep"]
    assert rank_argv(two, 1, SITE, python="py") == common
    assert rank_argv(two, 0, SITE, python="py") == [*common, "--host", "127.0.0.1", "--port", "8000"]
    first, second = (rank_env(two, rank, SITE) for rank in (0, 1))
    assert {name: (first[name], second[name]) for name in first if first[name] != second[name]} == {
        "RANK": ("0", "1"),
        "VLLM_CPU_OMP_THREADS_BIND": ("0", "1"),
    }
    assert (
        second.items()
        >= {
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "GLMSPARK_LOCKSTEP_SECRET_FILE": "/tmp/glmspark-0-1/secret",
            "GLMSPARK_LOCKSTEP_START_S": str(two.limits.start),
        }.items()
    )


def test_the_secret_is_fresh_and_its_owners(tmp_path: Path) -> None:
    place = tmp_path / "secret"
    lay_out_secret({})
    found = set()
    for _ in range(2):
        lay_out_secret({"GLMSPARK_LOCKSTEP_SECRET_FILE": str(place)})
        found.add(place.read_text())
        assert place.stat().st_mode & 0o777 == 0o600
    assert len(found) == 2
    assert all(len(secret) == 64 for secret in found)


def test_what_the_caller_s_shell_must_not_decide() -> None:
    caller = {"PATH": "/bin", "HOME": "/h", "RANK": "3", "MASTER_ADDR": "10.0.0.1", "VLLM_API_KEY": "secret"}
    assert inherited_env(caller) == {"PATH": "/bin", "HOME": "/h"}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000/v1"),
        ("0.0.0.0", "http://127.0.0.1:8000/v1"),
        ("::", "http://[::1]:8000/v1"),
        ("fd00::1", "http://[fd00::1]:8000/v1"),
        ("spark1", "http://spark1:8000/v1"),
    ],
)
def test_the_url_for_a_client_here(host: str, url: str) -> None:
    assert client_url(host, 8000) == url


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("127.8.8.8", True),
        ("0.0.0.0", False),
        ("spark1", False),
        ("::", False),
    ],
)
def test_who_can_reach_it(host: str, only_here: bool) -> None:
    assert is_loopback(host) is only_here


def test_a_free_port_is_free() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", free_port("127.0.0.1")))
    with pytest.raises(UsageError, match=r"cannot listen on 198\.18\.255\.1"):
        free_port("198.18.255.1")


def test_ranks_on_several_nodes_use_their_own_addresses_and_meet_at_the_first(tmp_path: Path) -> None:
    two = plan(tmp_path, tp=2)
    apart = Site(
        "x", SITE.home, SITE.scratch, 29500, (Reach("198.18.0.1", "fab0"), Reach("198.18.0.2", "fab1"))
    )
    argv = rank_argv(two, 1, apart, python="py")
    assert argv[argv.index("--master-addr") + 1] == "198.18.0.1"
    env = rank_env(two, 1, apart)
    assert (env["VLLM_HOST_IP"], env["GLOO_SOCKET_IFNAME"]) == ("198.18.0.2", "fab1")
