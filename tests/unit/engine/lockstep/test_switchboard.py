"""Calls reach every rank, the answers that matter come back, and the first failure is everyone's."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.engine.lockstep import LockstepError
from glmspark.engine.lockstep.link import ClosedError, Frame, Link
from glmspark.engine.lockstep.switchboard import BYE, RankError, Switchboard
from tests.unit.engine.lockstep.pairs import Outcome, link_pair


class Trap:
    """Unpickling it is noticed."""

    sprung = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return spring, ()


def spring() -> None:
    Trap.sprung = True


class Worker:
    """A follower: answers what `do` says, and remembers what it was called for."""

    def __init__(self, link: Link, rank: int, do: Callable[..., Any]) -> None:
        self.link, self.rank, self.do = link, rank, do
        self.calls: list[str] = []
        self.ended = Outcome(self.run)

    def run(self) -> tuple[str, ...]:
        while True:
            number, method, args, kwargs, only = pickle.loads(self.link.receive())
            if method == BYE:
                return args
            self.calls.append(method)
            try:
                value = self.do(self.rank, method, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - as a worker does
                self.answer(number, False, f"{type(error).__name__}: {error}")
                continue
            if only in (None, self.rank):
                self.answer(number, True, value)

    def answer(self, number: int, ok: bool, value: Any) -> None:
        self.link.send(Frame.of(pickle.dumps((number, ok, value))))


class Ranks:
    """A switchboard with workers behind it."""

    def __init__(self, world: int, do: Callable[..., Any]) -> None:
        pairs = [link_pair() for _ in range(world)]
        for rank, (near, _) in enumerate(pairs):
            near.peer = f"rank {rank}"
        self.board = Switchboard({rank: near for rank, (near, _) in enumerate(pairs)})
        self.workers = [Worker(far, rank, do) for rank, (_, far) in enumerate(pairs)]
        self.failed = threading.Event()
        self.board.on_failure(self.failed.set)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        return self.board.call(method, args, limit=5, **options)


@pytest.fixture
def made() -> Iterator[Callable[..., Ranks]]:
    ranks: list[Ranks] = []

    def make(do: Callable[..., Any], world: int = 3) -> Ranks:
        ranks.append(Ranks(world, do))
        return ranks[-1]

    yield make
    for one in ranks:
        one.board.close()
        for worker in one.workers:
            worker.link.close()


def echo(rank: int, method: str, *args: Any) -> tuple[Any, ...]:
    return (rank, method, *args)


def test_all_answer_or_one(made: Callable[..., Ranks]) -> None:
    ranks = made(echo)
    assert ranks.call("add", 7).result() == {rank: (rank, "add", 7) for rank in range(3)}
    assert ranks.call("step", 8, only=2).result() == {2: (2, "step", 8)}
    assert ranks.call("check", finish=len).result() == 3
    assert [worker.calls for worker in ranks.workers] == [["add", "step", "check"]] * 3


def test_answers_are_told_apart_by_number(made: Callable[..., Ranks]) -> None:
    """As with two batches in flight: asked for in any order, they are each its own."""
    ranks = made(echo)
    pending = [ranks.call("step", number, only=1) for number in range(20)]
    assert [one.result()[1][2] for one in reversed(pending)] == list(reversed(range(20)))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.sampled_from(["all", "one"]), st.booleans()), max_size=12))
def test_any_mix_of_calls_and_waits(plan: list[tuple[str, bool]]) -> None:
    ranks = Ranks(2, echo)
    waiting = []
    for number, (kind, now) in enumerate(plan):
        pending = ranks.call("step", number, only=1 if kind == "one" else None)
        if now:
            assert pending.result()[1] == (1, "step", number)
        else:
            waiting.append((number, pending))
    for number, pending in waiting:
        assert pending.result()[1] == (1, "step", number)
    ranks.board.close()
    assert [worker.ended.get() for worker in ranks.workers] == [(), ()]


def test_an_error_that_is_the_callers_leaves_the_rest_alone(made: Callable[..., Ranks]) -> None:
    def do(rank: int, method: str, *args: Any) -> Any:
        if method == "add_lora" and rank == 1:
            raise FileNotFoundError("no adapter")
        return echo(rank, method, *args)

    ranks = made(do)
    with pytest.raises(RankError, match="rank 1 failed in add_lora: FileNotFoundError: no adapter"):
        ranks.call("add_lora").result()
    assert ranks.call("step", 1).result()[2] == (2, "step", 1)
    assert not ranks.failed.is_set()


def test_what_has_no_answer_is_done_before_what_follows(made: Callable[..., Ranks]) -> None:
    ranks = made(echo)
    for number in range(5):
        ranks.board.tell("execute_model", (number,))
    assert ranks.call("sample_tokens", only=2).result() == {2: (2, "sample_tokens")}
    assert ranks.call("check", finish=len).result() == 3
    for worker in ranks.workers:
        assert worker.calls == ["execute_model"] * 5 + ["sample_tokens", "check"]


def test_an_error_in_what_has_no_answer_is_told_to_who_waits_next(made: Callable[..., Ranks]) -> None:
    def do(rank: int, method: str, *args: Any) -> Any:
        if method == "execute_model" and rank == 1:
            raise ValueError("no such block")
        if rank != 1:
            time.sleep(20)  # as in a collective that rank 1 will never join

    ranks = made(do)
    ranks.board.tell("execute_model", ("step",))
    with pytest.raises(LockstepError, match="rank 1 failed in execute_model: ValueError: no such block"):
        ranks.call("sample_tokens", only=0, vital=True).result()
    with pytest.raises(LockstepError, match="no such block"):
        ranks.board.tell("execute_model", ("step",))


def test_a_call_that_several_ranks_refuse_is_refused_once(made: Callable[..., Ranks]) -> None:
    def do(rank: int, method: str, *args: Any) -> Any:
        if method == "add_lora":
            raise FileNotFoundError("no adapter")
        return echo(rank, method, *args)

    ranks = made(do)
    for number in range(3):
        with pytest.raises(RankError, match="failed in add_lora"):
            ranks.call("add_lora").result()
        assert ranks.call("step", number).result()[0] == (0, "step", number)
    assert ranks.board.failure is None


def test_an_error_after_the_answer_that_mattered_still_ends_it(made: Callable[..., Ranks]) -> None:
    """Rank 0 has answered the step; rank 1 then fails in it, while nobody waits for it any more."""
    late = threading.Event()

    def do(rank: int, method: str, *args: Any) -> Any:
        if rank == 1 and method == "step":
            late.wait(5)
            raise ValueError("diverged")
        return method

    ranks = made(do)
    assert ranks.call("step", only=0, vital=True).result() == {0: "step"}
    late.set()
    with pytest.raises(LockstepError, match="rank 1 failed in a call: ValueError: diverged"):
        ranks.call("next").result()


def test_an_error_in_a_step_ends_it_even_from_a_rank_that_owes_no_answer(made: Callable[..., Ranks]) -> None:
    def do(rank: int, method: str, *args: Any) -> Any:
        if rank == 2:
            raise MemoryError("out of KV cache")
        time.sleep(30)

    ranks = made(do)
    begun = time.monotonic()
    with pytest.raises(LockstepError, match="rank 2 failed in step: MemoryError: out of KV cache"):
        ranks.call("step", only=0, vital=True).result()
    assert time.monotonic() - begun < 5
    assert ranks.failed.is_set()
    with pytest.raises(LockstepError, match="out of KV cache"):
        ranks.call("step")
    assert "out of KV cache" in ranks.workers[2].ended.get()[0]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_ends_while_idle_is_noticed_at_once(made: Callable[..., Ranks], victim: int) -> None:
    ranks = made(echo)
    ranks.call("step").result()
    ranks.workers[victim].link.close()
    assert ranks.failed.wait(2)
    with pytest.raises(LockstepError, match=f"rank {victim} closed the connection"):
        ranks.board.check()


def test_a_rank_that_ends_in_a_step_is_named_to_who_waits(made: Callable[..., Ranks]) -> None:
    def do(rank: int, method: str, *args: Any) -> Any:
        if rank == 1:
            ranks.workers[1].link.close()
        time.sleep(30)

    ranks = made(do)
    with pytest.raises(LockstepError, match="rank 1 closed the connection"):
        ranks.call("step", only=0, vital=True).result()


def test_the_reason_a_rank_gave_goes_before_its_end(made: Callable[..., Ranks]) -> None:
    """It says what went wrong and dies: the first of both counts, though both are there to be read."""
    ranks = made(echo)
    worker = ranks.workers[1]
    with ranks.board._lock:  # nobody reads in between
        worker.answer(99, False, "CUDA error: device-side assert")
        worker.link.close()
    assert ranks.failed.wait(2)
    assert "device-side assert" in str(ranks.board.failure)


def test_a_deadline_names_who_is_silent(made: Callable[..., Ranks]) -> None:
    def do(rank: int, method: str, *args: Any) -> Any:
        if rank:
            time.sleep(20)

    ranks = made(do)
    with pytest.raises(LockstepError, match=r"rank 1 and rank 2 did not answer execute_model within 1 s"):
        ranks.board.call("execute_model", limit=0.6).result()
    assert ranks.failed.is_set()


def test_a_callers_patience_ends_only_the_call(made: Callable[..., Ranks]) -> None:
    go = threading.Event()

    def do(rank: int, method: str, *args: Any) -> Any:
        if method == "slow":
            go.wait(5)
        return method

    ranks = made(do)
    with pytest.raises(TimeoutError, match=r"slow took longer than 0\.2 s"):
        ranks.call("slow").result(timeout=0.2)
    go.set()
    assert ranks.call("next").result() == dict.fromkeys(range(3), "next")


def test_an_altered_answer_is_never_unpickled(made: Callable[..., Ranks]) -> None:
    ranks = made(echo)
    Trap.sprung = False
    payload = pickle.dumps((1, True, Trap()))
    impostor = Link(ranks.workers[1].link.sock, os.urandom(32), os.urandom(32), "rank 0")
    impostor.send(Frame.of(payload))
    with pytest.raises(LockstepError, match="frame 0 from rank 1 is not authentic"):
        ranks.call("step").result()
    assert not Trap.sprung
    assert pickle.loads(payload)[2] is None  # the trap works
    assert Trap.sprung


def test_orderly_end(made: Callable[..., Ranks]) -> None:
    ranks = made(echo)
    ranks.call("step").result()
    ranks.board.close()
    assert [worker.ended.get() for worker in ranks.workers] == [()] * 3
    assert not ranks.failed.is_set()
    with pytest.raises(LockstepError, match="was stopped"):
        ranks.call("step")
    ranks.board.close()


def test_who_waits_while_it_is_closed_is_told(made: Callable[..., Ranks]) -> None:
    ranks = made(lambda *_: time.sleep(30))
    waiting = Outcome(ranks.call("step").result)
    time.sleep(0.2)
    ranks.board.close()
    with pytest.raises(LockstepError, match="was stopped"):
        waiting.get()


def test_one_failure_is_told_once_and_later_callbacks_at_once(made: Callable[..., Ranks]) -> None:
    ranks = made(echo)
    ranks.board.fail("first")
    ranks.board.fail("second")
    assert ranks.board.failure == "first"
    later = threading.Event()
    ranks.board.on_failure(later.set)
    assert later.is_set()
    for worker in ranks.workers:
        assert worker.ended.get() == ("first",)
        with pytest.raises(ClosedError):
            worker.link.receive()


def test_a_result_that_cannot_be_made_is_the_callers_error(made: Callable[..., Ranks]) -> None:
    ranks = made(echo)
    with pytest.raises(ZeroDivisionError):
        ranks.call("step", finish=lambda _: 1 / 0).result()
    assert ranks.call("step").result()[0] == (0, "step")


def test_a_rank_that_ends_is_the_cause_of_another_s_error(made: Callable[..., Ranks]) -> None:
    """Its neighbours' collectives break at once, and they say so before its link is seen to be closed."""

    def broken(rank: int, method: str) -> None:
        if rank == 1:
            threading.Timer(0.1, ranks.workers[2].link.close).start()
            raise RuntimeError("connection closed by peer")
        time.sleep(1)

    ranks = made(broken)
    with pytest.raises(LockstepError, match=r"rank 2 closed the connection.*rank 1 failed in step: .*peer"):
        ranks.call("step", only=0, vital=True).result()
