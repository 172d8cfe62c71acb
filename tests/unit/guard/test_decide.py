"""Decisions: which readings lead to which actions, in which phase, and that a moment changes nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from glmspark.guard.alerts import Readings, Watch, observe
from glmspark.guard.decide import Action, History, Seen, decide, pace, raw_level, strictest
from glmspark.guard.deployments import Deployed
from glmspark.guard.engine_metrics import Engine
from glmspark.guard.gpu import Gpu
from glmspark.guard.links import Link
from glmspark.guard.memory import Memory
from tests.unit.guard.spark import GIB, LIMITS, TOTAL, deployed, memory

FINE = memory()
LOW = memory(free=3, available=3.5)
CRITICAL = memory(free=1, available=1.5)


class Clock:
    """Looks four times a second at what is given, and keeps what was done."""

    def __init__(self, *deployments: Deployed, unified: bool = False) -> None:
        self.now, self.history = 100.0, History()
        self.deployments: Sequence[Deployed] = deployments
        self.unified = unified

    def look(self, seen: Memory, seconds: float = 0.25, *, refusals: int = 0) -> list[Action]:
        done = []
        for number in range(max(1, round(seconds * 4))):
            self.now += 0.25
            refused = refusals if number == 0 else 0
            what = Seen(self.now, seen, self.deployments, refused, self.unified)
            self.history, actions = decide(self.history, what)
            done += actions
        return done


def kinds(actions: list[Action]) -> list[str]:
    return [one.kind for one in actions]


def test_a_healthy_node_is_left_alone_in_every_phase() -> None:
    for phase in ("idle", "stopping", "serving"):
        assert Clock(deployed(phase), unified=True).look(FINE, 30) == []
    # A page cache that fills all of memory is none of a serving node's worries.
    full = memory(free=0.7, available=100, page_cache=99)
    assert Clock(deployed("serving"), unified=True).look(full, 30) == []


def test_new_work_stops_at_the_first_threshold_and_comes_back() -> None:
    clock = Clock(deployed())
    assert clock.look(LOW, 1.5) == []  # a moment
    (closed,) = clock.look(LOW, 1.0)
    assert (closed.kind, closed.deployment) == ("close-admission", "glm")
    assert closed.reading["available"] == LOW.available
    assert closed.reading["low"] == LIMITS.low
    again = clock.look(LOW, 21)
    assert kinds(again) == ["close-admission"] * 2
    assert all(one.quiet for one in again)
    # Just above the threshold is not out of it.
    assert all(one.quiet for one in clock.look(memory(free=4, available=4.2), 30))
    assert all(one.quiet for one in clock.look(FINE, 9))
    assert kinds(clock.look(FINE, 2)) == ["open-admission"]
    assert clock.look(FINE, 30) == []


def test_the_deployment_stops_at_the_second_threshold_once() -> None:
    clock = Clock(deployed(resident=GIB, name="small"), deployed(resident=9 * GIB, name="large"))
    assert clock.look(CRITICAL, 0.5) == []
    stops = [one for one in clock.look(CRITICAL, 3) if one.kind == "stop"]
    assert [one.deployment for one in stops] == ["large"]
    assert "memory is critical" in stops[0].why
    # The other only if the first stop did not help within its time.
    assert [one.deployment for one in clock.look(CRITICAL, 16) if one.kind == "stop"] == ["small"]
    # An agent that does not stop is told again, at its time.
    assert [one.deployment for one in clock.look(CRITICAL, 31) if one.kind == "stop"] == ["large", "large"]


def test_a_stop_that_helped_is_the_last() -> None:
    clock = Clock(deployed(name="one"), deployed(name="two", resident=2 * GIB))
    assert [one.deployment for one in clock.look(CRITICAL, 1.5) if one.kind == "stop"] == ["two"]
    clock.deployments = (deployed(name="one"), deployed("idle", "two"))
    assert [one for one in clock.look(FINE, 60) if one.kind == "stop"] == []


def test_free_memory_counts_where_it_is_missed() -> None:
    def level(*, unified: bool = True, refused: bool = False, **more: float) -> str:
        return raw_level(
            memory(**{"free": 1, "available": 30, **more}), LIMITS, unified=unified, refused=refused
        )

    assert level() == "ok"
    assert level(psi_some=15) == "low"
    assert level(psi_full=25) == "critical"
    assert level(swap_out=2**27) == "critical"
    assert level(refused=True) == "critical"
    assert level(free=20, available=24, refused=True) == "ok"  # a refusal with 20 GiB free is another matter
    # A GPU with memory of its own does not miss the host's.
    assert level(psi_full=25, unified=False) == "ok"
    assert level(available=1.5, unified=False) == "critical"


def test_a_refusal_of_the_driver_acts_at_once() -> None:
    clock = Clock(deployed())
    assert "stop" in kinds(clock.look(memory(free=3, available=30), refusals=1))
    calm = Clock(deployed())
    assert calm.look(FINE, 10, refusals=3) == []


def test_the_cache_is_dropped_when_the_load_needs_it() -> None:
    clock = Clock(deployed("loading"))
    # 90 GiB to come, 100 free: enough; the cache grows as the files are read, and then it is not.
    assert clock.look(memory(free=100, available=110, page_cache=10, huge_free=90), 5) == []
    actions = clock.look(memory(free=92, available=110, page_cache=18, huge_free=80))
    assert kinds(actions) == ["drop-page-cache"]
    assert actions[0].reading["load_left"] == 90 * GIB
    # Half is loaded: half is enough.
    half = memory(free=55, available=110, page_cache=10, huge_free=50)
    clock.look(half, 10)
    assert clock.look(half, 10) == []


def test_memory_is_compacted_where_it_lies_in_pieces() -> None:
    clock = Clock(deployed("loading"))
    actions = clock.look(memory(free=80, available=110, page_cache=18, huge_free=1))
    assert kinds(actions) == ["drop-page-cache", "compact"]


def test_drops_that_bring_little_become_rare() -> None:
    clock = Clock(deployed("loading"))
    stuck = memory(free=50, available=80, page_cache=30, huge_free=50)
    drops = kinds(clock.look(stuck, 300)).count("drop-page-cache")
    assert 4 <= drops <= 10


def test_nothing_is_dropped_while_serving_or_where_the_gpu_has_its_own_memory() -> None:
    short = memory(free=5, available=110, page_cache=105, huge_free=1)
    assert Clock(deployed("serving"), unified=True).look(short, 30) == []
    assert Clock(deployed("loading"), deployed("serving", "other"), unified=True).look(short, 30) == []
    own = deployed("loading", thresholds=strictest([], TOTAL))
    assert Clock(own, unified=False).look(short, 30) == []
    assert "drop-page-cache" in kinds(Clock(own, unified=True).look(short, 30))


def test_a_load_without_a_plan_keeps_8_gib_free() -> None:
    own = deployed("loading", thresholds=strictest([], TOTAL))
    assert Clock(own, unified=True).look(memory(free=9, available=110, page_cache=100), 10) == []
    assert kinds(
        Clock(own, unified=True).look(memory(free=7, available=110, page_cache=100, huge_free=7))
    ) == ["drop-page-cache"]


def test_a_load_that_a_drop_cannot_save_is_stopped() -> None:
    clock = Clock(deployed("loading"))
    short = memory(free=0.5, available=1, page_cache=3, huge_free=0.1)
    assert kinds(clock.look(short, 4.5)) == ["drop-page-cache", "compact"]
    assert "stop" in kinds(clock.look(short, 3))


def test_a_second_refusal_while_loading_stops() -> None:
    clock = Clock(deployed("loading"))
    short = memory(free=1, available=60, page_cache=58, huge_free=0.2)
    assert kinds(clock.look(short, refusals=1)) == ["drop-page-cache", "compact"]
    assert "stop" in kinds(clock.look(short, 8, refusals=1))


def test_the_pace() -> None:
    assert pace(History(), FINE, LIMITS, None) == 1.0
    assert pace(History(level="low"), FINE, LIMITS, None) == 0.25
    assert pace(History(), memory(available=7), LIMITS, None) == 0.25
    assert pace(History(), memory(available=14), LIMITS, memory(available=17)) == 0.25
    assert pace(History(), memory(available=14), LIMITS, memory(available=14.1)) == 1.0


@given(
    st.lists(
        st.tuples(st.floats(0, 121), st.floats(0, 121), st.floats(0, 100), st.integers(0, 1)), max_size=40
    ),
    st.sampled_from(["idle", "loading", "serving", "stopping"]),
)
def test_whatever_is_seen_actions_fit_the_phase(
    looks: list[tuple[float, float, float, int]], phase: str
) -> None:
    clock = Clock(deployed(phase), unified=True)
    done: list[Action] = []
    for free, available, psi, refusals in looks:
        done += clock.look(memory(free=free, available=available, psi_full=psi), 0.5, refusals=refusals)
    allowed = {
        "idle": set(),
        "stopping": set(),
        "loading": {"drop-page-cache", "compact", "stop"},
        "serving": {"close-admission", "open-admission", "stop"},
    }[phase]
    assert set(kinds(done)) <= allowed
    assert kinds(done).count("stop") <= 1 + len(looks) * 0.5 / 15


def test_two_hours_of_healthy_load_lead_to_nothing() -> None:
    """A look every two seconds: the page cache comes and goes, memory swings, the kernel reclaims."""
    rng = random.Random(7)
    clock, watch = Clock(deployed(), unified=True), Watch()
    cache = 4.0
    for second in range(0, 7200, 2):
        cache = min(14.0, max(0.5, cache + rng.uniform(-1.5, 1.6)))
        held = 104 + rng.uniform(-1, 1)
        free = max(0.4, 121 - held - cache)
        seen = memory(
            free=free,
            available=free + cache * 0.9,
            page_cache=cache,
            psi_some=max(0.0, rng.gauss(0.5, 2)),
            swap_out=rng.choice([0, 0, 0, 300_000]),
        )
        clock.now += 1.75
        assert clock.look(seen) == []
        busy = second % 900 < 800
        engine = Engine(running=float(busy), steps=float(second - second % 20))  # a step takes up to 20 s
        gpu = Gpu(0, 96.0 if busy else 3.0, 60.0 if busy else 10.0, 2400.0, 60.0, None, None)
        link = Link(second, second, {"rx_crc_errors": second // 200}, True)
        looked = Readings(
            now=clock.now,
            time=clock.now,
            memory=seen,
            level=clock.history.level,
            deployments=clock.deployments,
            engines={"glm": engine},
            gpus=[gpu],
            links={"f0": link},
            fabric=("f0",),
            disks={"/": (500 * GIB, 3700 * GIB)},
        )
        watch, alerts = observe(watch, looked)
        assert alerts == []
