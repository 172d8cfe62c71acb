"""`glmspark status`: what runs, how well, and why it does not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, complete_deployment, duration, print_json
from glmspark.cli.nodes import OnCluster, waiting

if TYPE_CHECKING:
    from rich.console import Console

    from glmspark.launch.record import Home
    from glmspark.launch.status import Status


def status(
    name: Annotated[
        str | None,
        typer.Argument(help="Deployment; all of them if not given.", autocompletion=complete_deployment),
    ] = None,
    cluster: OnCluster = None,
    as_json: AsJson = False,
) -> None:
    """Show deployments: ranks, memory, uptime, tokens a second, requests running and waiting.

    A deployment that failed says which rank ended, how, and what its log said first. Of one on a cluster the
    nodes are asked, those that this machine's record names or those of the cluster file.

    Example: [bold]glmspark status --json[/bold]

    Exit codes: 0 ready, 1 failed or not answering, 3 not running or not ready yet.
    """
    from glmspark.errors import GlmsparkError, UsageError

    found: list[Status] = []
    unreadable: list[GlmsparkError] = []
    for look in _looks(name, cluster):
        try:
            found += look()
        except GlmsparkError as error:  # told after the others
            unreadable.append(error)
    if unreadable and not found:
        raise unreadable[0]
    if name is not None and not found:
        raise UsageError(f"there is no deployment {name}", next="`glmspark status` shows them all")
    if as_json:
        print_json(
            [one.to_json() for one in found]
            + [{"state": "unreadable", **error.to_json()} for error in unreadable]
        )
        raise typer.Exit(1 if unreadable else _exit_code(found))
    if not found:
        print("nothing runs; `glmspark up` serves glm-tiny here")
    else:
        for number, one in enumerate(found):
            if number:
                print()
            _print(one)
    if unreadable:
        raise unreadable[0]
    raise typer.Exit(_exit_code(found))


def _looks(name: str | None, cluster: Path | None) -> Iterator[Callable[[], list[Status]]]:
    """What to call for the status of each deployment meant."""
    from glmspark.launch.cluster_status import recorded
    from glmspark.launch.record import home, homes
    from glmspark.launch.status import look

    if cluster is not None:
        yield lambda: _look_at(name, cluster)
        return
    for place in [home(name)] if name is not None else list(homes()):

        def one(place: Home = place) -> list[Status]:
            deployment = place.read()
            if deployment is not None and deployment.cluster is not None:
                # What has ended in order is history: its nodes are asked only where it is named.
                if name is None and deployment.state.over:
                    return [recorded(deployment, str(place.path))]
                return _look_at(place.name, None)
            known = look(place)
            return [] if known is None else [known]

        yield one


def _look_at(name: str | None, cluster: Path | None) -> list[Status]:
    import asyncio

    from glmspark.launch.cluster_ops import find
    from glmspark.launch.cluster_status import look_at

    place = find(name, cluster)
    assert place is not None  # noqa: S101 - the caller looked
    with waiting(f"asking {', '.join(place.nodes)}"):
        return asyncio.run(look_at(place))


def _exit_code(found: list[Status]) -> int:
    """The worst of all: a failure before what is merely not ready. Stopped ones count only alone."""
    if not found:
        return 3
    live = [one for one in found if one.state != "stopped"] or found
    codes = {one.exit_code for one in live}
    return 1 if 1 in codes else max(codes)


def _print(one: Status) -> None:
    from rich.console import Console
    from rich.table import Table

    from glmspark.config.units import format_size

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    colour = {
        "ready": "green",
        "starting": "cyan",
        "restarting": "yellow",
        "waiting": "yellow",
        "stopping": "cyan",
        "stopped": "dim",
    }.get(one.state, "bold red")
    uptime = f" for {duration(one.uptime)}" if one.uptime is not None else ""
    console.print(
        f"[bold]{one.name}[/bold]  [{colour}]{one.state}[/{colour}]{uptime}  {one.endpoint}  {one.model}"
    )
    if one.state == "lost":
        console.print("  nobody answers for it; `glmspark down` cleans up, `glmspark up` starts it again")
    if one.state not in ("stopped", "failed"):
        table = Table(box=None, pad_edge=False)
        for title in ("  rank", "node", "pid", "processes", "memory", "doing"):
            table.add_column(title, justify="right" if title in ("pid", "memory") else "left")
        for rank in one.ranks:
            titles = ", ".join(title.removeprefix("VLLM::") for title in rank.processes)
            pid = str(rank.pid) if rank.alive else "-"
            table.add_row(
                f"  {rank.rank if rank.rank >= 0 else '?'}",
                *(rank.node, pid, titles or "-", format_size(rank.memory), rank.phase),
            )
        console.print(table)
    if one.load is not None:
        load = one.load
        console.print(
            f"  requests: {_count(load.running)} running, {_count(load.waiting)} waiting, "
            f"{_count(load.finished)} finished; {_rate(load.tokens_per_second)} tokens/s; "
            f"KV cache {_share(load.kv_usage)} used"
        )
    if one.forecast is not None:
        _print_forecast(console, one.forecast)
    for rank in one.ranks:
        if rank.stopped:
            console.print(f"  [bold red]rank {rank.rank} is halted[/bold red]: {', '.join(rank.stopped)}")
            console.print("  next: `kill -CONT` with that pid lets it go on; or `glmspark down`")
    if one.uptime is not None and one.load is None:
        console.print(f"  [bold red]{one.endpoint} does not answer[/bold red] about its requests")
    if one.reason is not None:
        _print_reason(one)
    if one.admission is not None and not one.admission["open"]:
        console.print(f"  [bold yellow]no new work is taken[/bold yellow]: {one.admission['why']}")
    for restart in one.restarts[-3:]:
        took = f"back after {duration(restart['seconds'])}" if restart.get("seconds") else "not back yet"
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(restart["at"]))
        console.print(f"  restarted {at}, {took}: {restart['cause']['what']}", markup=False)
    for node, place in one.evidence.items():
        console.print(f"  evidence  {node}:{place}", markup=False)


def _print_forecast(console: Console, forecast: dict[str, Any]) -> None:
    """Measured beside predicted speed, and the likeliest cause where they part."""
    low, high, verdict = forecast["low"], forecast["high"], forecast["verdict"]
    colour = "bold red" if verdict == "slower" else "green"
    console.print(
        f"  speed: {forecast['measured']:.1f} tokens/s, predicted {low:.1f} to {high:.1f} for "
        f"{forecast['streams']} at once: [{colour}]{verdict}[/{colour}]"
    )
    if forecast["cause"]:
        likely = "because" if forecast["proven"] else "likely because"
        console.print(f"    {likely} {forecast['cause']}; {forecast['next']}")


def _print_reason(one: Status) -> None:
    reason = one.reason or {}
    print(f"  why:  {reason['what']}")
    if reason.get("seen"):
        print("  seen: " + str(reason["seen"]).strip().replace("\n", "\n        "))
    if reason.get("next"):
        print(f"  next: {reason['next']}")


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def _rate(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.1f} %"
