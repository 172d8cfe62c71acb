"""The guard as tune sets it up: what is planned, applied and taken back; and what doctor says of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.guard.config import parse_config
from glmspark.nodes.checks import State
from glmspark.nodes.checks.guard import runs
from glmspark.nodes.guards import DIRECTORY, GUARD, SEEN, UNIT, Seen, addresses, config, parse_seen
from glmspark.nodes.survey import Facts, Reading
from glmspark.nodes.tuning import JOURNAL, RunService, SetPath, TunePlan
from glmspark.nodes.tuning.guard import UNIT_FILE, UNIT_TEXT, UNIT_WANTED, Wish, wishes
from glmspark.nodes.tuning.plan import plan
from glmspark.nodes.tuning.tuner import Tuner
from tests.unit.nodes.sparks import cluster, guard_seen, readings
from tests.unit.nodes.tuning.pretend import PretendNode, tree

BARE = {"home": None, "state": None, "age": None, "program": None, "config": None, "secret": None}
NEW = guard_seen(**BARE, unit="inactive")


def facts(node: str, seen: Seen | str) -> Facts:
    known = readings(1)
    known[SEEN.name] = Reading(None, seen) if isinstance(seen, str) else Reading(seen)
    return Facts(node, known)


def both(one: Seen, two: Seen) -> dict[str, Facts]:
    return {"spark1": facts("spark1", one), "spark2": facts("spark2", two)}


def planned(seen: Seen | str, wish: Wish) -> TunePlan:
    return plan(facts("spark1", seen), only=("guard",), guard=wish)


def paths(found: TunePlan) -> list[str]:
    return [one.path for one in found.items[0].changes if isinstance(one, SetPath)]


def test_new_nodes_share_a_new_secret_and_know_one_another() -> None:
    found = wishes(both(NEW, NEW), cluster())
    assert found["spark1"].secret == found["spark2"].secret
    assert len(found["spark1"].secret or b"") > 64
    first = parse_config(json.loads(found["spark1"].config))
    assert (first.node, first.listen, first.group) == ("spark1", "10.10.1.1", 1000)
    assert [(peer.node, peer.address) for peer in first.peers] == [("spark2", "10.10.1.2")]
    assert first.fabric == ("enp1s0f0np0", "enP2p1s0f0np0")
    assert first.states == ("/home/me/.local/state/glmspark",)
    assert first.owner is None  # nobody has said
    told = wishes(both(replace(NEW, owner=1000), NEW), cluster())["spark1"]
    assert parse_config(json.loads(told.config)).owner == 1000
    looked = parse_seen("base /b\ngroup 7\nowner 1001\nnow 5\n")
    assert (looked.group, looked.owner) == (7, 1001)


def test_the_end_of_the_guard_is_not_that_of_what_it_brought_back() -> None:
    assert {"KillMode=process", "OOMPolicy=continue"} <= set(UNIT_TEXT.splitlines())


def test_a_secret_that_all_share_stays() -> None:
    assert wishes(both(guard_seen(), guard_seen()), cluster())["spark1"].secret is None
    other = wishes(both(guard_seen(), guard_seen(secret="e" * 64)), cluster())
    assert other["spark1"].secret == other["spark2"].secret is not None


def test_a_node_alone_gets_no_secret_that_the_others_lack() -> None:
    (wish,) = wishes({"spark1": facts("spark1", NEW)}, cluster()).values()
    assert wish.secret is None
    assert parse_config(json.loads(wish.config)).peers == ()
    assert "together" in str(wish.note)
    (kept,) = wishes({"spark1": facts("spark1", guard_seen())}, cluster()).values()
    assert (kept.secret, kept.note) == (None, None)
    assert parse_config(json.loads(kept.config)).peers != ()
    (single,) = wishes({"me@10.0.0.5:22": facts("x", NEW)}, None).values()
    assert parse_config(json.loads(single.config)).node == "10.0.0.5"
    assert single.note is None


def test_the_next_node_gets_the_copies_first() -> None:
    where = {name: f"10.0.0.{number}" for number, name in enumerate("abcd")}
    order = parse_config(json.loads(config("c", base="/b", group=1, addresses=where))).peers
    assert [peer.node for peer in order] == ["d", "a", "b"]
    assert addresses(cluster()) == {"spark1": "10.10.1.1", "spark2": "10.10.1.2"}


def test_what_is_planned() -> None:
    wish = wishes(both(NEW, NEW), cluster())["spark1"]
    found = planned(NEW, wish)
    assert paths(found) == [
        *(f"{DIRECTORY}/{name}" for name in ("guard.pyz", "config.json", "secret")),
        UNIT_FILE,
        UNIT_WANTED,
    ]
    assert isinstance(found.items[0].changes[-1], RunService)
    secret = next(
        one for one in found.items[0].changes if isinstance(one, SetPath) and one.path.endswith("secret")
    )
    assert secret.after.mode == 0o600
    # What is shown of a plan holds no secret.
    assert wish.secret is not None
    assert wish.secret.decode().strip() not in json.dumps(found.to_json())


def test_what_is_there_stays() -> None:
    wish = wishes(both(guard_seen(), guard_seen()), cluster())["spark1"]
    there = guard_seen(config=hashlib.sha256(wish.config).hexdigest())
    assert planned(there, wish).items == ()
    assert paths(planned(replace(there, unit="failed"), wish)) == [UNIT_FILE, UNIT_WANTED]
    assert paths(planned(replace(there, program="0" * 64), wish))[0] == f"{DIRECTORY}/guard.pyz"
    assert paths(planned(replace(there, config="0" * 64), wish))[0] == f"{DIRECTORY}/config.json"


def test_without_systemd_it_is_said() -> None:
    wish = Wish(b"{}")
    assert "systemd does not run" in planned(guard_seen(**BARE, systemd=False), wish).left[0]
    assert planned(guard_seen(systemd=False), wish) == TunePlan("spark1", ())
    assert "sh left with 1" in planned("sh left with 1", wish).left[0]


def test_the_unit_starts_the_guard_again_and_protects_it() -> None:
    for line in ("Restart=always", "OOMScoreAdjust=-1000", "StartLimitIntervalSec=0", "WatchdogSec=30"):
        assert line in UNIT_TEXT.splitlines()
    assert f"{DIRECTORY}/guard.pyz run --home {DIRECTORY}" in UNIT_TEXT


def test_applied_and_taken_back_with_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "etc/systemd/system/multi-user.target.wants").mkdir(parents=True)
    (tmp_path / "var/lib").mkdir(parents=True)
    before = tree(tmp_path)
    node = PretendNode()
    tuner = Tuner(node, root=str(tmp_path), sudo=False)
    state = node.state()
    asyncio.run(tuner.apply(planned(NEW, wishes(both(NEW, NEW), cluster())["spark1"])))
    home = tmp_path / DIRECTORY.lstrip("/")
    assert UNIT in node.running
    assert (home / "guard.pyz").read_bytes() == GUARD.data
    assert (home / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / JOURNAL.lstrip("/")).stat().st_mode & 0o777 == 0o600
    (home / "ring").mkdir()  # it has run
    (home / "ring/20261130T1200.jsonl").write_text("{}\n")
    (home / "state.json").write_text("{}\n")
    # Tuned again, with another program: what was there at first still comes back.
    asyncio.run(
        tuner.apply(planned(guard_seen(program="0" * 64), wishes(both(NEW, NEW), cluster())["spark1"]))
    )
    assert asyncio.run(tuner.restore()) == []
    assert tree(tmp_path) == before
    assert node.state() == state


@pytest.mark.parametrize(
    ("seen", "state", "said"),
    [
        (guard_seen(), State.OK, "version 0.1.0 runs"),
        (guard_seen(age=60.0), State.SLOW, "60 s ago"),
        (NEW, State.SLOW, "does not run (inactive)"),
        (guard_seen(**BARE, systemd=False), State.SLOW, "no systemd"),
        (guard_seen(program="0" * 64), State.SLOW, "not this glmspark's"),
        (guard_seen(home="/home/me/guard", program=None, systemd=False), State.OK, "runs"),
        (
            guard_seen(
                state={"time": 1.0, "guard": "0.1.0", "alerts": [{"what": "2 GiB free"}, {"what": "x"}]}
            ),
            State.SLOW,
            "alarmed: 2 GiB free (and 1 more)",
        ),
    ],
)
def test_what_doctor_says(seen: Seen, state: State, said: str) -> None:
    verdict = runs(facts("spark1", seen))
    assert verdict.state is state
    assert said in verdict.evidence
    assert runs(facts("spark1", "sh left with 1")).state is State.UNKNOWN


def test_a_look_at_this_machine(tmp_path: Path) -> None:
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard/state.json").write_text('{"time": 1.0, "node": "x"}\n')
    environment = {"GLMSPARK_STATE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(SEEN.command, capture_output=True, text=True, env=environment, check=True)
    found = parse_seen(done.stdout)
    assert (found.base, found.home) == (str(tmp_path), f"{tmp_path}/guard")
    assert found.state == {"time": 1.0, "node": "x"}
    assert not found.runs


LOOKED = "base /b\ngroup 0\nnow 5\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "base /b\n",
        "base /b\ngroup x\nnow 5\n",
        LOOKED + "state {",
        LOOKED + "state 5",
        LOOKED + "state {}",
    ],
)
def test_what_is_no_look_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="guard"):
        parse_seen(text)


@given(st.text(max_size=100).map(lambda text: LOOKED + text))
def test_any_look_is_read_or_refused(text: str) -> None:
    try:
        found: Any = parse_seen(text)
    except ValueError:
        return
    assert found.base == "/b"
