"""The NCCL that ranks will load is asked for where they will run: same image, Python and mounts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from glmspark.config.cluster import parse_cluster
from glmspark.launch import cluster_up
from glmspark.nodes.facts.nccl import Nccl
from glmspark.nodes.survey import Facts, Reading

CLUSTER = parse_cluster(
    b"""\
cluster: 1
runtime: {image: "glmspark:1", python: /opt/env/bin/python, mounts: [/opt/env]}
nodes: [{name: spark1, address: 192.0.2.1}]
""",
    "cluster.yaml",
)


@pytest.mark.parametrize(("platform", "asked"), [("cuda", 1), ("cpu", 0)])
def test_it_is_asked_for_where_ranks_run(monkeypatch: pytest.MonkeyPatch, platform: str, asked: int) -> None:
    commands = []

    async def survey(node: Any, facts: Any, **_: Any) -> Facts:
        commands.append(facts[0].command)
        value = Nccl(version="2.30.7", build="a" * 40, path="libnccl.so.2")
        return Facts(node.host, {facts[0].name: Reading(value)})

    async def each(work: Any) -> dict[str, Any]:
        return {"spark1": await work(SimpleNamespace(host="spark1"))}

    monkeypatch.setattr(cluster_up, "survey", survey)
    prepared: Any = SimpleNamespace(
        plan=SimpleNamespace(platform=platform), wanted=SimpleNamespace(cluster=CLUSTER)
    )
    fleet: Any = SimpleNamespace(each=each)
    found = asyncio.run(cluster_up._nccl(fleet, prepared, "sha256:1"))
    assert len(commands) == len(found) == asked
    for command in commands:
        assert "type=bind,src=/opt/env,dst=/opt/env,readonly" in command
        assert command[command.index("--entrypoint") + 1 : command.index("--entrypoint") + 3] == (
            "/opt/env/bin/python",
            "sha256:1",
        )
