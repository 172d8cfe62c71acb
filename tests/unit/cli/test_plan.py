"""`glmspark plan` as people and programs call it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmspark.cli import app
from glmspark.errors import GlmsparkError

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    return tmp_path


def run(*words: str, code: int = 0) -> str:
    done = RUNNER.invoke(app, ["plan", *words])
    assert done.exit_code == code, done.output
    return done.output


def data(*words: str, code: int = 0) -> dict:
    found = json.loads(run(*words, "--json", code=code))
    assert isinstance(found, dict)
    return found


def refused(*words: str) -> GlmsparkError:
    done = RUNNER.invoke(app, ["plan", *words])
    assert isinstance(done.exception, GlmsparkError), done.output
    return done.exception


def test_a_recipe_whose_model_is_not_here():
    found = data("glm-5.2-4x-mtp")
    assert found["fits"]
    assert not found["exact"]
    assert len(found["ranks"]) == 4
    assert found["ranks"][0]["by_class"]["routed_experts"] > 80 * 2**30
    assert found["kv"]["indexer_bytes_per_token"] == 21 * 132
    assert found["capture_sizes"] == [3, 6, 9, 12]
    assert found["speed"]["prose"]["decode"]["low"] < found["speed"]["prose"]["decode"]["value"]
    assert "--kv-cache-memory-bytes" in found["flags"]
    assert found["changes"]
    assert found["refusal"] is None


def test_for_people():
    said = run("glm-5.2-4x-mtp", "--concurrency", "4", "--text", "prose")
    for words in (
        "routed experts",
        "largest context that fits",
        "all 4",
        "goes into",
        "158 x all-reduce of 144 KiB",
        "what to change",
        "flags",
    ):
        assert words in said


def test_glm_tiny_is_planned_for_this_machine_by_its_headers():
    found = data()
    assert found["exact"]
    assert found["platform"] == "cpu"
    assert found["measured_nodes"]
    assert found["speed"] == {}
    again = data()  # from what was kept of the headers
    assert again["kv"] == found["kv"]
    assert again["ranks"][0]["by_class"] == found["ranks"][0]["by_class"]


def test_what_was_kept_of_headers_is_not_believed_when_it_is_broken(state: Path):
    first = data()
    kept = list((state / "state" / "outlines").iterdir())
    assert len(kept) == 1
    kept[0].write_text('{"version": 1, "stamp": 3}')
    assert data()["ranks"][0]["by_class"] == first["ranks"][0]["by_class"]


def test_options_change_the_recipe():
    found = data("glm-5.2-4x-mtp", "--spec", "none", "--dcp", "2", "--context", "200000", "--link", "tcp:1")
    assert found["layout"]["dcp"] == 2
    assert list(found["speed"]) == ["any"]
    assert found["link"] == {"kind": "tcp", "gbit": 1}
    assert found["kv"]["tokens"] >= 200_000
    longer = data("glm-5.2-4x-mtp", "--spec", "mtp:3", "--concurrency", "2")
    assert longer["capture_sizes"] == [4, 8]


def test_what_does_not_fit_ends_with_status_one_and_numbers():
    found = data("glm-5.2-4x-mtp", "--context", "500000", code=1)
    assert not found["fits"]
    assert "short on rank 0" in found["refusal"]["error"]
    error = refused("glm-5.2-4x-mtp", "--context", "500000")
    assert error.exit_code == 1
    assert "max_model_len <= " in error.message


def test_search():
    found = json.loads(run("glm-5.2-4x-mtp", "--search", "--nodes", "8", "--json"))
    assert found[0]["stream"] >= found[-1]["stream"]
    assert {"tp", "pp", "dcp", "largest_context"} <= set(found[0])
    assert {one["streams"] for one in found} == {8}
    assert any(one["refused"] for one in found if one["dcp"] > 1)
    assert not any(one["refused"] for one in found if one["dcp"] == 1)
    said = run("glm-5.2-4x-mtp", "--search", "--aim", "context")
    assert "best for context first" in said
    assert "TP8 DCP8 *" in said
    assert "* `up` refuses it: DCP" in said


def test_a_search_is_narrowed_by_what_is_given():
    words = ("glm-5.2-4x-mtp", "--search", "--tp", "4", "--dcp", "1", "--spec", "mtp:3", "--concurrency", "2")
    found = json.loads(run(*words, "--json"))
    assert [(one["tp"], one["dcp"], one["draft"]["tokens"], one["streams"]) for one in found] == [
        (4, 1, 3, 2)
    ]
    assert "1 layout fits" in run(*words)
    for useless in (("--png", "a.png"), ("--learned",), ("--kv-cache", "8GiB"), ("--prompt", "9")):
        error = refused("glm-5.2-4x-mtp", "--search", *useless)
        assert useless[0] in error.message
        assert error.exit_code == 2


def test_a_search_on_this_machines_cpu_knows_no_speed():
    found = json.loads(run("--search", "--json"))
    assert {one["tp"] for one in found} >= {1, 2}
    assert {one["stream"] for one in found} == {0}
    assert "glm-tiny on up to 8 nodes, CPU: " in run("--search")


def test_a_search_tries_what_the_recipes_own_layout_does_not_allow():
    (found, *more) = json.loads(run("glm-5.2-4x-mtp", "--search", "--dcp", "8", "--spec", "none", "--json"))
    assert (found["tp"], found["dcp"], more) == (8, 8, [])
    assert "no layout as asked for" in refused("glm-5.2-4x-mtp", "--search", "--dcp", "3").message


def test_a_search_that_finds_nothing_says_how_short_it_is_and_how_many_nodes_would_do():
    error = refused("glm-5.2-4x-mtp", "--search", "--nodes", "2")
    assert error.exit_code == 1
    assert "does not fit on up to 2 nodes: TP2, which comes nearest, is " in error.message
    assert "GiB short on rank 0" in error.message
    assert "--search --nodes 4" in str(error.next)
    wide = refused("glm-5.2-4x-mtp", "--search", "--tp", "16")
    assert "no layout as asked for is possible on up to 8 nodes" in wide.message
    assert "--nodes 16" in str(wide.next)
    assert run("glm-5.3-flash-nvfp4-3x-dflash2", "--search", "--json")  # TP3 itself does not divide
    assert "TP 3 does not divide" in refused("glm-5.2-4x-mtp", "--search", "--tp", "3").message


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nonsense",), "nonsense"),
        (("glm-5.2-4x-mtp", "--tp", "3"), "TP 3 does not divide"),
        (("glm-5.2-4x-mtp", "--spec", "magic"), "no drafter"),
        (("glm-5.2-4x-mtp", "--text", "poems"), "--text poems"),
        (("glm-5.2-4x-mtp", "--aim", "high"), "--aim high"),
        (("glm-5.2-4x-mtp", "--kv-cache", "lots"), "--kv-cache"),
        (("glm-5.2-4x-mtp", "--link", "pigeon"), "no link"),
        (("glm-5.2-4x-mtp", "--nodes", "2"), "takes 4 nodes"),
        (("glm-5.2-4x-mtp", "--tp", "1000"), "TP 1000 does not divide"),
        (("glm-5.2-4x-mtp", "--context", "1048577"), "exceeds the 1048576 positions"),
        (("glm-5.2-4x-mtp", "--depth", "131073"), "--depth 131,073 is beyond the longest request"),
        (("glm-5.2-4x-mtp", "--prompt", "131073"), "--prompt 131,073 is beyond the longest request"),
        (("glm-5.2-4x-mtp", "--model", "/nowhere"), "/nowhere"),
    ],
)
def test_wrong_words_are_named(words, says):
    assert says in str(refused(*words))


@pytest.mark.parametrize("option", ["--tp", "--pp", "--dcp"])
def test_huge_layouts_are_no_layouts(option):
    run("glm-5.2-4x-mtp", option, str(10**12), code=2)


def test_what_up_would_refuse_is_said():
    found = data("glm-5.2-4x-mtp", "--dcp", "2")
    assert any(note.startswith("`up` refuses this: DCP 2 merges") for note in found["notes"])
    assert not any("`up` refuses" in note for note in data("glm-5.2-4x-mtp")["notes"])
    error = refused("glm-5.2-4x-mtp", "--context", "400000")
    assert "DCP2, which `up` refuses yet" in error.message


def test_stages_that_hold_alike_share_a_column(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = run("glm-5.2-reap-469b-3x-pp", "--pp", "8", "--tp", "1")
    heads = said.splitlines()[1:3]
    assert heads[0].split() == ["rank", "0", "ranks", "1-6", "rank", "7"]
    assert "layers 9-68" in heads[1]
    rows = said[: said.index("on disk")].splitlines()[1:]
    assert max(len(row.rstrip()) for row in rows) <= 80
    assert any(row.startswith("kept free of it") for row in rows)


def test_a_bar_is_read_without_colours():
    said = run("glm-5.2-4x-mtp")
    (bar,) = [line for line in said.splitlines() if line.startswith("ranks 0-3   ")]
    assert len(bar) == 12 + 60
    assert {"█", "▓", "#", "+", "=", "-", "░"} == set(bar[12:])
    assert "▓ KV cache" in said


def test_a_picture(tmp_path: Path):
    file = tmp_path / "plan.png"
    assert "drawn: " in run("glm-5.2-4x-mtp", "--png", str(file))
    assert file.read_bytes().startswith(b"\x89PNG")
    assert file.stat().st_size > 10_000


def test_a_picture_without_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    error = refused("glm-5.2-4x-mtp", "--png", str(tmp_path / "plan.png"))
    assert "glmspark[report]" in str(error.next)
    assert not list(tmp_path.glob("*.png"))
