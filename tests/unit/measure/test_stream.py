"""One timed request against servers that answer well and badly."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.measure.stream import Asker, Timed, _read
from tests.unit.measure.endpoints import DONE, ROLE, Script, answer, event, said, server, used


def ask(script: Script, silence: float = 5.0) -> Timed:
    async def run() -> Timed:
        async with server(lambda _: script) as url:
            asker = Asker(url, None, silence=silence)
            try:
                return await asker.ask({"model": "m", "messages": []})
            finally:
                await asker.close()

    return asyncio.run(run())


def test_a_whole_answer_is_timed_and_counted() -> None:
    timed = ask(answer(6, pause=0.02, prompt=33))
    assert timed.outcome == "ok"
    assert (timed.prompt_tokens, timed.tokens, timed.finish) == (33, 6, "length")
    assert timed.text == "w0 w1 w2 w3 w4 w5 "
    assert timed.first is not None
    assert timed.first >= 0.02
    assert timed.rate is not None
    assert timed.rate <= 2 / 0.02


def test_several_tokens_in_one_event_all_count() -> None:
    parts = [ROLE, said("a b c "), 0.05, said("d e f ", "stop"), used(3, 6), DONE]
    timed = ask(Script(parts=parts))
    assert timed.tokens == 6
    assert timed.rate is not None
    assert timed.rate == pytest.approx(5 / (timed.last - timed.arrivals[0]))


def test_tokens_without_text_lengthen_the_time() -> None:
    parts = [ROLE, said("a"), 0.2, said("", "length"), used(3, 2), DONE]
    timed = ask(Script(parts=parts))
    assert timed.rate is not None
    assert timed.rate <= 1 / 0.1
    assert len(timed.arrivals) == 1


@pytest.mark.parametrize(
    ("script", "outcome", "detail"),
    [
        (
            Script(status="503 Service Unavailable", headers={"Retry-After": "7"}, parts=[b"later"]),
            "refused",
            "503",
        ),
        (Script(status="429 Too Many Requests", parts=[b"full"]), "refused", "429: full"),
        (Script(status="400 Bad Request", parts=[b"too long"]), "http", "400: too long"),
        (Script(parts=[ROLE, said("half")]), "cut", "before"),
        (Script(parts=[ROLE, said("half")], hang=True), "stalled", "nothing came"),
        (Script(parts=[ROLE, event(error={"message": "engine died"}), DONE]), "error", "engine died"),
        (Script(parts=[ROLE, b"data: <html>\n\n", DONE]), "error", "not a chat event"),
    ],
)
def test_every_bad_end_is_named(script: Script, outcome: str, detail: str) -> None:
    timed = ask(script, silence=0.3)
    assert timed.outcome == outcome
    assert detail in timed.detail
    if outcome == "refused" and script.headers:
        assert timed.retry_after == "7"


def test_nobody_there() -> None:
    async def run() -> Timed:
        asker = Asker("http://127.0.0.1:9/v1", None)
        try:
            return await asker.ask({})
        finally:
            await asker.close()

    assert asyncio.run(run()).outcome == "connection"


keys = st.sampled_from(["choices", "delta", "usage", "error"])
json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner),
    max_leaves=8,
)
events = st.binary(max_size=30) | json_values.map(lambda value: json.dumps(value).encode())


@given(st.lists(events, max_size=4))
def test_no_event_whatever_it_holds_is_more_than_an_error(received: list[bytes]) -> None:
    timed = Timed()
    _read(received, timed)
    assert timed.outcome in ("ok", "error")
