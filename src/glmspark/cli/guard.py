"""`glmspark guard`: what the guard of each node sees, and what it did."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glmspark.nodes.guards import Seen
    from glmspark.nodes.ssh import Address
    from glmspark.nodes.transport import NodeError

_STYLES = {"ok": "green", "low": "yellow", "critical": "bold red"}


def guard(
    hosts: Annotated[
        list[str] | None,
        typer.Argument(metavar="HOST", help="Nodes as \\[user@]host[:port]; this machine if none is given."),
    ] = None,
    cluster: Annotated[Path | None, typer.Option("--cluster", help="Nodes from a cluster file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what each node's guard sees: memory, phase, alerts, and what it did.

    `glmspark tune apply --only guard` installs it. Exit code 1 where one does not run.

    Example: [bold]glmspark guard --cluster cluster.yaml[/bold]
    """
    import asyncio

    from glmspark.cli.nodes import waiting, where
    from glmspark.nodes.guards import telling
    from glmspark.nodes.transport import NodeError

    _, addresses = where(hosts, cluster)
    with waiting("asking the guards"):
        results = asyncio.run(_ask(addresses))
    lost = {name: one for name, one in results.items() if isinstance(one, NodeError)}
    found = {name: one for name, one in results.items() if not isinstance(one, NodeError)}
    if as_json:
        print_json(
            {
                "guards": {name: telling(one) for name, one in found.items()},
                "errors": [error.to_json() for error in lost.values()],
            }
        )
    else:
        _show(found)
        _complain(lost)
    if lost or not all(one.runs for one in found.values()):
        raise typer.Exit(1)


async def _ask(addresses: Mapping[str, Address | None]) -> dict[str, Seen | NodeError]:
    from glmspark.nodes.fleet import Fleet
    from glmspark.nodes.guards import SEEN
    from glmspark.nodes.node import Node
    from glmspark.nodes.survey import survey
    from glmspark.nodes.transport import NodeError

    async def one(node: Node) -> Seen:
        facts = await survey(node, (SEEN,))
        seen = facts.get(SEEN)
        if seen is None:
            raise NodeError("the guard's state cannot be read", host=node.host, seen=facts.problem(SEEN))
        return seen

    async with Fleet(addresses) as fleet:
        found = await fleet.each(one)
        return {name: fleet.lost[name] if name in fleet.lost else found[name] for name in addresses}


def _show(found: Mapping[str, Seen]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from glmspark.cli.console import duration

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("node", "guard", "phase", "memory", "free", "available", "2 MiB blocks", "alerts"):
        table.add_column(title, overflow="fold")
    for name, seen in found.items():
        if not seen.runs or seen.state is None:
            said = "does not run" if seen.age is None else f"silent for {duration(seen.age)}"
            table.add_row(name, Text(said, style="bold red"))
            continue
        state = seen.state
        memory = state["readings"].get("memory") or {}
        sizes = [_size(memory.get(kind)) for kind in ("free", "available", "huge_free")]
        level = str(state["level"])
        alerts = ", ".join(sorted({str(one["kind"]) for one in state["alerts"]})) or "none"
        styled = Text(level, style=_STYLES.get(level, ""))
        table.add_row(name, str(state["guard"]), str(state["phase"]), styled, *sizes, alerts)
    console = Console(highlight=False)
    console.print(table)
    for name, seen in found.items():
        for line in _details(seen.state or {}) if seen.runs else ():
            console.print(Text(f"{name}: {line}"), soft_wrap=True)


def _details(state: Mapping[str, Any]) -> list[str]:
    """Alerts and actions in words."""
    import time

    lines = [f"{one['kind']}: {one['what']}" for one in state["alerts"]]
    for one in state["actions"]:
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(one["time"]))
        of = f" {one['deployment']}" if one.get("deployment") else ""
        lines.append(f"{at} {one['action']}{of}: {one['why']}: {one['result']}")
    return lines


def _size(count: int | None) -> str:
    from glmspark.config.units import format_size

    return "" if count is None else format_size(count)


def _complain(lost: Mapping[str, NodeError]) -> None:
    from glmspark.cli.console import wants_colour
    from glmspark.errors import error_block

    for error in lost.values():
        print(error_block(error, colour=wants_colour(sys.stderr)), file=sys.stderr)
