"""Wrong use of `glmspark speculator`: one error each, and nothing is changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmspark.cli import app
from glmspark.errors import GlmsparkError
from glmspark.speculator import training
from glmspark.speculator.dataset import Dataset
from tests.engine.made_up_target import SETTINGS, SHAPE, write_data, write_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_data(tmp_path_factory.mktemp("data") / "states", target)


@pytest.fixture(scope="module")
def trained(data: Dataset, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "training"
    training.train(data, target, out, SHAPE, SETTINGS, device="cpu")
    return out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("eval none {data} --target {target}", "no drafter can be read"),
        ("eval {trained} none --target {target}", "holds no data set"),
        ("train {data} --out new --target {target}", "cannot read"),  # no tokenizer to take [MASK] from
        ("train {data} --out new --target {target} --mask-token 47 --window 4", "not more than a block"),
        ("train {data} --out new --target {target} --mask-token 47 --heads 3", "cannot share"),
        ("train {data} --out new --target {target} --start none", "no drafter can be read"),
        ("export {data} new", "holds no training"),
        ("export {trained} {exported}", "holds a model already"),
        ("capture {target} none.jsonl --out new", "cannot read the prompts"),
        ("capture {target} {prompts} --out new --aux-layers 1,9", "numbered 1 to 2"),
        ("capture {target} {prompts} --out new --aux-layers 2,1", "rising|rise|numbered"),
        ("capture {target} {prompts} --out {data}", "holds a data set already"),
        ("capture {target} {prompts} --out new --max-size much", "much"),
    ],
)
def test_bad_input_is_one_error_and_changes_nothing(
    words: str,
    said: str,
    trained: Path,
    data: Dataset,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exported, prompts = tmp_path / "exported", tmp_path / "prompts.jsonl"
    exported.mkdir()
    (exported / "config.json").write_text("{}")
    prompts.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    monkeypatch.chdir(tmp_path)
    places = {
        "trained": trained,
        "data": data.directory,
        "target": target,
        "exported": exported,
        "prompts": prompts,
    }
    call = ["speculator", *(word.format(**places) for word in words.split(" "))]
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(app, call)
    assert isinstance(result.exception, GlmsparkError), result.output
    text = f"{result.exception.message} {result.exception.next}"
    assert re.search(said, text), text
    assert sorted(tmp_path.rglob("*")) == before
