"""`glmspark logs` of a deployment on nodes."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from glmspark.cli.console import print_json, print_line

if TYPE_CHECKING:
    from glmspark.launch.agents import Agents, Event, Logged
    from glmspark.launch.cluster_ops import Place


def logs_of_cluster(
    place: Place, *, rank: int | None, lines: int, follow: bool, supervisor: bool, as_json: bool
) -> None:
    """Print the last lines of all ranks, or of one, in the order of their times; then go on if asked."""
    from glmspark.errors import UsageError

    if supervisor:
        raise UsageError(
            "a deployment on nodes has no supervisor here: its agents keep logs/agent.log on their nodes",
            next="`glmspark status` says why it ended",
        )
    if as_json and follow:
        raise UsageError("--json and --follow exclude each other", next="leave one of them out")
    asyncio.run(_logs(place, rank=rank, lines=lines, follow=follow, as_json=as_json))


async def _logs(place: Place, *, rank: int | None, lines: int, follow: bool, as_json: bool) -> None:
    from glmspark.launch.agents import Agents
    from glmspark.launch.cluster_ops import interleave, the_one

    async with place.reached() as fleet:
        agents = Agents(fleet, await the_one(place, fleet))
        logs = await _read(agents, rank, lines)
        if as_json:
            print_json(
                [
                    {"source": f"rank {one.rank}", "node": one.node, "lines": one.lines}
                    for one in sorted(logs, key=lambda one: one.rank)
                ]
            )
            return
        for one, line in interleave(logs):
            print_line(one.rank, f"rank {one.rank} {one.node}", line, alone=rank is not None)
        sys.stdout.flush()
        if follow:
            begin = {one.node: one.at for one in logs if one.at}
            async for event in agents.follow([one.node for one in logs], leash=False, lines=0, at=begin):
                _show(event, alone=rank is not None)
            print(f"{agents.name} does not run any more", file=sys.stderr)


async def _read(agents: Agents, rank: int | None, lines: int) -> list[Logged]:
    """The logs asked for; nodes that cannot be asked are said. Raises where nothing can be had."""
    from glmspark.errors import UsageError
    from glmspark.nodes.transport import NodeError

    found = await agents.logs(lines)
    errors = {**agents.fleet.lost, **{name: e for name, e in found.items() if isinstance(e, NodeError)}}
    logs = [one for one in found.values() if not isinstance(one, NodeError)]
    if not logs and errors:
        raise next(iter(errors.values()))
    if not logs:
        raise UsageError(
            f"these nodes know no deployment {agents.name}", next="`glmspark status` shows them all"
        )
    chosen = [one for one in logs if rank is None or one.rank == rank]
    if not chosen and not errors:
        known = ", ".join(str(one.rank) for one in logs)
        raise UsageError(f"{agents.name} has no rank {rank}", next=f"its ranks are {known}")
    if not chosen or rank is None:
        for name, error in errors.items():
            print(f"{name}: {error.message}", file=sys.stderr)
    return chosen


def _show(event: Event, *, alone: bool) -> None:
    if event.kind == "log":
        number = event.rank if event.rank is not None else 0
        print_line(number, f"rank {number} {event.node}", str(event.data["line"]), alone=alone)
        sys.stdout.flush()
    elif event.kind == "lost":
        print(f"{event.node}: {event.data['what']}", file=sys.stderr)
