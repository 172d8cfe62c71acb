"""Whole runs against servers that answer well and badly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from glmspark.errors import GlmsparkError
from glmspark.measure.bench import Bench, Wanted, points_of, served
from glmspark.measure.compare import compare
from glmspark.measure.record import Conditions, Point, Record, read_record
from glmspark.measure.rounds import Rounds, Samples, Settings
from glmspark.measure.stream import Asker
from tests.unit.measure.endpoints import ROLE, Script, answer, said, server

QUICK = Settings("seed", answer=4, least=3, most=3)


class Seen:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.rounds = 0

    def round(self, point: Point, samples: Samples) -> None:
        self.rounds += 1

    def point(self, point: Point) -> None:
        self.points.append(point)


def run(scripts: Any, points: list[Point], path: Path, silence: float = 2.0) -> tuple[Record, Seen]:
    async def whole() -> tuple[Record, Seen]:
        async with server(scripts) as url:
            asker, seen = Asker(url, None, silence=silence), Seen()
            try:
                conditions = Conditions(url=url, model="m", context=2048)
                return await Bench(asker, conditions, QUICK, seen, path).run(points), seen
            finally:
                await asker.close()

    return asyncio.run(whole())


def point(streams: int = 1, depth: int = 0, workload: Any = "kind") -> Point:
    return Point(workload=workload, kind="prose", streams=streams, wanted_depth=depth)


def test_a_run_measures_every_point_and_keeps_the_record(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def script(body: dict[str, Any]) -> Script:
        asked.append(body)
        return answer(4, 0.004)

    file = tmp_path / "bench.json"
    record, seen = run(script, [point(), point(streams=2), point(2, 300, "mixed")], file)
    assert record.ended == "whole"
    assert read_record(file) == record
    assert [one.rounds for one in record.points] == [3, 3, 3]
    first = record.points[0]
    assert first.decode is not None
    assert 0 < first.decode.median <= 2 / 0.004
    assert first.tokens == 4
    assert seen.points == record.points
    assert seen.rounds >= 6
    texts = [body["messages"][0]["content"] for body in asked]
    assert len(set(texts)) == len(texts), "a prompt was asked twice: the prefix cache would answer it"
    assert all(body["ignore_eos"] for body in asked)
    assert record.points[2].note is not None


def test_a_server_that_refuses_is_given_up_and_the_record_says_so(tmp_path: Path) -> None:
    refusing = Script(status="503 Not Yet", headers={"Retry-After": "0.01"}, parts=[b"restarting"])
    record, _ = run(lambda _: refusing, [point(), point()], tmp_path / "bench.json")
    assert [one.rounds for one in record.points] == [0, 0]
    assert record.points[0].failures == {"refused": 3}
    assert "restarting" in (record.points[0].first_failure or "")


def test_half_streams_are_counted_and_the_whole_ones_kept(tmp_path: Path) -> None:
    calls = iter(range(1000))

    def script(_: Any) -> Script:
        return Script(parts=[ROLE, said("half")], cut=True) if next(calls) % 2 else answer(4, 0.001)

    record, _ = run(script, [point()], tmp_path / "bench.json")
    assert record.points[0].rounds == 3
    assert record.points[0].failures["cut"] >= 2


def test_cancelled_it_keeps_what_there_is_at_once(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    asked: list[Any] = []

    def script(body: Any) -> Script:
        asked.append(body)
        return answer(4, 0.001) if len(asked) < 4 else Script(parts=[ROLE, said("x")], hang=True)

    async def whole() -> float:
        async with server(script) as url:
            asker = Asker(url, None)
            bench = Bench(asker, Conditions(url=url, model="m"), QUICK, Seen(), file)
            task = asyncio.ensure_future(bench.run([point()]))
            loop = asyncio.get_running_loop()
            while len(asked) < 4:
                await asyncio.sleep(0.02)
            task.cancel()
            began = loop.time()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asker.close()
            return loop.time() - began

    assert asyncio.run(whole()) < 30
    record = read_record(file)
    assert record.ended == "interrupted"
    assert record.points[0].rounds >= 1


def test_two_endpoints_in_turns_give_the_ratio() -> None:
    async def whole() -> Any:
        async with server(lambda _: answer(6, 0.08)) as slow, server(lambda _: answer(6, 0.01)) as fast:
            askers = [Asker(url, None) for url in (slow, fast)]
            sides = [
                (Rounds(one, "m", QUICK, None, lambda *_: None), Conditions(url=one.url, model="m"))
                for one in askers
            ]
            try:
                return await compare(sides[0], sides[1], point(), 4, lambda *_: None)
            finally:
                for one in askers:
                    await one.close()

    found = asyncio.run(whole())
    assert found.pairs == 4
    assert 1.2 < found.ratios["decode"].median < 9.0
    assert found.differs["decode"]


def test_an_endpoint_says_what_it_serves() -> None:
    async def whole(model: str | None) -> Any:
        async with server(lambda _: answer(1)) as url:
            asker = Asker(url, None)
            try:
                return await served(asker, model)
            finally:
                await asker.close()

    assert asyncio.run(whole(None)) == ("m", 2048, None)
    with pytest.raises(GlmsparkError, match="serves no model other"):
        asyncio.run(whole("other"))


def test_depths_beyond_the_context_are_left_out() -> None:
    points = points_of(Wanted(workloads=["depth"], depths=(1024, 4096)), 2048, 64)
    assert [one.wanted_depth for one in points] == [1024]
    assert len(points_of(Wanted(), None, 64)) == 5 + 5 + 3 + 1


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"record": "other"}', "\x00"])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(GlmsparkError, match="no benchmark record"):
        read_record(file)
