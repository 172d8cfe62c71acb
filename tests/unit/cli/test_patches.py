"""`glmspark patches`, with the survey of vLLM stood in for."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from glmspark.cli.patches import patches
from glmspark.engine import survey as survey_module
from glmspark.engine.patch import Outcome, PatchRefusedError, State, Target
from glmspark.engine.registry import PATCHES
from glmspark.engine.survey import Survey
from glmspark.errors import UsageError

app = typer.Typer()
app.command()(patches)


def run(monkeypatch: pytest.MonkeyPatch, found: Survey, *words: str):
    monkeypatch.setattr(survey_module, "survey", lambda: found)
    return CliRunner().invoke(app, words)


def with_states(*states: State) -> Survey:
    """The first patches with these states, the others applied."""
    all_states = (*states, *[State.APPLIED] * (len(PATCHES) - len(states)))
    outcomes = tuple(
        Outcome(patch, state, f"seen {state}") for patch, state in zip(PATCHES, all_states, strict=True)
    )
    return Survey(Target("0.33.0", "cuda", (12, 1)), outcomes)


def test_states_and_reasons_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_states(State.NOT_NEEDED, State.APPLIED, State.SUPERSEDED, State.SKIPPED)
    result = run(monkeypatch, found)
    assert result.exit_code == 0
    assert "vLLM 0.33.0 on cuda 12.1" in result.output
    for patch, outcome in zip(PATCHES, found.outcomes, strict=True):
        assert f"{patch.name} {outcome.state}" in result.output
        assert outcome.why in result.output


def test_a_refused_patch_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_states(State.APPLIED, State.REFUSED)
    result = run(monkeypatch, found, "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["vllm"]["capability"] == [12, 1]
    assert [row["state"] for row in data["patches"]][:3] == ["applied", "refused", "applied"]
    assert {row["link"] for row in data["patches"]} == {patch.link for patch in PATCHES}


def test_without_vllm_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Survey(None, ()))
    assert result.exit_code == 0
    assert "vLLM is not installed" in result.output
    assert f"{PATCHES[0].name} unknown" in result.output
    data = json.loads(run(monkeypatch, Survey(None, ()), "--json").stdout)
    assert data["vllm"] is None
    assert {row["state"] for row in data["patches"]} == {None}


def test_a_bad_variable_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Survey:
        raise PatchRefusedError("GLMSPARK_OPTIONAL_PATCHES names nothing we know")

    monkeypatch.setattr(survey_module, "survey", refuse)
    result = CliRunner().invoke(app, [])
    assert isinstance(result.exception, UsageError)
    assert "GLMSPARK_OPTIONAL_PATCHES" in str(result.exception)
