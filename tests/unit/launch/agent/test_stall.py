"""When a deployment stands still, and which rank it waits for."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.launch.node_agent.api import Metrics, read_metrics
from glmspark.launch.node_agent.readings import Reading
from glmspark.launch.node_agent.spec import Watching
from glmspark.launch.node_agent.stall import LONGEST, Judge

BOUNDS = Watching(times=3, api=10, tokens=20, canary=10, every=15, halted=5)
BUSY = Metrics(1, 0, 100)


def judge() -> Judge:
    return Judge(BOUNDS, {0: "spark1", 1: "spark2"}, 0.0)


def run(
    one: Judge, begin: int, end: int, *, metrics: Metrics | None, ranks: list[Reading], tokens: float = 0.0
) -> tuple[int, dict[str, object]] | None:
    """The first verdict, and when; a look at everything each second."""
    for now in range(begin, end):
        for rank, reading in enumerate(ranks):
            one.rank(rank, reading, now)
        if metrics is not None:
            made = metrics.tokens + tokens * (now - begin)
            one.metrics(Metrics(metrics.running, metrics.waiting, made), now)
        if (found := one.verdict(now)) is not None:
            return now, found
    return None


def test_work_and_idleness_are_no_stall() -> None:
    one = judge()
    still = [Reading(1.0, steps=(5, 5))] * 2
    assert run(one, 0, 3600, metrics=BUSY, ranks=still, tokens=1.0) is None
    assert run(one, 3600, 7200, metrics=Metrics(0, 0, 0), ranks=still) is None


def test_a_long_prompt_makes_steps_and_no_token() -> None:
    one = judge()
    for now in range(600):
        steps = (now, now)
        assert run(one, now, now + 1, metrics=BUSY, ranks=[Reading(1.0, steps=steps)] * 2) is None
    assert one.longest <= 1


def test_no_token_and_no_step_is_a_stall_of_the_rank_that_is_behind() -> None:
    found = run(judge(), 0, 60, metrics=BUSY, ranks=[Reading(1.0, steps=(7, 6)), Reading(1.0, steps=(6, 6))])
    assert found is not None
    now, cause = found
    assert 20 < now <= 22
    assert (cause["kind"], cause["rank"], cause["node"]) == ("tokens", 1, "spark2")
    assert "rank 1 on spark2 stands still" in str(cause["what"])
    assert "steps 6 begun, 6 ended" in str(cause["seen"])


def test_gpus_that_spin_wait_for_the_one_that_does_not() -> None:
    spinning, other = (
        Reading(1.0, steps=(7, 6), gpus=((96.0, 20.0),)),
        Reading(1.0, steps=(7, 6), gpus=((99.0, 90.0),)),
    )
    found = run(judge(), 0, 60, metrics=BUSY, ranks=[other, spinning])
    assert found is not None
    assert found[1]["rank"] == 0
    assert "GPU 96 % at 20 W" in str(found[1]["seen"])
    both = run(judge(), 0, 60, metrics=BUSY, ranks=[spinning, spinning])
    assert both is not None
    assert both[1]["rank"] is None


def test_where_no_rank_counts_steps_a_long_prompt_has_time() -> None:
    found = run(judge(), 0, 700, metrics=BUSY, ranks=[Reading(1.0)] * 2)
    assert found is not None
    assert found[0] >= LONGEST


def test_what_was_slow_while_all_was_well_is_no_stall() -> None:
    one = judge()
    for slow in range(10):  # a token each 15 s
        metrics = Metrics(1, 0, 100 + slow)
        ranks = [Reading(1.0, steps=(slow, slow))] * 2
        assert run(one, 15 * slow, 15 * slow + 15, metrics=metrics, ranks=ranks) is None
    assert one.bound == 5 * one.longest > 70


def test_a_halted_rank_is_named_after_its_bound_and_one_that_goes_on_is_not() -> None:
    halted = Reading(1.0, halted=("VLLM::Worker_TP1 (pid 9)",))
    one = judge()
    assert run(one, 0, 5, metrics=BUSY, ranks=[Reading(1.0), halted], tokens=1) is None
    assert run(one, 5, 60, metrics=BUSY, ranks=[Reading(1.0), Reading(1.0)], tokens=1) is None
    found = run(one, 60, 120, metrics=BUSY, ranks=[Reading(1.0), halted], tokens=1)
    assert found is not None
    assert found[0] == 66
    assert (found[1]["kind"], found[1]["rank"]) == ("halted", 1)
    server = Reading(1.0, halted=("python (pid 4, the main process)",))
    api = run(judge(), 0, 60, metrics=BUSY, ranks=[server, Reading(1.0)], tokens=1)
    assert api is not None
    assert str(api[1]["what"]).startswith("the API server of rank 0 on spark1 is halted")


def test_an_api_that_is_silent_and_a_canary_without_an_answer() -> None:
    one = judge()
    one.silent("/metrics did not answer within 10 s")
    found = run(one, 0, 60, metrics=None, ranks=[Reading(1.0)] * 2)
    assert found is not None
    assert (found[0], found[1]["kind"], found[1]["rank"]) == (11, "api", 0)
    assert found[1]["seen"] == "/metrics did not answer within 10 s"
    one = judge()
    one.metrics(Metrics(0, 0, 0), 0.0)
    one.canary("did not answer", 1.0)
    cause = one.verdict(1.0)
    assert cause is not None
    assert cause["kind"] == "canary"
    one.canary(None, 2.0)
    assert one.verdict(2.0) is None


def test_time_in_which_the_agent_did_not_run_is_nobodys_silence() -> None:
    one = judge()
    one.metrics(BUSY, 0.0)
    one.rank(1, Reading(1.0, halted=("x",)), 0.0)
    one.shift(1000.0)
    assert one.verdict(1004.0) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=4))
def test_nobody_is_named_who_is_ahead_of_another(steps: list[tuple[int, int]]) -> None:
    one = Judge(BOUNDS, {rank: f"n{rank}" for rank in range(len(steps))}, 0.0)
    ranks = [Reading(0.0, steps=(max(pair), min(pair))) for pair in steps]
    found = run(one, 0, 40, metrics=BUSY, ranks=ranks)
    assert found is not None
    named = found[1]["rank"]
    if named is not None:
        assert isinstance(named, int)
        assert ranks[named].steps == min(one.steps for one in ranks if one.steps) or (
            ranks[named].steps[0] == min(one.steps[0] for one in ranks if one.steps)  # type: ignore[index]
        )


def test_metrics_of_several_engines_are_added() -> None:
    text = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 1.0\n'
        'vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+06\n'
        'vllm:generation_tokens_total{engine="0",model_name="m"} 7\n'
        'vllm:generation_tokens_created{engine="0"} 1.7e+09\n'
        'vllm:kv_cache_usage_perc{engine="0"} NaN\n'
    )
    assert read_metrics(text) == Metrics(3, 0, 1_500_007)


@given(st.text(max_size=300))
def test_whatever_an_api_says_is_read(text: str) -> None:
    read_metrics(text + "\nvllm:num_requests_running 1\n")


@pytest.mark.parametrize("seed", range(3))
def test_two_hours_of_healthy_load_are_no_stall(seed: int) -> None:
    """A compressed clock: bursts, idle minutes, prompts read for minutes, slow steps, an API that is late, an
    agent that does not run for a while; all that is still well, and nothing restarts."""
    chance = random.Random(seed)
    one = judge()
    now, step, tokens, running = 0.0, 0, 0.0, 0
    prompt_until = slow_until = api_late_until = 0.0
    canary_at, polled = 15.0, 0.0
    while now < 7200:
        now += 0.5
        if chance.random() < 1 / 1200:  # this agent did not run, as where a machine is suspended
            gone = chance.uniform(5, 300)
            now += gone
            one.shift(gone)
        if chance.random() < 1 / 60:
            running = chance.choice((0, 0, 1, 4, 32))
        if chance.random() < 1 / 200:
            prompt_until = now + chance.uniform(5, 240)  # no token comes of it, but steps do
        if now > slow_until + 2 and chance.random() < 1 / 100:
            slow_until = now + chance.uniform(1, BOUNDS.tokens * 0.8)  # one step that takes so long
        if now > api_late_until + 4 and chance.random() < 1 / 100:
            api_late_until = now + chance.uniform(1, BOUNDS.api * 0.7)
        if running and now >= slow_until:
            step += 1
            tokens += 0 if now < prompt_until else running
        for rank in (0, 1):
            behind = int(chance.random() < 0.2)  # a step that has begun on one and not yet on the other
            one.rank(rank, Reading(now, steps=(step + behind, step)), now)
        if now < api_late_until:
            one.silent("late")
        elif now >= polled + 2:
            polled = now
            one.metrics(Metrics(running, 0, tokens), now)
        if now >= canary_at:
            canary_at = now + BOUNDS.every
            if one.idle:
                one.canary(None, now)
        assert one.verdict(now) is None, (now, one.verdict(now))
