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
    assert "best for context first" in run("glm-5.2-4x-mtp", "--search", "--aim", "context")


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
        (("glm-5.2-4x-mtp", "--model", "/nowhere"), "/nowhere"),
    ],
)
def test_wrong_words_are_named(words, says):
    assert says in str(refused(*words))


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
