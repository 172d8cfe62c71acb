"""One start on a cluster from first rank to proven, with agents that play a part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from glmspark.launch import cluster_start, cluster_up, reasons
from glmspark.launch.agents import Event, Stopped
from glmspark.launch.cluster_start import Starter
from glmspark.launch.record import ClusterSite, Deployment, Limits, State, Verdict, home
from glmspark.launch.up import CancelledError, StartError
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.transport import NodeError
from tests.unit.launch.starts import make_start

SERVING = "INFO:     Application startup complete."
PASS = Verdict(name="sum", probe="answer", passed=True, seconds=0.1, evidence="'4'")
FAIL = PASS.model_copy(update={"passed": False, "evidence": "'5'", "causes": ["a kernel"]})


@dataclass
class Agents:
    """Plays the events given, then waits; knows what was asked of it."""

    events: list[Event]
    asked: list[str] = field(default_factory=list)
    ready_error: NodeError | None = None

    async def follow(self, *, leash: bool) -> AsyncIterator[Event]:
        assert leash
        for event in self.events:
            yield event
        await asyncio.sleep(3600)

    async def ready(self, record: dict[str, Any]) -> None:
        self.asked.append(f"ready {record['state']}")
        if self.ready_error is not None:
            raise self.ready_error

    async def stop(self) -> dict[str, Stopped]:
        self.asked.append("stop")
        lost = NodeError("the connection was lost", host="spark2")
        return {
            "spark1": Stopped("spark1", "stopped"),
            "spark2": Stopped("spark2", "not reached", error=lost),
        }

    async def begin(self) -> None:
        self.asked.append("start")


class Watching:
    """What is shown."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def update(self, deployment: Deployment, verdicts: list[Verdict]) -> None:
        self.states.append(str(deployment.state))

    def note(self, text: str) -> None:
        raise AssertionError(text)


def log(line: str, rank: int = 0) -> Event:
    return Event(f"spark{rank + 1}", rank, "log", {"rank": rank, "line": line})


def ended(rank: int) -> Event:
    reason = {
        "what": f"rank {rank} ended with exit code 1",
        "rank": rank,
        "node": f"spark{rank + 1}",
        "at": 1.0,
    }
    return Event(f"spark{rank + 1}", rank, "state", {"state": "failed", "reason": reason, "processes": []})


def play(
    monkeypatch: pytest.MonkeyPatch,
    events: list[Event],
    *,
    verdicts: list[Verdict] | Exception | None = None,
    limits: Limits | None = None,
    keep: bool = False,
    ready_error: NodeError | None = None,
    during: Callable[[asyncio.Task[None]], None] = lambda _: None,
) -> tuple[Agents, Deployment, BaseException | None, Watching]:
    """Run a start of two ranks to its end. verdicts: of the canaries; None: they never end."""

    async def prove(*_: Any) -> list[Verdict]:
        if isinstance(verdicts, Exception):
            raise verdicts
        if verdicts is None:
            await asyncio.sleep(3600)
        return list(verdicts or [])

    monkeypatch.setattr(cluster_start, "prove_cluster", prove)
    monkeypatch.setattr(cluster_start, "_TICK", 0.01)
    monkeypatch.setattr(cluster_start, "_TELL", 0.1)
    agents, watching = Agents(events, ready_error=ready_error), Watching()
    deployment = make_start("toy", "serves", "serves", limits=limits, keep=keep)
    for rank in deployment.ranks:
        rank.node = f"spark{rank.rank + 1}"
    deployment.cluster = ClusterSite(cluster={}, directories={})
    where = home("toy")
    where.path.mkdir(parents=True)
    where.write_key("a-key")

    async def go() -> None:
        fleet = Fleet({"spark1": None, "spark2": None})
        async with fleet:
            starter = Starter(deployment, agents, fleet, watching, home=where, key="a-key")  # type: ignore[arg-type]
            task = asyncio.ensure_future(starter.run(agents.begin))
            asyncio.get_running_loop().call_later(0.05, during, task)
            await task

    error: BaseException | None = None
    try:
        asyncio.run(go())
    except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - what it is, is the test's to say
        error = raised
    kept = where.read()
    assert kept is not None
    assert kept.state is deployment.state
    assert (where.read_key() is None) == kept.state.over
    where.record_file.unlink()
    return agents, deployment, error, watching


def test_proven_is_ready_here_and_on_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    agents, deployment, error, watching = play(monkeypatch, [log(SERVING)], verdicts=[PASS])
    assert error is None
    assert agents.asked == ["start", "ready ready"]
    assert (deployment.state, deployment.proving, deployment.verdicts) == (State.READY, False, [PASS])
    assert watching.states[-1] == "ready"


def test_a_canary_that_fails_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    agents, deployment, error, _ = play(monkeypatch, [log(SERVING)], verdicts=[PASS, FAIL])
    assert isinstance(error, StartError)
    assert agents.asked == ["start", "stop"]
    assert deployment.state is State.FAILED
    assert "1 of 2 canaries failed" in error.message
    assert "a kernel" in str(error.next)


def test_keep_leaves_it_running(monkeypatch: pytest.MonkeyPatch) -> None:
    agents, deployment, error, _ = play(monkeypatch, [log(SERVING)], verdicts=[FAIL], keep=True)
    assert isinstance(error, StartError)
    assert agents.asked == ["start", "ready unproven"]
    assert deployment.state is State.UNPROVEN


def test_a_rank_that_ends_is_the_reason_and_what_was_not_reached_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [log("Traceback (most recent call last):", 1), log("ValueError: no", 1), ended(1)]
    agents, deployment, error, _ = play(monkeypatch, events)
    assert isinstance(error, StartError)
    assert (error.host, error.message) == ("spark2", "rank 1 ended with exit code 1")
    assert "ValueError: no" in str(error.seen)
    assert "spark2 was not reached, and stops by itself" in str(error.seen)
    assert agents.asked == ["start", "stop"]
    assert deployment.reason is not None
    assert deployment.reason.rank == 1


def test_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    agents, _, error, _ = play(monkeypatch, [], limits=Limits(start=0.1))
    assert isinstance(error, StartError)
    assert "not serving within 0.1 s: rank 0 is still starting Python" in error.message
    assert agents.asked == ["start", "stop"]


def test_canaries_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    agents, _, error, _ = play(monkeypatch, [log(SERVING)], limits=Limits(prove=0.1))
    assert isinstance(error, StartError)
    assert "proving the endpoint did not end in time" in error.message
    assert agents.asked == ["start", "stop"]


def test_an_endpoint_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = NodeError("the connection was lost", host="spark1")
    agents, _, error, _ = play(monkeypatch, [log(SERVING)], verdicts=lost)
    assert isinstance(error, StartError)
    assert (error.host, error.message) == ("spark1", "the connection was lost")
    assert agents.asked == ["start", "stop"]


def test_a_rank_that_ends_at_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = NodeError("it does not run any more", host="spark2")
    agents, deployment, error, _ = play(monkeypatch, [log(SERVING)], verdicts=[PASS], ready_error=gone)
    assert isinstance(error, StartError)
    assert agents.asked == ["start", "ready ready", "stop"]
    assert deployment.state is State.FAILED


def test_an_interrupt_stops_everything_also_a_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(task: asyncio.Task[None]) -> None:
        task.cancel()
        asyncio.get_running_loop().call_soon(task.cancel)

    agents, deployment, error, _ = play(monkeypatch, [], during=interrupt)
    assert isinstance(error, asyncio.CancelledError)
    assert agents.asked == ["start", "stop"]
    assert deployment.state is State.STOPPED
    assert deployment.reason is not None  # what could not be stopped is told all the same
    assert deployment.reason.seen == "spark2 was not reached, and stops by itself: the connection was lost"


def test_a_fault_of_our_own_leaves_no_rank_either(monkeypatch: pytest.MonkeyPatch) -> None:
    agents, deployment, error, _ = play(monkeypatch, [log(SERVING)], verdicts=ZeroDivisionError("oh"))
    assert isinstance(error, ZeroDivisionError)
    assert agents.asked == ["start", "stop"]
    assert deployment.reason is not None
    assert "glmspark itself failed" in deployment.reason.what


def test_events_that_break_off_with_a_fault_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the start would wait for events until its time limit."""
    odd = Event("spark1", 0, "log", {"rank": 0, "line": "x"})

    class Broken(Agents):
        async def follow(self, *, leash: bool) -> AsyncIterator[Event]:
            yield odd
            raise KeyError("odd")

    monkeypatch.setattr(f"{__name__}.Agents", Broken)
    agents, deployment, error, _ = play(monkeypatch, [], limits=Limits(start=2.0))
    assert isinstance(error, KeyError)
    assert agents.asked == ["start", "stop"]
    assert deployment.state is State.FAILED


@pytest.mark.parametrize(
    ("age", "seen"),
    [(1.0, "spark2: it would not go"), (-100.0, None)],  # an earlier start's record says nothing of this one
)
def test_an_interrupt_tells_what_could_not_be_stopped(
    monkeypatch: pytest.MonkeyPatch, age: float, seen: str | None
) -> None:
    async def interrupted(wanted: Any, *_: Any) -> None:
        deployment = make_start("toy", "serves")
        deployment.reason = reasons.failed("it was interrupted", seen="spark2: it would not go")
        deployment.created = time.time() + age
        wanted.wanted.home.prepare()
        wanted.wanted.home.write(deployment)
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_up, "_bring_up", interrupted)
    wanted: Any = SimpleNamespace(wanted=SimpleNamespace(home=home("toy")))
    with pytest.raises(CancelledError) as caught:
        cluster_up.bring_up_cluster(wanted, Watching())
    assert caught.value.seen == seen
    home("toy").record_file.unlink()
