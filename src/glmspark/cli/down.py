"""`glmspark down`: stop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, complete_deployment, print_json
from glmspark.cli.nodes import OnCluster

if TYPE_CHECKING:
    from glmspark.errors import GlmsparkError
    from glmspark.launch.agents import Stopped as StoppedRank
    from glmspark.launch.cluster_ops import Place
    from glmspark.launch.down import Stopped


def down(
    name: Annotated[
        str | None,
        typer.Argument(help="Deployment; the only one if not given.", autocompletion=complete_deployment),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop all deployments.")] = False,
    cluster: OnCluster = None,
    as_json: AsJson = False,
) -> None:
    """Stop a deployment: all its ranks, and what they left in memory and on disk.

    It also cleans up after one whose `up`, supervisor or agents were killed. Where nothing runs it says so
    and leaves with 0.

    Example: [bold]glmspark down[/bold]
    """
    from glmspark.launch.cluster_ops import find, place_of
    from glmspark.launch.down import stop
    from glmspark.launch.record import home

    done: list[dict[str, Any]] = []
    failed: list[GlmsparkError] = []
    if cluster is not None:
        place = find(name, cluster)
        assert place is not None  # noqa: S101 - a cluster file is a place
        for one in _names_on(place, everything):
            _stop_on_nodes(one, done, failed)
    else:
        for one_name in _names(name, everything):
            if sys.stderr.isatty():  # it may take some seconds
                print(f"stopping {one_name}", file=sys.stderr)
            where = home(one_name)
            known = place_of(where, _readable(where))
            if known is None:
                done.append(_data(stop(where)))
            else:
                _stop_on_nodes(known, done, failed)
    if as_json:
        print_json(done + [error.to_json() for error in failed])
    else:
        _print(done)
    if failed:
        if as_json:
            raise typer.Exit(failed[0].exit_code)
        raise failed[0]


def _print(done: list[dict[str, Any]]) -> None:
    if all(one["ending"] == "nothing to stop" for one in done):
        print("there is nothing to stop")
    for one in done:
        if one["ending"] != "nothing to stop":
            print(f"{one['name']}: {one['ending']} in {one['seconds']:.1f} s")


def _readable(where: Any) -> Any:
    """The record, None where it cannot be read: what it left on this machine is cleaned up all the same."""
    from glmspark.errors import GlmsparkError

    try:
        return where.read()
    except GlmsparkError:
        return None


def _data(one: Stopped) -> dict[str, Any]:
    swept = one.swept
    return {
        "name": one.name,
        "ending": str(one.ending),
        "seconds": round(one.seconds, 2),
        "killed": swept.processes if swept else [],
        "removed": swept.files if swept else [],
    }


def _stop_on_nodes(place: Place, done: list[dict[str, Any]], failed: list[GlmsparkError]) -> None:
    import asyncio

    from glmspark.launch.cluster_ops import failure_of, stop

    name, stopped = asyncio.run(stop(place))
    done.append(_data_of_nodes(name, stopped))
    if (error := failure_of(name, stopped)) is not None:
        failed.append(error)


def _data_of_nodes(name: str, stopped: dict[str, StoppedRank]) -> dict[str, Any]:
    endings = {one.ending for one in stopped.values()}
    order = ("not reached", "cleaned up", "stopped", "nothing to stop")
    return {
        "name": name,
        "ending": next((one for one in order if one in endings), "nothing to stop"),
        "seconds": max((one.seconds for one in stopped.values()), default=0.0),
        "nodes": {
            node: {"ending": one.ending, "seconds": one.seconds, **one.swept} for node, one in stopped.items()
        },
    }


def _names_on(place: Place, everything: bool) -> list[Place]:
    """The deployments meant on the nodes of a cluster file. UsageError where it is not clear which."""
    import asyncio

    from glmspark.errors import UsageError
    from glmspark.launch.cluster_ops import is_alive, states_by_name

    if place.name is not None:
        if everything:
            raise UsageError("give a name or --all, not both")
        return [place]

    async def ask() -> list[str]:
        async with place.reached() as fleet:
            found = await states_by_name(place, fleet)
            return sorted(name for name, states in found.items() if any(map(is_alive, states.values())))

    running = asyncio.run(ask())
    if len(running) > 1 and not everything:
        raise UsageError(
            f"{len(running)} deployments run: {', '.join(running)}", next="name one of them, or --all"
        )
    return [place.named(name) for name in running]


def _names(name: str | None, everything: bool) -> list[str]:
    from glmspark.errors import UsageError
    from glmspark.launch.record import home, homes
    from glmspark.launch.status import unfinished

    if name is not None and everything:
        raise UsageError("give a name or --all, not both")
    known = [one.name for one in homes()]
    if name is not None:
        if name not in known and not home(name).path.is_dir() and known:
            raise UsageError(f"there is no deployment {name}", next=f"there are: {', '.join(known)}")
        return [name]
    if everything:
        return known
    running = [one for one in known if unfinished(home(one))]
    if len(running) > 1:
        raise UsageError(
            f"{len(running)} deployments run: {', '.join(running)}", next="name one of them, or --all"
        )
    return running
