"""The catalogue's files, the conditions on facts, the ranking, and the page made from it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from glmspark.plan.known_bad import RULES
from glmspark.symptoms.catalogue import CatalogueError, Severity, catalogue, named, parse_catalogue
from glmspark.symptoms.facts import Condition, Facts
from glmspark.symptoms.logfacts import LogFacts
from glmspark.symptoms.match import causes_of, first_in, match, ruled_out
from glmspark.symptoms.scan import Hit
from tools.troubleshooting import PAGE, page

ONE = """\
- name: broken
  title: It is broken
  severity: fatal
  lines: [it is broken]
  cause: It broke.
  remedy: Mend it.
  sources: [here]
"""


def condition(**test: Any) -> Condition:
    return Condition.model_validate({"fact": "a", **test})


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tools.troubleshooting"


def test_every_rule_of_the_plan_is_a_symptom() -> None:
    assert {rule.name for rule in RULES} == {one.rule for one in catalogue() if one.rule}
    for rule in RULES:
        assert rule.source in named(rule.name).sources
        assert named(rule.name).remedy.casefold().startswith(rule.next.casefold())


def test_sentences_end_and_names_are_found() -> None:
    for one in catalogue():
        assert one.cause.endswith("."), one.name
        assert not one.title.endswith("."), one.name
        assert named(one.name) is one
    with pytest.raises(KeyError):
        named("nothing")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("lines: [it is broken]", "lines: ['(a+)+broken']"), "a repeat has no end"),
        (("severity: fatal", "severity: bad"), "severity"),
        (("sources: [here]", "sources: []"), "sources"),
        (("  lines: [it is broken]\n", ""), "nothing would show it"),
        (("cause: It broke.", "because: It broke."), "cause"),
        (("name: broken", "name: Broken Thing"), "name"),
        (("name: broken", "rule: none-such"), "no rule 'none-such'"),
        (("cause: It broke.", "cause: It broke.\n  canaries: [answer]"), "give both"),
        (("- name", "name"), "broken.yaml"),
    ],
)
def test_a_wrong_file_is_refused_with_place_and_reason(change: tuple[str, str], said: str) -> None:
    assert len(parse_catalogue(ONE.encode(), "broken.yaml")) == 1
    with pytest.raises(CatalogueError, match=r"broken\.yaml") as caught:
        parse_catalogue(ONE.replace(*change).encode(), "broken.yaml")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("test", "value", "holds"),
    [
        ({"is": "blocked"}, "blocked", True),
        ({"is": ("slow", "blocked")}, "slow", True),
        ({"is": 1}, True, False),
        ({"is": True}, True, True),
        ({"matches": "fp8"}, "fp8_ds_mla", True),
        ({"at_least": 3}, 3, True),
        ({"at_least": 3}, "3", False),
        ({"at_least": 1}, True, False),
        ({"at_most": 1.15}, 1.05, True),
        ({"older": "2.30.4"}, "2.28.9", True),
        ({"older": "2.30.4"}, "2.30.4", False),
        ({"older": "2.30.4"}, "2.4", True),
        ({"older": "2.30.4"}, "unknown", False),
    ],
)
def test_conditions(test: dict[str, Any], value: Any, holds: bool) -> None:
    assert (condition(**test).found(Facts.of({"a": value})) is not None) is holds
    assert condition(**test).found(Facts()) is None


@pytest.mark.parametrize("test", [{}, {"is": 1, "at_least": 2}, {"older": "two"}, {"matches": "("}])
def test_a_condition_has_one_test_that_can_be_made(test: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        condition(**test)


@given(
    st.dictionaries(
        st.text(max_size=5), st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.lists(st.text()))
    )
)
def test_facts_of_anything(values: dict[str, Any]) -> None:
    for fact in Facts.of(values):
        assert fact.name in values
        assert isinstance(fact.value, str | int | float | bool)
        if isinstance(fact.value, float) and math.isnan(fact.value):
            continue
        assert str(fact)


def hit(name: str, first: int = 1, source: str = "log") -> Hit:
    return Hit(name, source, first, ["a line"], 1)


def test_the_surest_comes_first_and_what_follows_last() -> None:
    hits = [
        hit("engine-dead", 1),
        hit("illegal-memory-access", 5),
        hit("nccl-cannot-pin", 9),
        hit("nccl-system-error", 2),
    ]
    found = match(hits, Facts.of({"check.kernel": "blocked"}))
    assert [one.symptom.name for one in found] == [
        "nccl-cannot-pin",
        "illegal-memory-access",
        "nccl-system-error",
        "engine-dead",
    ]
    assert found[0].words == "almost certain"
    assert [one.follows for one in found] == [None, None, "nccl-cannot-pin", "illegal-memory-access"]
    assert all(0 < one.sure < 1 for one in found)


def test_lines_that_may_be_old_make_little_sure() -> None:
    hits = [hit("oom-killed", source="spark1 kernel"), hit("link-down-line", source="log")]
    (old,) = match(hits, Facts(), old={"spark1 kernel"})
    (new,) = match(hits, Facts())
    assert (old.words, new.words) == ("possible", "almost certain")
    (both,) = match(
        hits, Facts.of({"reason.signal": "SIGKILL", "reason.oom_kills": 1}), old={"spark1 kernel"}
    )[:1]
    assert both.symptom.name == "oom-killed"
    assert both.words == "almost certain"


def test_what_a_fact_speaks_against_is_ruled_out() -> None:
    hits, facts = [hit("nccl-cannot-pin")], Facts.of({"check.locked memory": "blocked"})
    assert "nccl-cannot-pin" not in [one.symptom.name for one in match(hits, facts)]
    ((symptom, why),) = ruled_out(hits, facts)
    assert (symptom.name, why) == ("nccl-cannot-pin", "check.locked memory: blocked")


def test_what_a_record_names_is_found_again() -> None:
    (found,) = match([], Facts.of({"reason.symptom": "oom-killed"}))
    assert (found.symptom.name, found.evidence) == ("oom-killed", ("reason.symptom: oom-killed",))


def test_of_an_error_that_only_follows_nothing_is_named() -> None:
    assert first_in("RuntimeError: Executor failed.") is None
    assert first_in(None) is None
    found = first_in("OSError: [Errno 28] No space left on device")
    assert found is not None
    assert found.symptom.name == "disk-full"


def test_each_canary_has_causes() -> None:
    assert causes_of("answer")[0].startswith("the weights on disk")
    assert all(one.severity is not Severity.FOLLOWS for one in catalogue() if one.canaries)


@given(st.text(max_size=300))
def test_facts_of_any_line(line: str) -> None:
    known = LogFacts()
    for prefix in (
        "",
        "non-default args: ",
        "SpecDecoding metrics: Mean acceptance length: ",
        "NCCL version ",
    ):
        known.line("log", prefix + line)


def test_facts_of_a_log() -> None:
    known = LogFacts()
    known.line(
        "log",
        "INFO [api_utils.py:286] non-default args: {'model': 'x', 'speculative_config': {'method': 'mtp'}}",
    )
    known.line("log", "INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='x'")
    known.line("log", "INFO [pynccl.py:111] vLLM is using nccl==2.28.9")
    known.line("log", "INFO [cpu.py:175] Using CPU_MLA backend.")
    known.line(
        "log",
        "INFO [nvfp4.py:242] Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: []",
    )
    values = {one.name: one.value for one in known.facts}
    assert values == {
        "arg.model": "x",
        "arg.speculative_config.method": "mtp",
        "vllm": "0.32.0",
        "nccl": "2.28.9",
        "attention": "CPU_MLA",
        "moe backend": "flashinfer_cutlass",
    }
