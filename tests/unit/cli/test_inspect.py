"""`glmspark inspect` as people call it."""

from __future__ import annotations

from pathlib import Path

import glmspark as package
from tests.unit.cli.commands import Glmspark
from tests.unit.models.test_inspection import SEEDS, seed

TINY = Path(package.__file__).parent / "recipes" / "checkpoints" / "glm-tiny"


def test_glm_tiny_has_no_problems(glmspark: Glmspark) -> None:
    done = glmspark("inspect", TINY, "--pp", "2", "--tp", "2")
    assert done.code == 0, done.err
    assert "no problems found" in done.out
    assert "5.94 M parameters stored" in done.out
    seen = glmspark("inspect", TINY, "--pp", "2", "--json").json
    assert (seen["parameters"], seen["bytes"], seen["problems"]) == (5938272, 11892992, [])
    assert seen["mtp"] == {"declared": 1, "stored": True}
    assert [one["layers"] for one in seen["ranks"]] == [[0, 2], [2, 4]]
    # The embedding is on both stages: MTP drafts with it.
    assert sum(one["nbytes"] for one in seen["ranks"]) - seen["bytes"] == 576 * 256 * 2


def test_a_problem_says_what_will_happen_and_the_way_out(glmspark: Glmspark, tmp_path: Path) -> None:
    made = seed()
    SEEDS["missing-tensors"](made)
    path = made.write(tmp_path / "m")
    done = glmspark("inspect", path)
    assert done.code == 1
    assert "error missing-tensors:" in done.out
    assert "o_proj" in done.out
    assert "→" in done.out
    (problem,) = glmspark("inspect", path, "--json").json["problems"]
    assert problem["rule"] == "missing-tensors"


def test_a_layout_that_does_not_divide_is_refused(glmspark: Glmspark) -> None:
    done = glmspark("inspect", TINY, "--tp", "3")
    assert done.code == 1
    assert "TP 3" in done.err


def test_what_is_no_checkpoint(glmspark: Glmspark, tmp_path: Path) -> None:
    assert "config.json does not exist" in glmspark("inspect", tmp_path).err
    assert "names no repository" in glmspark("inspect", "hf:nothing").err


def test_a_model_that_comes_with_glmspark(glmspark: Glmspark) -> None:
    assert glmspark("inspect", "package:glm-tiny").code == 0
    assert "no checkpoint nothing comes with glmspark" in glmspark("inspect", "package:nothing").err
