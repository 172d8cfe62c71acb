"""`glmspark logs`: what the ranks print."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmspark.cli.console import AsJson, complete_deployment, print_json, print_line
from glmspark.cli.nodes import OnCluster

if TYPE_CHECKING:
    from glmspark.launch.record import Home

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
    cluster: OnCluster = None,
    as_json: AsJson = False,
) -> None:
    """Print the ranks' logs, each line with its rank, and its node where there are several.

    Example: [bold]glmspark logs -f --rank 1[/bold]
    """
    from glmspark.launch.cluster_ops import find
    from glmspark.launch.record import home
    from glmspark.launch.status import pick

    known = None if cluster is not None else pick(name)
    place = find(known.name if known is not None else name, cluster)
    if place is not None:
        from glmspark.cli.logs_cluster import logs_of_cluster

        logs_of_cluster(place, rank=rank, lines=lines, follow=follow, supervisor=supervisor, as_json=as_json)
        return
    assert known is not None  # noqa: S101 - with a cluster file there is a place
    files = _files(known, rank, supervisor)
    if as_json:
        from glmspark.launch.tail import last_lines

        print_json(
            [{"source": who, "file": str(path), "lines": last_lines(path, lines)} for who, path in files]
        )
        return
    _print_last(files, lines)
    if follow:
        _follow(home(known.name), files)


def _print_last(files: list[tuple[str, Path]], lines: int) -> None:
    from glmspark.launch.tail import last_lines

    for number, (who, path) in enumerate(files):
        for line in last_lines(path, lines):
            print_line(number, who, line, alone=len(files) == 1)


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


def _follow(place: Home, files: list[tuple[str, Path]]) -> None:
    from glmspark.launch import lock
    from glmspark.launch.tail import Tail

    tails = [(number, who, Tail(path, from_end=True)) for number, (who, path) in enumerate(files)]
    while True:
        alive = lock.held(place.lock_file)
        for number, who, tail in tails:
            for line in tail.lines():
                print_line(number, who, line, alone=len(files) == 1)
        if not alive:  # looked at before the last reading, so nothing is missed
            print(f"{place.name} does not run any more", file=sys.stderr)
            return
        sys.stdout.flush()
        time.sleep(_FOLLOW)
