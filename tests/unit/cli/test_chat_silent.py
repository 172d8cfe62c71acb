"""`chat` with a deployment that serves no more says why, not only that nobody answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from glmspark.config.cluster import parse_cluster
from glmspark.launch import cluster_prove, cluster_status
from glmspark.launch.command import free_port
from glmspark.launch.record import ClusterSite, Deployment, Endpoint, State, home
from glmspark.nodes.transport import NodeError
from tests.unit.cli.commands import Glmspark
from tests.unit.launch.starts import make_start
from tests.unit.launch.test_cluster_status import state

CLUSTER = b"""\
cluster: 1
runtime: {image: 'i:1'}
nodes:
  - {name: spark1, address: 192.0.2.1, fabric: [{interface: fab0, address: 10.0.0.1/24}]}
  - {name: spark2, address: 192.0.2.2, fabric: [{interface: fab0, address: 10.0.0.2/24}]}
"""
ENDED = {"what": "rank 1 ended with exit code 1", "rank": 1, "node": "spark2", "at": 1.0, "seen": "no memory"}


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment on nodes that this machine takes for ready, at an address where nobody listens."""
    start = make_start("far", "serves", "serves")
    cluster = parse_cluster(CLUSTER, "c.yaml")
    start.cluster = ClusterSite(cluster=cluster.model_dump(mode="json"), directories={})
    for rank in start.ranks:
        rank.node = f"spark{rank.rank + 1}"
    start.turn(State.READY)
    where = home("far")
    where.prepare()
    where.write(start)

    @contextlib.contextmanager
    def reached(deployment: Deployment) -> Iterator[Endpoint]:
        port = free_port("127.0.0.1")
        yield deployment.endpoint.model_copy(update={"url": f"http://127.0.0.1:{port}/v1"})

    monkeypatch.setattr(cluster_prove, "reached", reached)
    return start


def say(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    """What the nodes say when they are asked."""

    async def look_at(place: object, *, sample: float) -> Any:
        if isinstance(found, Exception):
            raise found
        return [cluster_status.status_of("far", found, None, None, now=200.0)]

    monkeypatch.setattr(cluster_status, "look_at", look_at)


def test_one_that_has_failed_on_its_nodes(
    ready: Deployment, glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {"spark1": state(0, "failed", reason=ENDED), "spark2": state(1, "failed", reason=ENDED)}
    say(monkeypatch, states)
    done = glmspark("chat", "Hello")
    assert done.code == 1
    assert "far does not serve, it is failed: rank 1 ended with exit code 1" in done.err
    assert "host: spark2" in done.err
    assert "no memory" in done.err
    assert "restart far` starts it again" in done.err


def test_nodes_that_cannot_be_reached(
    ready: Deployment, glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, NodeError("spark1 did not answer", host="spark1", next="is it up?"))
    assert "spark1 did not answer" in glmspark("chat", "Hello").err


def test_one_that_the_nodes_say_serves(
    ready: Deployment, glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, {"spark1": state(0, "ready"), "spark2": state(1, "ready")})
    done = glmspark("chat", "Hello")
    assert "no answer: Connection error." in done.err
    assert "says whether it runs" in done.err
