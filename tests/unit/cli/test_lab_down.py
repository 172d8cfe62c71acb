"""`lab down` names the deployments that end with the lab, and its records say that they are over."""

from __future__ import annotations

import pytest

from glmspark import lab
from glmspark.config.cluster import parse_cluster
from glmspark.lab.down import Cleared
from glmspark.launch.record import ClusterSite, State, home
from tests.unit.cli.commands import Glmspark
from tests.unit.cli.test_chat_silent import CLUSTER
from tests.unit.launch.starts import make_start


def record(name: str, text: bytes | None, state: State = State.READY) -> None:
    start = make_start(name, "serves")
    if text is not None:
        cluster = parse_cluster(text, "c.yaml")
        start.cluster = ClusterSite(cluster=cluster.model_dump(mode="json"), directories={})
        start.ranks[0].node = cluster.nodes[0].name
    start.turn(state)
    where = home(name)
    where.prepare()
    where.write(start)
    where.write_key("a-key")


def test_what_ran_in_it_is_named_and_closed(glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch) -> None:
    place = lab.lab_home()
    place.path.mkdir(parents=True)
    place.cluster_file.write_bytes(CLUSTER)
    record("inside", CLUSTER)
    record("over", CLUSTER, State.FAILED)
    record("elsewhere", CLUSTER.replace(b"192.0.2.1", b"192.0.2.9"))
    record("here", None)

    seen: list[State] = []

    def end(*_: object) -> Cleared:
        found = home("inside").read()
        assert found is not None
        seen.append(found.state)
        place.cluster_file.unlink(missing_ok=True)
        return Cleared(nodes=["spark1", "spark2"], processes=9)

    monkeypatch.setattr(lab, "down", end)
    done = glmspark("lab", "down", "--json")
    assert done.code == 0
    assert done.json["deployments"] == ["inside"]
    assert "inside runs in it and ends with it" in done.err
    states = {name: home(name).read() for name in ("inside", "over", "elsewhere", "here")}
    assert {name: one.state for name, one in states.items() if one} == {
        "inside": State.STOPPED,
        "over": State.FAILED,
        "elsewhere": State.READY,
        "here": State.READY,
    }
    assert home("inside").read_key() is None
    assert home("elsewhere").read_key() == "a-key"
    assert glmspark("lab", "down", "--json").json["deployments"] == []
    assert seen == [State.READY, State.STOPPED]
