"""`glmspark fetch` and `glmspark verify`: a recipe's weights onto every node, and hashed again there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, duration, print_json
from glmspark.cli.recipe import complete_recipe

if TYPE_CHECKING:
    from glmspark.config.cluster import Cluster
    from glmspark.config.recipe import ModelSource
    from glmspark.nodes.fleet import Fleet
    from glmspark.weights.spread import Outcome, Progress
    from glmspark.weights.verify import Checked

RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="A recipe's name or file.", autocompletion=complete_recipe),
]
ClusterFile = Annotated[Path, typer.Option("--cluster", help="The cluster file with the nodes.")]


def fetch(
    recipe: RecipeName,
    cluster: ClusterFile,
    rate: Annotated[
        str | None, typer.Option(help="Most that a node sends (and the first one downloads) a second: 100MB.")
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted-fabric", help="Do not encrypt: nobody else is on these links.")
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also a checkpoint in which inspect finds errors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a recipe's weights to every node: one downloads, each passes on to the next while it receives.

    What nodes have already is used after verification, and what was interrupted goes on where it stopped.
    Without the hub, the node that has the model gives it to the others.

    Example: [bold]glmspark fetch glm-5.2-4x-mtp --cluster cluster.yaml --rate 500MB[/bold]
    """
    import asyncio

    from glmspark.config.units import parse_size
    from glmspark.errors import UsageError
    from glmspark.weights.fetch import Options
    from glmspark.weights.fetch import fetch as bring

    try:
        limit = None if rate is None else parse_size(rate)
    except ValueError as error:
        raise UsageError(f"--rate: {error}") from None
    loaded, sources = _asked(recipe, cluster)
    options = Options(rate=limit, trusted=trusted, anyway=anyway)
    done: dict[str, Outcome] = {}

    async def run() -> None:
        async with _fleet(loaded) as fleet:
            for source in sources:
                place = await _place(fleet, loaded, source)
                with _shown(source) as (told, noted):
                    done[place] = await bring(fleet, loaded, source, place, options, told=told, noted=noted)

    asyncio.run(run())
    if as_json:
        print_json({place: _outcome(outcome) for place, outcome in done.items()})
        return
    for place, outcome in done.items():
        _print_outcome(place, outcome)


def verify(recipe: RecipeName, cluster: ClusterFile, as_json: AsJson = False) -> None:
    """Hash a recipe's weights again on all nodes at once, and name every damaged file.

    Example: [bold]glmspark verify glm-5.2-4x-mtp --cluster cluster.yaml[/bold]

    Exit codes: 0 all as they came, 1 something is damaged, missing or could not be looked at.
    """
    import asyncio

    from glmspark.cli.nodes import waiting
    from glmspark.weights.fetch import pythons
    from glmspark.weights.verify import verify as check

    loaded, sources = _asked(recipe, cluster)
    found: dict[str, dict[str, Checked]] = {}

    async def run() -> None:
        async with _fleet(loaded) as fleet:
            for source in sources:
                place = await _place(fleet, loaded, source)
                with waiting(f"hashing {place} on {len(loaded.nodes)} nodes") as said:
                    found[place] = await check(
                        fleet, place, pythons=pythons(loaded), told=lambda now: said(_percent(now))
                    )

    asyncio.run(run())
    if as_json:
        print_json({place: [_checked(one) for one in nodes.values()] for place, nodes in found.items()})
    else:
        for place, nodes in found.items():
            _print_checked(place, nodes)
    if not all(one.good for nodes in found.values() for one in nodes.values()):
        raise typer.Exit(1)


def _asked(recipe: str, cluster: Path) -> tuple[Cluster, list[ModelSource]]:
    from glmspark.config import load_recipe
    from glmspark.config.cluster import load_cluster
    from glmspark.errors import UsageError

    read = load_recipe(recipe)
    sources = [read.model.source]
    if read.draft is not None and read.draft.source is not None:
        sources.append(read.draft.source)
    sources = [source for source in sources if source.kind != "package"]
    if not sources:
        raise UsageError(
            f"{recipe}'s model comes with glmspark",
            next=f"`glmspark up {recipe} --cluster {cluster}` copies it to the nodes",
        )
    return load_cluster(cluster), sources


def _fleet(cluster: Cluster) -> Fleet:
    from glmspark.nodes.doctor import addresses
    from glmspark.nodes.fleet import Fleet

    return Fleet(addresses(cluster))


async def _place(fleet: Fleet, cluster: Cluster, source: ModelSource) -> str:
    """The model's directory on every node. Raises NodeError where one cannot be asked."""
    from glmspark.launch.node_models import place_of
    from glmspark.nodes.facts.account import ACCOUNT
    from glmspark.nodes.survey import survey
    from glmspark.nodes.transport import NodeError

    accounts = {}
    for name, node in fleet.nodes.items():
        facts = await survey(node, [ACCOUNT])
        account = facts.get(ACCOUNT)
        if account is None:
            raise NodeError(f"cannot find the home directory: {facts.problem(ACCOUNT)}", host=name)
        accounts[name] = account
    if not accounts:
        raise next(iter(fleet.lost.values()))
    return place_of(source, cluster.paths.models, accounts)


@contextmanager
def _shown(
    source: ModelSource,
) -> Iterator[tuple[Callable[[Mapping[str, Progress]], None], Callable[[str], None]]]:
    """A table that follows the transfer on a terminal; elsewhere a line every ten seconds."""
    import time

    from rich.console import Console
    from rich.live import Live

    if sys.stderr.isatty():
        with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
            yield lambda progress: live.update(_table(progress)), live.update
        return
    last = [time.monotonic()]

    def told(progress: Mapping[str, Progress]) -> None:
        if time.monotonic() - last[0] >= 10:
            last[0] = time.monotonic()
            print(f"{source}: {_line(progress)}", file=sys.stderr)

    yield told, lambda text: print(text, file=sys.stderr)


def _table(progress: Mapping[str, Progress]) -> Any:
    from rich.table import Table

    from glmspark.config.units import format_size

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("node", "verified", "of", "", "left", "notes"):
        table.add_column(title, justify="left" if title in ("node", "notes") else "right")
    for one in progress.values():
        share = f"{100 * one.verified / one.total:.0f} %" if one.total else ""
        left = "done" if one.done else duration(one.eta) if one.eta is not None else ""
        table.add_row(one.node, format_size(one.verified), format_size(one.total), share, left, _notes(one))
    return table


def _line(progress: Mapping[str, Progress]) -> str:
    parts = []
    for one in progress.values():
        if one.done:
            parts.append(f"{one.node} done")
        elif one.total:
            left = f", {duration(one.eta)} left" if one.eta is not None else ""
            parts.append(f"{one.node} {100 * one.verified / one.total:.0f} %{left}")
    return "; ".join(parts)


def _notes(one: Progress) -> str:
    from glmspark.config.units import format_size

    words = [f"{format_size(one.reused)} were there"] if one.reused else []
    words += [f"{count} {what}" for count, what in (
        (one.restarts, "restarts"), (one.broken, "broken connections"), (one.wrong, "damaged chunks")
    ) if count]  # fmt: skip
    return ", ".join(words)


def _outcome(outcome: Outcome) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "seconds": round(outcome.seconds, 3),
        "algorithm": outcome.algorithm,
        "nodes": [asdict(one) for one in outcome.nodes.values()],
    }


def _print_outcome(place: str, outcome: Outcome) -> None:
    from glmspark.config.units import format_size

    print(f"{place}: on {len(outcome.nodes)} nodes after {duration(outcome.seconds)}")
    for one in outcome.nodes.values():
        notes = _notes(one)
        said = f"received {format_size(one.received)}" if one.total else "had it"
        print(f"  {one.node}: {said}" + (f" ({notes})" if notes else ""))


def _percent(found: Mapping[str, Checked]) -> str:
    known = [one for one in found.values() if one.total]
    return ", ".join(f"{one.node} {100 * one.verified / one.total:.0f} %" for one in known)


def _checked(one: Checked) -> dict[str, Any]:
    return {
        "node": one.node,
        "good": one.good,
        "files": one.files,
        "bytes": one.verified,
        "problems": one.problems,
        "error": one.error.to_json() if one.error is not None else None,
    }


def _print_checked(place: str, nodes: Mapping[str, Checked]) -> None:
    from glmspark.config.units import format_size

    print(place)
    for one in nodes.values():
        if one.error is not None:
            print(f"  {one.node}: not verified: {one.error.message}")
            if one.error.next:
                print(f"    next: {one.error.next}")
        elif one.problems:
            print(f"  {one.node}: {len(one.problems)} of {one.files} files are damaged")
            for name, problem in one.problems.items():
                print(f"    {name} {problem}")
            print("    next: `glmspark fetch` sends the damaged chunks again")
        else:
            print(f"  {one.node}: {one.files} files, {format_size(one.verified)}, all as they came")
