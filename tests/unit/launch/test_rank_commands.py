"""What each node of a cluster runs, as lists."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config.cluster import Runtime
from glmspark.errors import GlmsparkError
from glmspark.launch.cluster_prepare import Prepared, links_of
from glmspark.launch.rank_commands import (
    Seat,
    Start,
    container_argv,
    container_env,
    make_spec,
    process_argv,
    rank_env,
)
from glmspark.nodes.fleet import Fleet
from glmspark.plan import Plan
from glmspark.plan.cluster import choose_nodes, plan_cluster
from tests.unit.plan.plans import checkpoint, recipe
from tests.unit.plan.test_cluster import cluster, facts

SEAT = Seat("spark2", "/home/me/d", "/tmp/s", "/home/me/c", "me", 1001, 1002)
DOCKER = Runtime(kind="docker", image="i:1", python="/opt/e/bin/python", mounts=("/opt/e",))
START = Start("toy", "0123", "w" * 64, "e" * 64, "a-key")


def plan(tmp_path: Path, backend: str = "mp", **changes: object) -> Plan:
    one = cluster(2)
    made = plan_cluster(
        recipe(), checkpoint(tmp_path), choose_nodes(one, 2), facts(one), tp=2, pp=1, backend=backend
    )
    return made.model_copy(update={"model_dir": "/models/toy", **changes})


def test_mp_ranks_meet_at_the_head_s_fabric_address(tmp_path: Path) -> None:
    two = plan(tmp_path)
    common = ["/e/bin/python", "-m", "glmspark.engine.serve", "/models/toy", *two.flag_words()]
    meet = ["--master-addr", "10.0.0.10", "--master-port", "29500"]
    assert process_argv(two, 0, venv="/e") == [
        *(*common, "--nnodes", "2", "--node-rank", "0", *meet),
        *("--host", "127.0.0.1", "--port", "8000"),
    ]
    assert process_argv(two, 1, venv="/e") == [
        *(*common, "--nnodes", "2", "--node-rank", "1", *meet, "--headless")
    ]


def test_ray_nodes_know_the_head_and_themselves(tmp_path: Path) -> None:
    two = plan(tmp_path, "ray")
    assert process_argv(two, 0, venv="/e") == [
        *("/e/bin/python", "-m", "glmspark.engine.ray_node", "--head", "--address", "10.0.0.10:29700"),
        *("--node-ip", "10.0.0.10", "--nodes", "2", "--join-limit", "120", "--"),
        *("/models/toy", *two.flag_words(), "--host", "127.0.0.1", "--port", "8000"),
    ]
    words = process_argv(two, 1, venv="/e")
    assert words[3] == "--worker"
    assert words[words.index("--node-ip") + 1] == "10.0.0.11"
    assert "--host" not in words
    assert rank_env(two, 1, SEAT)["GLMSPARK_RAY_SECRET_FILE"] == "/home/me/d/lockstep-secret"


def test_lockstep_ranks_get_torchrun_s_variables(tmp_path: Path) -> None:
    two = plan(tmp_path, "lockstep")
    words = process_argv(two, 1, venv="/e")
    assert words[-2:] == ["--distributed-executor-backend", "glmspark-lockstep"]
    assert not {"--nnodes", "--headless", "--host"} & set(words)
    assert process_argv(two, 0, venv="/e")[-4:] == ["--host", "127.0.0.1", "--port", "8000"]
    env = rank_env(two, 1, SEAT)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert {name: env[name] for name in names} == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "10.0.0.10",
        "MASTER_PORT": "29700",
    }


def test_every_socket_is_told_its_fabric_address(tmp_path: Path) -> None:
    env = rank_env(plan(tmp_path), 1, SEAT)
    assert env["VLLM_HOST_IP"] == "10.0.0.11"
    assert {env["GLOO_SOCKET_IFNAME"], env["TP_SOCKET_IFNAME"]} == {"fab0"}
    assert env["NCCL_SOCKET_IFNAME"] == "=fab0"
    assert env["GLMSPARK_FABRIC"] == "10.0.0.10@fab0,10.0.0.11@fab0"
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
    assert "NCCL_IB_DISABLE" not in env


def test_rdma_is_named_where_it_is_planned_and_off_where_it_is_not(tmp_path: Path) -> None:
    two = plan(tmp_path, platform="cuda")
    assert rank_env(two, 0, SEAT)["NCCL_IB_DISABLE"] == "1"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in rank_env(two, 0, SEAT)
    rdma = two.ranks[0].model_copy(update={"hcas": ("roce0", "roce1"), "gid_index": 3})
    env = rank_env(two.model_copy(update={"ranks": (rdma, two.ranks[1])}), 0, SEAT)
    assert (env["NCCL_IB_DISABLE"], env["NCCL_IB_HCA"], env["NCCL_IB_GID_INDEX"]) == (
        "0",
        "=roce0,roce1",
        "3",
    )


def test_a_recipe_may_switch_rdma_off(tmp_path: Path) -> None:
    two = plan(tmp_path, platform="cuda", env={"NCCL_IB_DISABLE": "1", "VLLM_HOST_IP": "evil"})
    rdma = two.ranks[0].model_copy(update={"hcas": ("roce0",)})
    env = rank_env(two.model_copy(update={"ranks": (rdma, two.ranks[1])}), 0, SEAT)
    assert (env["NCCL_IB_DISABLE"], env["VLLM_HOST_IP"]) == ("1", "10.0.0.10")


def box(plan: Plan, rank: int, seat: Seat = SEAT, runtime: Runtime = DOCKER) -> list[str]:
    return container_argv(
        plan, rank, seat, runtime=runtime, image="sha256:ab", deployment="toy", deployment_id="0123"
    )


def test_a_container_without_a_gpu(tmp_path: Path) -> None:
    two = plan(tmp_path)
    assert box(two, 1) == [
        *("docker", "run", "--detach", "--init", "--pull", "never", "--name", "glmspark-toy-r1"),
        *("--label", "glmspark.deployment=toy", "--label", "glmspark.id=0123"),
        *("--network", "host", "--ipc", "host", "--uts", "host", "--restart", "no"),
        *("--tmpfs", "/dev/shm:rw,nosuid,nodev,exec,mode=1777"),
        *("--log-driver", "json-file", "--log-opt", "max-size=50m", "--user", "1001:1002"),
        *("--mount", "type=bind,src=/opt/e,dst=/opt/e,readonly"),
        *("--mount", "type=bind,src=/models/toy,dst=/models/toy,readonly"),
        *("--mount", "type=bind,src=/tmp/s,dst=/tmp/s", "--mount", "type=bind,src=/home/me/c,dst=/home/me/c"),
        *("--workdir", "/tmp/s", "--env-file", "/home/me/d/env", "--entrypoint", "/opt/e/bin/python"),
        *("sha256:ab", *process_argv(two, 1, venv="")[1:]),
    ]


def test_devices_and_capabilities_come_with_what_is_there(tmp_path: Path) -> None:
    words = box(plan(tmp_path), 1, dataclasses.replace(SEAT, gpu=True, verbs=True))
    text = " ".join(words)
    assert "--gpus all --ulimit memlock=-1:-1" in text
    assert "--device /dev/infiniband --cap-add IPC_LOCK" in text
    assert not {"--privileged", "--rm"} & set(words)
    assert {"--gpus", "--device", "--cap-add"}.isdisjoint(box(plan(tmp_path / "b"), 1))


def test_a_backend_with_a_secret_gets_its_file_and_no_more(tmp_path: Path) -> None:
    words = box(plan(tmp_path, "ray"), 1)
    assert "type=bind,src=/home/me/d/lockstep-secret,dst=/home/me/d/lockstep-secret,readonly" in words
    assert START.engine_secret not in " ".join(words)


def test_no_secret_stands_in_a_command_or_in_a_rank_s_environment(tmp_path: Path) -> None:
    for backend in ("mp", "ray", "lockstep"):
        two = plan(tmp_path / backend, backend)
        for rank in (0, 1):
            env = container_env(rank_env(two, rank, SEAT), SEAT)
            argv = box(two, rank)
            spec = make_spec(two, rank, SEAT, START, argv, env, DOCKER)
            for secret in ("a-key", START.watch_secret, START.engine_secret):
                assert secret not in str(argv) + str(env)
            assert spec["secrets"]["watch"] == START.watch_secret
            assert ("api_key" in spec["secrets"]) == (rank == 0)
            assert spec["env_file"].get("VLLM_API_KEY") == ("a-key" if rank == 0 else None)


def test_what_an_agent_is_told(tmp_path: Path) -> None:
    two = plan(tmp_path)
    head, other = (
        make_spec(two, rank, SEAT, START, ["x"], {"A": "1"}, Runtime(kind="venv", venv="/e"))
        for rank in (0, 1)
    )
    assert head["watch"] == {"listen": "10.0.0.10:29600", "connect": None, "silence": 8.0}
    assert other["watch"] == {"listen": None, "connect": "10.0.0.10:29600", "silence": 8.0}
    assert (head["runtime"], head["container"], head["env_file"]) == ("process", None, {})
    assert head["env"] == other["env"] == {"A": "1"}
    assert (other["rank"], other["world"], other["directory"]) == (1, 2, "/home/me/d")


@given(name=st.sampled_from(["A", "B"]), value=st.text())
def test_a_container_s_variables_are_lines(name: str, value: str) -> None:
    if "\n" in value:
        with pytest.raises(GlmsparkError, match="line break"):
            container_env({name: value}, SEAT)
    else:
        assert container_env({name: value}, SEAT) == {
            "HOME": "/home/me/c",
            "USER": "me",
            "LOGNAME": "me",
            name: value,
        }


def test_a_container_sees_the_drafters_own_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seats = [dataclasses.replace(SEAT, node=name) for name in ("spark1", "spark2")]
    monkeypatch.setattr(Prepared, "seats", lambda *_: seats)
    monkeypatch.setattr(Prepared, "_record", lambda *_: SimpleNamespace(model_dump=lambda mode: {"as": mode}))
    wanted: Any = SimpleNamespace(name="toy", cluster=SimpleNamespace(runtime=DOCKER))
    model: Any = None
    mount = "type=bind,src=/models/drafter,dst=/models/drafter,readonly"
    prepared = Prepared(wanted, plan(tmp_path), model, None, {}, {}, {}, "/models/drafter")
    _, specs = prepared.starts({}, "sha256:ab", None)
    assert [spec["argv"].count(mount) for spec in specs.values()] == [1, 1]
    _, specs = dataclasses.replace(prepared, draft_dir=None).starts({}, "sha256:ab", None)
    assert [spec["argv"].count(mount) for spec in specs.values()] == [0, 0]


def test_a_container_sees_where_the_models_links_lead(tmp_path: Path) -> None:
    """A model taken from a hub's cache is a directory of links to it."""
    seat = dataclasses.replace(
        SEAT, links=("/home/me/.cache/hub/blobs", "/models/toy/sub", "/opt/e", "/opt/extra")
    )
    words = box(plan(tmp_path), 1, seat)
    mounts = [word for word in words if word.endswith(",readonly")]
    assert [one.partition("dst=")[2] for one in mounts] == [
        "/opt/e,readonly",
        "/models/toy,readonly",
        "/home/me/.cache/hub/blobs,readonly",
        "/opt/extra,readonly",
    ]


def test_where_the_links_of_a_model_lead(tmp_path: Path) -> None:
    blobs, snapshot, models = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snap", tmp_path / "m"
    for one in (blobs, snapshot, models):
        one.mkdir(parents=True)
    (blobs / "ab").write_text("x")
    (snapshot / "a.safetensors").symlink_to("../blobs/ab")
    (models / "a.safetensors").symlink_to(snapshot / "a.safetensors")
    (models / "own").write_text("x")
    (models / "again").symlink_to("own")
    (models / "nowhere").symlink_to(tmp_path / "gone" / "x")

    async def look() -> dict[str, tuple[str, ...]]:
        async with Fleet({"here": None}) as fleet:
            return await links_of(fleet, (str(models),))

    assert asyncio.run(look()) == {"here": (str(blobs), str(snapshot))}
