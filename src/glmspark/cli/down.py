"""`glmspark down`: stop."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from glmspark.cli.console import AsJson, complete_deployment, print_json


def down(
    name: Annotated[
        str | None,
        typer.Argument(help="Deployment; the only one if not given.", autocompletion=complete_deployment),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop all deployments.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop a deployment: all its ranks, and what they left in memory and on disk.

    It also cleans up after one whose `up` or supervisor was killed. Where nothing runs it says so and leaves
    with 0.

    Example: [bold]glmspark down[/bold]
    """
    from glmspark.launch.down import Ending, Stopped, stop
    from glmspark.launch.record import home

    done: list[Stopped] = []
    for one in _names(name, everything):
        if sys.stderr.isatty():  # it may take some seconds
            print(f"stopping {one}", file=sys.stderr)
        done.append(stop(home(one)))
    if as_json:
        print_json([_data(stopped) for stopped in done])
        return
    if all(stopped.ending is Ending.NOTHING for stopped in done):
        print("there is nothing to stop")
    for stopped in done:
        if stopped.ending is not Ending.NOTHING:
            print(f"{stopped.name}: {stopped.ending} in {stopped.seconds:.1f} s")


def _data(one: Any) -> dict[str, Any]:
    swept = one.swept
    return {
        "name": one.name,
        "ending": str(one.ending),
        "seconds": round(one.seconds, 2),
        "killed": swept.processes if swept else [],
        "removed": swept.files if swept else [],
    }


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
