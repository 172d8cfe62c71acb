"""Every symptom has a recording that shows it, and one that comes near it and must not."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from glmspark.config.yamltree import read_yaml
from glmspark.symptoms.catalogue import Severity, catalogue
from glmspark.symptoms.facts import Facts
from glmspark.symptoms.logfacts import LogFacts
from glmspark.symptoms.match import Finding, match
from glmspark.symptoms.scan import Scanner

HERE = Path(__file__).parent / "recordings"
LOGS = Path(__file__).parents[1] / "launch" / "recorded"


@functools.cache
def recordings() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted(HERE.glob("*.yaml")):
        tree = read_yaml(path.read_bytes())
        assert not tree.problems, (path.name, tree.problems)
        found += tree.data
    return found


def findings(recording: dict[str, Any]) -> list[Finding]:
    known = LogFacts()
    scanner = Scanner(catalogue(), observers=[known])
    log = recording.get("log", "").encode()
    if "file" in recording:
        log = (LOGS / recording["file"]).read_bytes()
    scanner.read([log], "log")
    facts = Facts.of(recording.get("facts", {}))
    facts.update(known.facts)
    return match(scanner.hits, facts)


def test_every_symptom_is_recorded() -> None:
    assert {one["symptom"] for one in recordings()} == {one.name for one in catalogue()}


@pytest.mark.parametrize("number", range(len(recordings())), ids=lambda n: recordings()[n]["symptom"])
def test_a_recording_shows_its_symptom_and_the_near_miss_does_not(number: int) -> None:
    recording = recordings()[number]
    name, near = recording["symptom"], recording["near"]
    assert recording["source"]
    assert near["source"]
    assert {"log", "file", "facts"} & set(recording)
    assert {"log", "file", "facts"} & set(near)
    found = findings(recording)
    mine = next((one for one in found if one.symptom.name == name), None)
    assert mine is not None, [one.symptom.name for one in found]
    assert mine.evidence
    if mine.symptom.severity is not Severity.FOLLOWS:
        assert mine.follows is None
    assert name not in [one.symptom.name for one in findings(near)]


@pytest.mark.parametrize("log", ["tp2-served-rank-0.log", "tp2-served-rank-1.log"])
def test_a_start_that_went_well_shows_nothing(log: str) -> None:
    assert findings({"file": log}) == []


def test_lines_of_every_kind_are_recorded() -> None:
    """A symptom that lines show is recorded with a line, not with facts alone."""
    with_lines = {one["symptom"] for one in recordings() if {"log", "file"} & set(one)}
    missing = [one.name for one in catalogue() if one.lines and one.name not in with_lines]
    assert missing == []
