"""`glmspark doctor` and `glmspark tune` on this machine, and on nodes that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glmspark.nodes.checks import Look, State, Verdict
from glmspark.nodes.transport import NodeError
from glmspark.nodes.tuning import TunePlan
from tests.unit.cli.commands import Glmspark
from tests.unit.nodes.sparks import CLUSTER, look

NOWHERE = "127.0.0.1:1"


def test_doctor_on_this_machine(glmspark: Glmspark) -> None:
    done = glmspark("doctor", "--json")
    verdicts = done.json["verdicts"]
    assert done.code == int(any(one["state"] == "blocked" for one in verdicts))
    assert {one["node"] for one in verdicts} == {"this machine"}
    assert {"ssh", "memory", "kernel", "ports"} <= {one["check"] for one in verdicts}
    assert all(one["remedy"] for one in verdicts if one["state"] in ("slow", "blocked"))


def test_a_healthy_cluster_leaves_with_0_and_a_sick_one_with_1(
    glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)

    async def pretend(*_: object, **__: object) -> Look:
        return look()

    monkeypatch.setattr("glmspark.nodes.doctor.look", pretend)
    done = glmspark("doctor", "--cluster", file)
    assert done.code == 0, done.out
    assert "2 nodes" in done.out
    assert "blocked" not in done.out

    def sick(_: Look) -> list[Verdict]:
        return [Verdict("memory", "spark2", State.BLOCKED, "3 GiB free", "end what holds it")]

    monkeypatch.setattr("glmspark.nodes.checks.everything.judge", sick)
    done = glmspark("doctor", "--cluster", file)
    assert done.code == 1
    for text in ("blocked", "spark2", "memory", "3 GiB free", "→ end what holds it", "1 blocked"):
        assert text in done.out


def test_a_node_that_is_not_there_is_blocked(glmspark: Glmspark) -> None:
    done = glmspark("doctor", NOWHERE, "--json")
    assert done.code == 1
    (verdict,) = done.json["verdicts"]
    assert (verdict["check"], verdict["state"]) == ("ssh", "blocked")
    assert "nothing listens" in verdict["evidence"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("doctor", "a b"), "expected [user@]host[:port]"),
        (("doctor", "a", "a"), "named twice"),
        (("tune", "plan", "--only", "swp"), "nothing to tune called swp"),
        (("tune", "apply", "--swap", "much"), "--swap: expected a size"),
        (("tune", "plan", "--cluster", "CLUSTER", "spark9"), "no node spark9"),
    ],
)
def test_usage(glmspark: Glmspark, tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    done = glmspark(*(str(tmp_path / "cluster.yaml") if word == "CLUSTER" else word for word in words))
    assert done.code == 2
    assert text in done.err


def test_tune_plan_changes_nothing_and_says_why(glmspark: Glmspark) -> None:
    done = glmspark("tune", "plan", "--json")
    assert done.code == 0
    (plan,) = done.json["plans"]
    assert plan["node"] == "this machine"
    assert all(item["why"] and item["changes"] for item in plan["items"])
    assert glmspark("tune", "plan").out.startswith("this machine:")


@pytest.mark.parametrize("verb", ["plan", "apply", "restore", "status"])
def test_tune_on_a_node_that_is_not_there(glmspark: Glmspark, verb: str) -> None:
    done = glmspark("tune", verb, NOWHERE)
    assert done.code == 1
    assert "nothing listens for SSH" in done.err
    assert json.loads(glmspark("tune", verb, NOWHERE, "--json").out)["errors"]


def test_fix_tunes_what_the_verdicts_name(glmspark: Glmspark, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    async def plans(where: dict[str, object], **options: object) -> dict[str, TunePlan]:
        asked["plans"] = (set(where), options["only"])
        return {name: TunePlan(name, ()) for name in where}

    async def drop(where: dict[str, object]) -> dict[str, NodeError | None]:
        asked["drop"] = set(where)
        return {"this machine": NodeError("no sudo", host="this machine")}

    def verdicts(_: Look) -> list[Verdict]:
        return [
            Verdict("swap", "this machine", State.SLOW, "none", "make one", "swap"),
            Verdict("page cache", "this machine", State.SLOW, "much", "drop it", "page-cache"),
        ]

    monkeypatch.setattr("glmspark.nodes.checks.everything.judge", verdicts)
    monkeypatch.setattr("glmspark.nodes.tuning.fleet.plans", plans)
    monkeypatch.setattr("glmspark.nodes.tuning.fleet.drop_page_cache", drop)
    done = glmspark("doctor", "--fix")
    assert asked == {"plans": ({"this machine"}, ["swap"]), "drop": {"this machine"}}
    assert done.code == 1
    assert "no sudo" in done.err


@pytest.mark.parametrize("port", ["0", "-1", "65536"])
def test_a_port_that_does_not_exist(glmspark: Glmspark, port: str) -> None:
    done = glmspark("doctor", NOWHERE, "--port", port)
    assert done.code == 2
    assert "Invalid value for '--port'" in done.err
