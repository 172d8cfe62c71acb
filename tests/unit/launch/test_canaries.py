"""Canaries against a pretended target: what each probe passes and what it fails, and the order of it all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from pydantic import TypeAdapter

from glmspark.config.canaries import Canary, LongPromptCanary
from glmspark.launch.canaries import Answer, ProbeError, Target, prove, shown
from glmspark.launch.probes import PROBES, long_prompt
from glmspark.launch.record import Deployment, Endpoint, RankRecord, Verdict
from glmspark.symptoms.match import causes_of

READ = TypeAdapter(Canary)
HEALTHY = {0: ["VLLM::EngineCore", "VLLM::Worker_TP0"], 1: ["VLLM::Worker_TP1"]}


def said(
    text: str, *, reasoning: str = "", calls: tuple[tuple[str, str], ...] = (), tokens: int = 3
) -> Answer:
    return Answer(text, reasoning, calls, "stop", 10, tokens)


def canary(**fields: Any) -> Any:
    return READ.validate_json(json.dumps(fields))


def deployment() -> Deployment:
    rank = {"node": "here", "argv": [], "env": {}, "log": ""}
    return Deployment(
        id="x",
        name="x",
        boot_id="",
        created=0,
        since=0,
        recipe={},
        plan={},
        endpoint=Endpoint(host="h", port=1, url="u", model="m"),
        scratch="",
        ranks=[RankRecord(rank=0, **rank), RankRecord(rank=1, **rank)],
    )


Ask = Callable[..., Awaitable[Answer]]


def answers(*texts: Answer | Exception) -> Ask:
    """Gives the answers in turn, the last one again and again."""
    left = list(texts)

    async def ask(prompt: str, **_: Any) -> Answer:
        await asyncio.sleep(0)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def by_prompt(known: Mapping[str, str]) -> Ask:
    async def ask(prompt: str, **_: Any) -> Answer:
        await asyncio.sleep(0)
        return said(known[prompt])

    return ask


async def count_words(text: str) -> int:
    return len(text.split())


def run(*canaries: Any, ask: Ask, census: Any = None, tell: Any = None) -> list[Verdict]:
    target = Target(deployment(), ask, count_words, census or (lambda: HEALTHY))
    return asyncio.run(prove(target, list(canaries), PROBES, tell or (lambda verdicts: None)))


SUM = canary(probe="answer", name="sum", prompt="2+2?", expect="^4$", causes=["a bad checkpoint"])
REASONING = canary(probe="reasoning", prompt="p", expect="^12$", expect_reasoning="7.5")
TOOL = canary(
    probe="tool_call",
    prompt="weather?",
    tool={"name": "get_weather", "parameters": {"type": "object"}},
    arguments={"city": "Paris", "days": 2},
)
LONG = canary(probe="long_answer", prompt="count", expect="1 2 3$", min_tokens=5)
STREAMING = canary(probe="streaming", prompt="p", expect="yes")
CONCURRENT = canary(
    probe="concurrent", times=2, cases=[{"prompt": "a", "expect": "^A$"}, {"prompt": "b", "expect": "^B$"}]
)
RANKS = canary(probe="ranks")


def test_every_kind_a_recipe_may_name_has_a_probe() -> None:
    kinds = {kind.model_fields["probe"].annotation.__args__[0] for kind in _kinds()}
    assert kinds == set(PROBES)
    assert all(causes_of(kind) for kind in PROBES)


def _kinds() -> Any:
    return Canary.__origin__.__args__


@pytest.mark.parametrize(
    ("asked", "answer", "evidence"),
    [
        (SUM, said("4"), "'4'"),
        (REASONING, said("12", reasoning="7+5=12"), "reasoning '7+5=12', content '12'"),
        (TOOL, said("", calls=(("get_weather", '{"days": 2, "city": "Paris"}'),)), "get_weather("),
        (LONG, said("1 2 3", tokens=5), "5 tokens, right to the end"),
        (STREAMING, said("yes"), "both 'yes'"),
    ],
)
def test_right_answers_pass(asked: Any, answer: Answer, evidence: str) -> None:
    (verdict,) = run(asked, ask=answers(answer))
    assert verdict.passed
    assert verdict.evidence.startswith(evidence)
    assert verdict.causes == []


@pytest.mark.parametrize(
    ("asked", "answer", "evidence"),
    [
        (SUM, said("5"), "'5' does not match ^4$"),
        (SUM, said("", reasoning="two and two"), "no content, only reasoning 'two and two'"),
        (REASONING, said("12"), "reasoning '' does not match 7.5"),
        (REASONING, said("13", reasoning="7+5"), "content '13' does not match ^12$"),
        (REASONING, said("</think>12", reasoning="7+5"), "think tags left in"),
        (TOOL, said("It rains."), "no tool call, content 'It rains.'"),
        (TOOL, said("", calls=(("a", "{}"), ("b", "{}"))), "2 tool calls instead of one"),
        (TOOL, said("", calls=(("get_weather", '{"city": "Rome"}'),)), "called get_weather("),
        (TOOL, said("", calls=(("other", '{"city": "Paris", "days": 2}'),)), "called other("),
        (TOOL, said("", calls=(("get_weather", "{city}"),)), "arguments are not JSON"),
        (
            TOOL,
            said("<tool_call>", calls=(("get_weather", '{"city": "Paris", "days": 2}'),)),
            "markup of the call left",
        ),
        (LONG, said("1 2 3", tokens=4), "4 tokens, expected at least 5"),
        (LONG, said("1 2 4", tokens=9), "9 tokens, '1 2 4' does not match"),
        (STREAMING, said("no"), "'no' does not match yes"),
    ],
)
def test_wrong_answers_fail_with_causes(asked: Any, answer: Answer, evidence: str) -> None:
    (verdict,) = run(asked, ask=answers(answer))
    assert not verdict.passed
    assert verdict.evidence.startswith(evidence)
    assert verdict.causes


def test_the_recipe_s_own_causes_come_first() -> None:
    (verdict,) = run(SUM, ask=answers(said("5")))
    assert verdict.causes[0] == "a bad checkpoint"
    assert len(verdict.causes) > 1


def test_a_stream_that_differs_fails() -> None:
    (verdict,) = run(STREAMING, ask=answers(said("yes, all"), said("yes, al")))
    assert not verdict.passed
    assert "whole 'yes, all', streamed 'yes, al'" in verdict.evidence


def test_one_wrong_answer_among_several_at_once_is_shown() -> None:
    (right,) = run(CONCURRENT, ask=by_prompt({"a": "A", "b": "B"}))
    assert (right.passed, right.evidence) == (True, "4 at once, all right")
    (wrong,) = run(CONCURRENT, ask=by_prompt({"a": "A", "b": "A"}))
    assert (wrong.passed, wrong.evidence) == (False, "2 of 4 wrong: 'b' got 'A', expected ^B$")


def test_the_long_prompt_is_as_long_as_asked_and_holds_its_needle() -> None:
    prompts = []

    async def ask(prompt: str, **_: Any) -> Answer:
        prompts.append(prompt)
        return said("7391")

    needle = LongPromptCanary(
        probe="long_prompt",
        tokens=300,
        before="read: ",
        filler="the cat sat. ",
        needle="code 7391. ",
        depth=0.25,
        question="code?",
        expect="^7391$",
    )
    (verdict,) = run(needle, ask=ask)
    assert verdict.passed
    (prompt,) = prompts
    assert 290 <= len(prompt.split()) <= 300
    assert prompt.startswith("read: the cat sat.")
    assert prompt.endswith("the cat sat. code?")
    assert prompt.count("7391") == 1
    assert 0.2 < prompt.index("7391") / len(prompt) < 0.3
    assert long_prompt.build(needle, 0) == "read: code 7391. code?"


def test_a_rank_that_is_missing_or_goes_fails() -> None:
    (verdict,) = run(RANKS, ask=answers(said("")))
    assert (verdict.passed, verdict.evidence) == (True, "2 ranks: Worker_TP0, Worker_TP1")
    (verdict,) = run(RANKS, ask=answers(said("")), census=lambda: {0: HEALTHY[0]})
    assert (verdict.passed, verdict.evidence) == (False, "rank 1 does not run")
    (verdict,) = run(RANKS, ask=answers(said("")), census=lambda: {**HEALTHY, 1: []})
    assert (verdict.passed, verdict.evidence) == (False, "rank 1 has no worker process")

    looks = iter([HEALTHY, {**HEALTHY, 0: ["VLLM::Worker_TP0"]}])
    verdicts = run(RANKS, SUM, ask=answers(said("4")), census=lambda: next(looks))
    assert [verdict.passed for verdict in verdicts] == [False, True]
    assert verdicts[0].evidence == "ended while the canaries ran: rank 0: VLLM::EngineCore"


def test_verdicts_are_told_as_they_come_and_returned_in_the_recipe_s_order() -> None:
    told: list[list[str]] = []
    verdicts = run(
        RANKS,
        CONCURRENT,
        SUM,
        ask=by_prompt({"a": "A", "b": "B", "2+2?": "4"}),
        tell=lambda verdicts: told.append([verdict.name for verdict in verdicts]),
    )
    assert [verdict.name for verdict in verdicts] == ["ranks", "concurrent", "sum"]
    assert told == [["sum"], ["concurrent", "sum"], ["ranks", "concurrent", "sum"]]


def test_an_endpoint_that_does_not_answer_is_not_asked_everything() -> None:
    asked: list[str] = []

    async def ask(prompt: str, **_: Any) -> Answer:
        asked.append(prompt)
        raise ProbeError("HTTP 500: no")

    verdicts = run(RANKS, SUM, CONCURRENT, STREAMING, ask=ask)
    assert asked == ["2+2?"]
    assert [verdict.passed for verdict in verdicts] == [True, False, False, False]
    assert [verdict.evidence for verdict in verdicts[1:]] == [
        "HTTP 500: no",
        *["not tried: the endpoint gave no answer"] * 2,
    ]


def test_a_probe_has_its_own_time_limit() -> None:
    async def ask(prompt: str, **_: Any) -> Answer:
        await asyncio.sleep(60)
        return said("4")

    (verdict,) = run(canary(probe="answer", prompt="p", expect="4", timeout_s=1), ask=ask)
    assert (verdict.passed, verdict.evidence) == (False, "no answer within 1 s")


def test_long_texts_are_shortened_in_the_middle() -> None:
    assert shown("short") == "'short'"
    text = shown("a" * 200 + "b" * 200, 20)
    assert text == "'aaaaaaaaaa ... bbbbbbbbbb'"
