"""`glmspark logs`: what the ranks print."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmspark.cli.console import AsJson, complete_deployment, print_json, wants_colour

if TYPE_CHECKING:
    from glmspark.launch.record import Home

_COLOURS = ("\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[34m", "\x1b[31m")
_FOLLOW = 0.2  # seconds between looks


def logs(
    name: Annotated[
        str | None,
        typer.Argument(help="Deployment; the only one if not given.", autocompletion=complete_deployment),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as lines come, until Ctrl-C.")
    ] = False,
    rank: Annotated[int | None, typer.Option(help="This rank's lines only.", min=0)] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", help="Lines of each rank to begin with.", min=0)
    ] = 100,
    supervisor: Annotated[bool, typer.Option("--supervisor", help="The supervisor's own lines.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the ranks' logs, each line with its rank.

    Example: [bold]glmspark logs -f --rank 1[/bold]
    """
    from glmspark.launch.record import home
    from glmspark.launch.status import pick
    from glmspark.launch.tail import last_lines

    place = pick(name)
    files = _files(place, rank, supervisor)
    if as_json:
        print_json(
            [{"source": who, "file": str(path), "lines": last_lines(path, lines)} for who, path in files]
        )
        return
    colour = wants_colour(sys.stdout)
    for number, (who, path) in enumerate(files):
        for line in last_lines(path, lines):
            _print(number, who, line, colour, alone=len(files) == 1)
    if follow:
        _follow(home(place.name), files, colour)


def _files(place: Home, rank: int | None, supervisor: bool) -> list[tuple[str, Path]]:
    from glmspark.errors import UsageError

    if supervisor:
        return [("supervisor", place.supervisor_log)]
    deployment = place.read()
    ranks = [one.rank for one in deployment.ranks] if deployment else []
    if rank is not None:
        if rank not in ranks:
            raise UsageError(
                f"{place.name} has no rank {rank}", next=f"its ranks are {', '.join(map(str, ranks))}"
            )
        ranks = [rank]
    return [(f"rank {one}", place.rank_log(one)) for one in ranks]


def _follow(place: Home, files: list[tuple[str, Path]], colour: bool) -> None:
    from glmspark.launch import lock
    from glmspark.launch.tail import Tail

    tails = [(number, who, Tail(path, from_end=True)) for number, (who, path) in enumerate(files)]
    while True:
        alive = lock.held(place.lock_file)
        for number, who, tail in tails:
            for line in tail.lines():
                _print(number, who, line, colour, alone=len(files) == 1)
        if not alive:  # looked at before the last reading, so nothing is missed
            print(f"{place.name} does not run any more", file=sys.stderr)
            return
        sys.stdout.flush()
        time.sleep(_FOLLOW)


def _print(number: int, who: str, line: str, colour: bool, *, alone: bool) -> None:
    if alone:
        print(line)
    elif colour:
        print(f"{_COLOURS[number % len(_COLOURS)]}{who}\x1b[0m  {line}")
    else:
        print(f"{who}  {line}")
