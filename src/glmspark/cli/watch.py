"""`glmspark watch`: a deployment and its nodes, as they go on."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmspark.cli.console import complete_deployment, wants_colour
from glmspark.cli.nodes import OnCluster

if TYPE_CHECKING:
    from glmspark.launch.cluster_ops import Place
    from glmspark.launch.monitor import Monitor
    from glmspark.launch.record import Home

_FIRST = 20.0  # seconds to wait for all parts before something is shown


def watch(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="DEPLOYMENT",
            help="Deployment; the only one if not given.",
            autocompletion=complete_deployment,
        ),
    ] = None,
    cluster: OnCluster = None,
    every: Annotated[
        float,
        typer.Option(
            "--interval", "-n", metavar="SECONDS", min=0.5, max=3600, help="Time between two looks."
        ),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One look, then stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each look.")] = False,
) -> None:
    """Watch nodes and ranks: memory by class, tokens a second, requests, drafts, fabric, GPU, alerts.

    On a terminal a table that goes on until Ctrl-C, elsewhere a line for each look. What the guard tells
    (alerts, fabric, GPU) needs it on the nodes: `glmspark tune apply`.

    Example: [bold]glmspark watch --interval 5[/bold]
    """
    import asyncio

    from glmspark.launch.monitor import Monitor

    chosen, home, place = _which(name, cluster)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watch(Monitor(chosen, home, place, every=every), every, once=once, as_json=as_json))


def _which(name: str | None, cluster: Path | None) -> tuple[str | None, Home | None, Place | None]:
    from glmspark.launch.cluster_ops import find, place_of
    from glmspark.launch.status import pick

    if cluster is not None:
        place = find(name, cluster)
        return name, None if place is None else place.home, place
    home = pick(name)
    return home.name, home, place_of(home, home.read())


async def _watch(monitor: Monitor, every: float, *, once: bool, as_json: bool) -> None:
    async with monitor:
        if once or as_json or not wants_colour(sys.stdout):
            await monitor.first(_FIRST)
            await _lines(monitor, every, once=once, as_json=as_json)
        else:
            await _table(monitor)


async def _lines(monitor: Monitor, every: float, *, once: bool, as_json: bool) -> None:
    import asyncio

    from glmspark.cli.watch_view import line

    while True:
        view = monitor.view()
        told = json.dumps(view.to_json(), ensure_ascii=False) if as_json else line(view, time.monotonic())
        sys.stdout.write(told + "\n")
        sys.stdout.flush()
        if once:
            return
        await asyncio.sleep(every)


async def _table(monitor: Monitor) -> None:
    import asyncio

    from rich.console import Console
    from rich.live import Live

    from glmspark.cli.watch_view import render

    console = Console(file=sys.stdout, highlight=False)
    with Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        while True:
            live.update(render(monitor.view(), console.width, time.monotonic()), refresh=True)
            await asyncio.sleep(0.5)
