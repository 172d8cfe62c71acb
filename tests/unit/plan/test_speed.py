"""Predictions beside measurements, and what physics forbids them."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.models.outline import outline_published
from glmspark.models.published import find
from glmspark.plan.speed import Link, Run, load_constants, predict
from glmspark.plan.speed.constants import load_calibration
from glmspark.plan.speed.links import all_gather, all_reduce
from glmspark.plan.speed.prefill import prefill_seconds
from glmspark.plan.speed.step import step_collectives, step_parts, touched
from glmspark.plan.speed.text import ACCEPTANCE, KINDS, expected_tokens
from tools.calibrate.__main__ import HERE
from tools.calibrate.rows import Case, aside, cases, prefill_cases, read_rows

ROCE = Link("roce")
ROWS = read_rows(HERE / "measurements.jsonl")


@cache
def run(name: str = "QuantTrio/GLM-5.2-Int4-Int8Mix", **changes) -> Run:
    known = find(name)
    assert known is not None
    return replace(Run(outline_published(name, known), ROCE, tp=4), **changes)


@cache
def used() -> list[Case]:
    single = [case for case in cases(ROWS) if case.row.get("concurrency") in (None, 1)]
    return [case for case in single if aside(case.row) is None]


def told(case: Case):
    return predict(case.run, depth=int(case.depth), drafter=case.drafter, text=case.text, tokens=case.tokens)


def test_published_speeds():
    """The shipped constants on the rows that they were fitted to; `make calibrate` holds sources out."""
    stated = [told(case).decode.value / case.observed - 1 for case in used() if case.tokens]
    by_text = [(told(case).decode, case.observed) for case in used() if not case.tokens]
    off = np.abs(stated)
    assert np.median(off) <= 0.10
    assert np.mean(off <= 0.35) >= 0.95
    assert np.median([abs(one.value / seen - 1) for one, seen in by_text]) <= 0.15
    assert np.mean([one.low <= seen <= one.high for one, seen in by_text]) >= 0.90


def test_the_three_systems():
    systems = [case for case in used() if case.source == "bird/GLM-spark" or "LibertAI, " in case.source]
    assert {case.observed for case in systems} >= {5.3, 7.0, 24.66, 4.4}
    for case in systems:
        assert told(case).decode.low <= case.observed <= told(case).decode.high


def test_prefill():
    constants = load_constants()
    off = [
        case.prompt / prefill_seconds(case.run, case.prompt, constants, chunk=case.chunk) / case.observed - 1
        for case in prefill_cases(ROWS)
    ]
    assert np.median(np.abs(off)) <= 0.20


def test_every_constant_has_a_source_and_is_near_it():
    data = load_calibration()
    assert set(data["sigmas"]) == set(data["constants"]) | set(ACCEPTANCE)
    for name, rate in data["acceptance"].items():
        assert 0 < rate < 1
        assert abs(rate - ACCEPTANCE[name].value) < 0.2


@given(st.integers(1, 512), st.integers(1, 8), st.floats(1, 1000), st.floats(0, 0.9))
def test_experts_touched(experts, chosen, tokens, overlap):
    chosen = min(chosen, experts)
    found = touched(experts, chosen, tokens, overlap)
    assert chosen * 0.999 <= found <= experts
    assert found <= touched(experts, chosen, tokens + 1, overlap) * (1 + 1e-12)
    assert found <= chosen * tokens * (1 + 1e-9)


LINKS = st.builds(
    Link,
    st.sampled_from(["tcp", "roce", "one-shot"]),
    st.sampled_from([1.0, 10.0, 100.0, 200.0]),
    st.booleans(),
)


@given(LINKS, st.integers(1, 8), st.floats(1, 1e9))
def test_collectives(link, ranks, size):
    constants = load_constants()
    for collective in (all_reduce, all_gather):
        once = collective(link, ranks, size, constants)
        assert 0 <= once <= collective(link, ranks, size * 2, constants) * (1 + 1e-9)
        assert once <= collective(link, ranks, size + 4096, constants) * (1 + 1e-9)
        assert once <= collective(link, ranks + 1, size, constants) * (1 + 1e-9)


RUNS = st.builds(
    run,
    st.sampled_from(
        ["QuantTrio/GLM-5.2-Int4-Int8Mix", "RedHatAI/GLM-5.3-Flash-NVFP4", "nvidia/GLM-5.2-NVFP4"]
    ),
    tp=st.sampled_from([2, 4, 8]),
    link=LINKS,
    graphs=st.booleans(),
    method=st.sampled_from(["mtp", "block"]),
    drafts=st.integers(0, 7),
    drafter=st.just(5_000_000_000),
)


@settings(max_examples=30)
@given(RUNS, st.integers(1, 64), st.integers(0, 10**6))
def test_more_never_takes_less(one, streams, depth):
    constants = load_constants()

    def step(run: Run, count: int = streams, before: int = depth) -> float:
        return sum(step_parts(run, streams=count, depth=before, constants=constants).values())

    base = step(one)
    assert base <= step(one, count=streams + 1)
    assert base <= step(one, before=depth + 10_000)
    assert base <= step(replace(one, graphs=False))
    assert base <= step(replace(one, drafts=one.drafts + 1))
    assert step(replace(one, link=Link("one-shot"))) <= step(replace(one, link=Link("roce")))
    assert step(replace(one, link=Link("roce"))) <= step(replace(one, link=Link("tcp", 200)))
    assert step(replace(one, link=Link("tcp", 10))) <= step(replace(one, link=Link("tcp", 1)))


@settings(max_examples=30)
@given(RUNS, st.integers(1, 64), st.integers(1, 10**6), st.sampled_from(KINDS))
def test_no_more_than_the_hardware_allows(one, streams, depth, text):
    found = predict(one, streams=streams, depth=depth, drafter="mtp", text=text)
    assert 0 < found.share < 1
    assert found.decode.low < found.decode.value < found.decode.high
    assert found.step == pytest.approx(sum(found.parts.values()))
    assert found.prefill.value > 0
    assert found.ttft.value > found.step


def test_more_streams_never_take_less_where_messages_stop_being_small():
    one = run("RedHatAI/GLM-5.3-Flash-NVFP4", graphs=False, method="mtp", drafts=4)
    steps = [
        sum(step_parts(one, streams=count, depth=0, constants=load_constants()).values())
        for count in range(1, 33)
    ]
    assert steps == sorted(steps)


@settings(max_examples=20)
@given(RUNS, st.integers(1, 16), st.sampled_from([1, 2]), st.sampled_from([1, 3]))
def test_collectives_add_up_to_their_parts(one, streams, dcp, pp):
    constants = load_constants()
    changed = replace(one, dcp=dcp, pp=pp)
    items = step_collectives(changed, streams=streams, constants=constants)
    parts = step_parts(changed, streams=streams, depth=0, constants=constants)
    waiting = changed.work.attending * constants.context_layer if dcp > 1 else 0.0
    drafting = [item for item in items if item.what.startswith("drafter")]
    network = sum(item.total for item in items if item not in drafting)
    assert network == pytest.approx(parts["collectives"] + parts["context"] - waiting)
    assert sum(item.total for item in drafting) <= parts["drafter"]
    assert all(0 < item.latency <= item.seconds for item in items)


def test_the_limit_counts_all_that_a_step_reads():
    one = run(method="mtp", drafts=3)

    def limit(run: Run, depth: int) -> float:
        return predict(run, depth=depth, drafter="mtp", tokens=1.0).limit

    assert limit(one, 500_000) < limit(one, 2048) * 0.95  # the indexer's keys
    assert limit(one, 2048) < limit(replace(one, method="lookup"), 2048)  # the drafter


@given(st.floats(0, 1), st.integers(0, 16))
def test_expected_tokens(rate, drafts):
    assert 1 <= expected_tokens(rate, drafts) <= drafts + 1
