"""config.json, guard.json and the agents' state files: what is wrong in them is said, and harms nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.guard.config import default_thresholds, load_floor, parse_config, parse_thresholds
from glmspark.guard.deployments import DeploymentReader, identities, node_phase, phase_of
from glmspark.guard.files import Roots, Trouble
from tests.unit.guard.spark import GIB, TOTAL, deployed, put, stat_line

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
CONFIG = {
    "version": 1,
    "node": "spark1",
    "states": ["/home/me/.local/state/glmspark"],
    "group": 1000,
    "listen": "10.10.1.1",
    "peers": [{"node": "spark1", "address": "10.10.1.1"}, {"node": "spark2", "address": "10.10.1.2"}],
    "fabric": ["enp1s0f0np0"],
}


def test_a_config() -> None:
    config = parse_config(CONFIG)
    assert [peer.node for peer in config.peers] == ["spark2"]  # a node is no peer of its own
    assert config.metrics == ("127.0.0.1", 9109)
    assert parse_config({**CONFIG, "metrics": "[::1]:9"}).metrics == ("::1", 9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("node", "../x"),
        ("node", None),
        ("version", 2),
        ("peers", [{"node": "a/b", "address": "x"}]),
        ("states", "x"),
        ("metrics", "9109"),
        ("group", -1),
        ("group", True),
        ("listen", 5),
    ],
)
def test_what_is_wrong_in_a_config_is_named(name: str, value: Any) -> None:
    with pytest.raises(Trouble, match=name):
        parse_config({**CONFIG, name: value})


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from([*CONFIG, "metrics", "peer_port", "overlay", "kmsg"]), JSON) | JSON)
def test_any_config_is_read_or_refused(value: Any) -> None:
    try:
        parse_config(value)
    except Trouble:
        return


def test_thresholds_of_a_plan_and_without_one() -> None:
    usual = default_thresholds(TOTAL)
    assert 2 * GIB > usual.critical > 1.5 * GIB
    assert usual.low == TOTAL // 32
    assert load_floor(TOTAL) == 8 * GIB
    found = parse_thresholds(
        {"version": 1, "free_low_bytes": 5 * GIB, "load_need_bytes": 90 * GIB, "unified": True, "rank": 2},
        TOTAL,
    )
    assert (found.low, found.load_need, found.unified, found.rank) == (5 * GIB, 90 * GIB, True, 2)
    assert found.critical <= found.low // 2
    assert found.problem is None


@pytest.mark.parametrize(
    "more",
    [
        {"version": 9},
        {"free_low_bytes": -1},
        {"free_low_bytes": "much"},
        {"free_low_bytes": GIB, "free_critical_bytes": 2 * GIB},
        {"free_low_bytes": TOTAL},
        {"unified": 1},
        {"stall_s": 0},
        {"metrics_url": 8},
        {"fabric": [1]},
    ],
)
def test_a_plan_that_makes_no_sense_counts_for_nothing_and_is_told(more: dict[str, Any]) -> None:
    found = parse_thresholds({"version": 1, **more}, TOTAL)
    assert found == default_thresholds(TOTAL)
    assert found.problem


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(["version", "free_low_bytes", "stall_s", "unified", "rank"]), JSON) | JSON
)
def test_any_plan_gives_thresholds(value: Any) -> None:
    found = parse_thresholds(value, TOTAL)
    assert 0 <= found.critical <= found.low < TOTAL


@given(JSON)
def test_identities_of_any_value(value: Any) -> None:
    assert all(isinstance(part, int) for pair in identities(value) for part in pair)


def test_phases() -> None:
    said = ("starting", "running", "restarting", "ready", "stopping", "stopped", "waiting", None)
    expected = ["loading"] * 3 + ["serving", "stopping"] + ["idle"] * 3
    assert [phase_of(one) for one in said] == expected
    assert node_phase([]) == "idle"
    assert node_phase([deployed("serving"), deployed("loading"), deployed("idle")]) == "loading"


def test_deployments_are_read_from_their_agents(tmp_path: Path) -> None:
    put(tmp_path, "/proc/10/stat", stat_line(10, state="T"))
    put(tmp_path, "/proc/11/stat", stat_line(11, started=99))
    put(tmp_path, "/proc/9/stat", stat_line(9, "python3"))
    state = tmp_path / "state"
    home = state / "ranks/glm"
    home.mkdir(parents=True)
    said = {"state": "ready", "rank": 1, "family": [[10, 77], [11, 77]], "agent": [9, 77]}
    (home / "state.json").write_text(json.dumps(said))
    (home / "guard.json").write_text(json.dumps({"version": 1, "free_low_bytes": GIB}))
    (state / "ranks/agent-1.pyz").write_text("")
    (state / "ranks/broken").mkdir()
    (state / "ranks/broken/state.json").write_text("[1, ")
    reader = DeploymentReader(Roots(str(tmp_path)), (str(state), str(tmp_path / "nobody")))
    (found,) = reader.read(TOTAL)
    assert (found.name, found.phase, found.rank, found.agent) == ("glm", "serving", 1, 9)
    assert [one.pid for one in found.family] == [10]  # 11 is another process by now
    assert found.halted == [10]
    assert found.thresholds.low == GIB
    # A node that was restarted: the file still says ready, and nobody is there.
    for pid in (9, 10):
        (tmp_path / f"proc/{pid}/stat").write_text(stat_line(pid, started=1))
    assert reader.read(TOTAL)[0].phase == "idle"


def test_a_state_file_is_read_again_when_it_was_replaced(tmp_path: Path) -> None:
    home = tmp_path / "ranks/glm"
    home.mkdir(parents=True)
    reader = DeploymentReader(Roots(), (str(tmp_path),))
    for state in ("stopped", "failed"):
        (home / "aside").write_text(json.dumps({"state": state}))
        (home / "aside").replace(home / "state.json")
        assert reader.read(TOTAL)[0].state == state


@settings(max_examples=40)
@given(said=JSON, plan=JSON)
def test_whatever_an_agent_says_is_read(
    tmp_path_factory: pytest.TempPathFactory, said: Any, plan: Any
) -> None:
    base = tmp_path_factory.mktemp("state")
    home = base / "ranks/glm"
    home.mkdir(parents=True)
    value = {"state": "ready", "family": said, "agent": said, "rank": said} if said else said
    (home / "state.json").write_text(json.dumps(value))
    (home / "guard.json").write_text(json.dumps(plan))
    for one in DeploymentReader(Roots(), (str(base),)).read(TOTAL):
        json.dumps(one.to_json())
