"""Ctrl-C during a restart on nodes: what is said is how far it was."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glmspark.launch import restart
from glmspark.launch.cluster_ops import Place
from glmspark.launch.record import ClusterSite, Deployment, Reason, home
from glmspark.launch.up import CancelledError
from tests.unit.launch.starts import make_start


class Quiet:
    """Watches without a word."""

    def update(self, *_: object) -> None:
        return

    def note(self, _: str) -> None:
        return


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A deployment of two nodes that both answer, and have what it takes to start it again."""
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path))
    start = make_start("one", "serves", "serves")
    start.cluster = ClusterSite(cluster={}, directories={})
    where = home("one")
    where.prepare()
    where.write(start)
    fleet = SimpleNamespace(lost={}, nodes={"here": None})

    @contextlib.asynccontextmanager
    async def reached(_: Place) -> AsyncIterator[Any]:
        yield fleet

    async def states(*_: object) -> dict[str, Any]:
        return {"one": {"here": {"restartable": True}}}

    monkeypatch.setattr(Place, "reached", reached)
    monkeypatch.setattr(restart, "states_by_name", states)
    monkeypatch.setattr(restart, "record_of", lambda *_: start)
    return Place(SimpleNamespace(), ("here",), "one", where, start)  # type: ignore[arg-type]


async def interrupt() -> None:
    """As from the keyboard; asyncio hears of it at once."""
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(30)


def interrupted(place: Place) -> CancelledError:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(CancelledError) as caught:
            restart.restart_on_nodes(place, Quiet())
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.value.exit_code == 130
    return caught.value


def test_before_anything_is_done(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "the_one", lambda *_: interrupt())
    assert interrupted(place).message == "interrupted before anything was done: one is as it was"


class Agents:
    """Stops at once, unless told to be interrupted then."""

    hangs = False

    def __init__(self, *_: object) -> None:
        return

    async def stop(self, *, keep: bool) -> dict[str, Any]:
        if self.hangs:
            await interrupt()
        return {}

    async def start_again(self) -> None:
        return


def test_while_it_is_stopped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "Agents", Agents)
    monkeypatch.setattr(Agents, "hangs", True)
    error = interrupted(place)
    assert error.message.startswith("interrupted while one was being stopped")
    assert "`glmspark status one`" in str(error.next)


@pytest.mark.parametrize("left", [None, "it was interrupted, and not all of it could be stopped from here"])
def test_while_it_starts_again(place: Place, monkeypatch: pytest.MonkeyPatch, left: str | None) -> None:
    class Starter:
        """Is interrupted; what it could not stop then is in the record."""

        def __init__(self, deployment: Deployment, *_: object, **__: object) -> None:
            self.deployment = deployment

        async def run(self, _: object) -> None:
            try:
                await interrupt()
            finally:
                if left is not None:
                    self.deployment.reason = Reason(what=left, at=1.0)

    monkeypatch.setattr(restart, "Agents", Agents)
    monkeypatch.setattr(restart, "Starter", Starter)
    error = interrupted(place)
    wanted = f"one: {left}" if left else "interrupted: one was stopped while it started again"
    assert error.message == wanted
