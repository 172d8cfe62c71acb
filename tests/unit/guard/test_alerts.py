"""Alerts: each kind has readings that raise it and some that must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glmspark.guard.alerts import Alert, Readings, Watch, lasting, observe, still_s
from glmspark.guard.engine_metrics import Engine
from glmspark.guard.gpu import Gpu
from glmspark.guard.kernel_log import KINDS, Event
from glmspark.guard.links import Link
from tests.unit.guard.spark import GIB, LIMITS, MEMORY, deployed

SPINNING = Gpu(0, 96.0, 20.4, 2411.0, 51.0, None, None)
WORKING = Gpu(0, 96.0, 62.0, 2411.0, 60.0, None, None)
UP, DOWN = Link(1, 1, {}, True), Link(1, 1, {}, False)


def raised(*looks: dict[str, Any], every: float = 5.0) -> list[list[str]]:
    """The kinds of alerts after each look."""
    watch, found = Watch(), []
    for number, look in enumerate(looks):
        at = number * every
        more = {"memory": MEMORY, "level": "ok"} | look
        watch, alerts = observe(watch, Readings(now=at, time=1000 + at, **more))
        found.append([one.kind for one in alerts])
    return found


def serving(**engine: float | None) -> dict[str, Any]:
    return {"deployments": [deployed()], "engines": {"glm": Engine(**engine)}}


def test_nothing_alarms_on_a_healthy_node() -> None:
    looks = [serving(running=2, steps=float(step)) | {"gpus": [WORKING]} for step in range(40)]
    links = {"enp1s0f0np0": UP, "enp1s0f1np1": Link(0, 0, {}, None)}
    disks = {"/": (500 * GIB, 3700 * GIB)}
    assert raised(*(one | {"links": links, "fabric": ("enp1s0f0np0",), "disks": disks} for one in looks)) == [
        []
    ] * len(looks)


def test_levels_of_memory() -> None:
    assert raised({"level": "low"}, {"level": "critical"}) == [["memory-low"], ["memory-critical"]]


def test_events_of_the_kernel_last_ten_minutes() -> None:
    for kind in KINDS:
        event = {"events": [Event(kind, 1.0, "the line")]}
        assert raised(event, {}, {}, every=301) == [[kind], [kind], []]


def test_a_stall_is_requests_without_steps() -> None:
    still = serving(running=1, steps=7.0)
    found = raised(*[still] * 14)
    assert found[11] == []
    assert found[12] == ["stall"]
    idle = serving(running=0, waiting=0, steps=7.0)
    assert raised(*[idle] * 20)[-1] == []
    # A long prompt makes steps without a token.
    slow = [serving(running=1, tokens=5.0, steps=float(step)) for step in range(20)]
    assert raised(*slow)[-1] == []
    # Idle for long, then busy: the clock starts with the request.
    assert raised(*[idle] * 30, *[still] * 3)[-1] == []


def test_steps_that_move_again_end_it() -> None:
    still, moved = serving(running=1, steps=7.0), serving(running=1, steps=8.0)
    assert raised(*[still] * 14, moved, moved)[-2:] == [[], []]


def test_still_seconds() -> None:
    watch = Watch(steps={"glm": (7.0, 100.0)})
    assert still_s(watch, "glm", 130.0) == 30.0
    assert still_s(watch, "other", 130.0) == 0.0


def test_a_gpu_that_only_waits() -> None:
    elsewhere = {"deployments": [deployed(rank=1)], "gpus": [SPINNING]}  # a rank without the API
    assert raised(*[elsewhere] * 8)[-1] == ["gpu-spin"]
    assert raised(*[elsewhere] * 5)[-1] == []
    assert raised(*[elsewhere | {"gpus": [WORKING]}] * 8)[-1] == []
    assert raised(*[elsewhere | {"deployments": [deployed("loading")]}] * 8)[-1] == []
    head = [serving(running=1, steps=float(step)) | {"gpus": [SPINNING]} for step in range(10)]
    assert raised(*head)[-1] == []  # low power, but steps are made


def test_an_api_that_does_not_answer() -> None:
    silent = {"deployments": [deployed()], "engines": {"glm": None}}
    found = raised(*[silent] * 5)
    assert found[2] == []
    assert found[3] == ["api-silent"]
    assert raised(*[silent] * 5, serving(running=0))[-1] == []


def test_ranks_that_were_stopped() -> None:
    one = deployed()
    halted = replace(one, family=(replace(one.family[0], state="T"),))
    assert raised({"deployments": [halted]}) == [["rank-halted"]]


def test_links() -> None:
    fabric = {"fabric": ("f0",)}
    assert raised({"links": {"f0": DOWN}, **fabric}) == [["link-down"]]
    assert raised({"links": {"f0": Link(0, 0, {}, None)}, **fabric}) == [["link-down"]]
    assert raised({"links": {"eth9": DOWN}}) == [[]]  # nothing was ever plugged in there
    assert raised({"links": {"eth9": UP}}, {"links": {"eth9": DOWN}})[-1] == ["link-down"]
    few, many = Link(1, 1, {"rx_crc_errors": 50}, True), Link(1, 1, {"rx_crc_errors": 500}, True)
    assert raised({"links": {"f0": UP}}, {"links": {"f0": few}})[-1] == []
    assert raised({"links": {"f0": UP}}, {"links": {"f0": many}})[-1] == ["link-errors"]
    assert raised({"links": {"f0": many}})[-1] == []  # from before this guard


def test_disks_and_blindness() -> None:
    assert raised({"disks": {"/": (GIB, 100 * GIB)}}) == [["disk-low"]]
    assert raised({"disks": {"/boot": (GIB, 2 * GIB)}}) == [[]]
    assert raised({"blind": {"GPU": "nvidia-smi ended"}}) == [["guard-blind"]]
    nonsense = deployed(thresholds=replace(LIMITS, problem="guard.json is not of version 1"))
    assert raised({"deployments": [nonsense]}) == [["guard-blind"]]


def test_an_alert_keeps_the_time_it_came() -> None:
    first = Alert("disk-low", 10.0, "1 GiB", {"of": "/"})
    later, other = (
        replace(first, since=20.0, what="0.9 GiB"),
        replace(first, since=20.0, reading={"of": "/a"}),
    )
    assert [(one.since, one.what) for one in lasting([first], [later, other])] == [
        (10.0, "0.9 GiB"),
        (20.0, "1 GiB"),
    ]
    assert "deployment" not in first.to_json()
