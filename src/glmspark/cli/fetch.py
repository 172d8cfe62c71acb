"""`glmspark fetch` and `glmspark verify`: a recipe's weights onto every node, and hashed again there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, duration, print_json
from glmspark.cli.recipe import complete_recipe

if TYPE_CHECKING:
    from glmspark.config.cluster import Cluster
    from glmspark.config.recipe import ModelSource, Recipe
    from glmspark.nodes.fleet import Fleet
    from glmspark.weights.parts import Layout, NodePart
    from glmspark.weights.spread import Outcome, Progress
    from glmspark.weights.verify import Checked

RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="A recipe's name or file.", autocompletion=complete_recipe),
]
ClusterFile = Annotated[
    Path | None, typer.Option("--cluster", help="The cluster file with the nodes; without it, this machine.")
]
_SLOWEST = 1_000_000
"""Bytes a second; with less, a connection that waits its turn could not be told from one that broke."""


def fetch(  # noqa: PLR0913, PLR0917 - a typer command's options are its parameters
    recipe: RecipeName,
    cluster: ClusterFile = None,
    rate: Annotated[
        str | None, typer.Option(help="Most that a node sends (and the first one downloads) a second: 100MB.")
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted-fabric", help="Do not encrypt: nobody else is on these links.")
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also one with errors that inspect finds, or without hashes.")
    ] = False,
    only_needed: Annotated[
        bool, typer.Option("--only-needed", help="Store on each node what its rank needs, nothing else.")
    ] = False,
    tp: Annotated[int | None, typer.Option(help="For --only-needed: another TP.", min=1)] = None,
    pp: Annotated[int | None, typer.Option(help="For --only-needed: another PP.", min=1)] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="For --only-needed: these nodes, rank 0 on the first."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what --only-needed would store, and move nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a recipe's weights to every node: one downloads, each passes on to the next while it receives.

    What nodes have already is used after verification, and what was interrupted goes on where it stopped.
    Without the hub, the node that has the model gives it to the others. Without --cluster: to this machine.

    With --only-needed each node stores the shards and tensors of its own pipeline stage (or experts, with
    EP), and an index that says so. Fetching for another layout later brings the difference.

    Example: [bold]glmspark fetch glm-5.2-4x-mtp --cluster cluster.yaml --rate 500MB[/bold]

    Example: [bold]glmspark fetch glm-5.2-reap-469b-3x-pp --cluster cluster.yaml --only-needed[/bold]
    """
    import asyncio

    from glmspark.config.units import parse_size
    from glmspark.errors import UsageError
    from glmspark.weights.fetch import Options, parts_of
    from glmspark.weights.fetch import fetch as bring

    if not only_needed and (dry_run or nodes or tp or pp):
        raise UsageError("--tp, --pp, --nodes and --dry-run belong to --only-needed")
    try:
        limit = None if rate is None else parse_size(rate)
    except ValueError as error:
        raise UsageError(f"--rate: {error}") from None
    if limit is not None and limit < _SLOWEST:
        raise UsageError("--rate: at least 1MB", next="400 GB take five days at that rate already")
    read, loaded, sources = _asked(recipe, cluster)
    options = Options(rate=limit, trusted=trusted, anyway=anyway)
    layout = None
    if only_needed:
        loaded, layout = _divided(read, loaded, tp, pp, nodes)
    done: dict[str, Outcome] = {}
    stored: dict[str, NodePart] = {}

    async def run() -> None:
        async with fleet_of(loaded, cluster) as fleet:
            for number, source in enumerate(sources):
                place = await _place(fleet, loaded, source)
                # A drafter is whole on every node: it is small, and its tensors are of no known layout.
                wanted = replace(options, layout=layout if number == 0 else None)
                with _shown(source) as (told, noted):
                    if dry_run:
                        stored.update(await parts_of(fleet, source, place, wanted, noted))
                        return
                    done[place] = await bring(fleet, loaded, source, place, wanted, told=told, noted=noted)

    asyncio.run(run())
    if dry_run:
        print_parts(stored, as_json)
        return
    if as_json:
        print_json({place: _outcome(outcome) for place, outcome in done.items()})
        return
    for place, outcome in done.items():
        _print_outcome(place, outcome)


def verify(recipe: RecipeName, cluster: ClusterFile = None, as_json: AsJson = False) -> None:
    """Hash a recipe's weights again on all nodes at once (or here), and name every damaged file.

    Example: [bold]glmspark verify glm-5.2-4x-mtp --cluster cluster.yaml[/bold]

    Exit codes: 0 all as they came, 1 something is damaged, missing or could not be looked at.
    """
    import asyncio

    from glmspark.cli.nodes import waiting
    from glmspark.weights.fetch import pythons
    from glmspark.weights.verify import verify as check

    _, loaded, sources = _asked(recipe, cluster)
    found: dict[str, dict[str, Checked]] = {}

    async def run() -> None:
        async with fleet_of(loaded, cluster) as fleet:
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


def _asked(recipe: str, cluster: Path | None) -> tuple[Recipe, Cluster, list[ModelSource]]:
    """The recipe, the nodes (without a cluster file: this machine), and what is to be on them."""
    from glmspark.config import load_recipe
    from glmspark.errors import UsageError

    read = load_recipe(recipe)
    sources = [read.model.source]
    if read.draft is not None and read.draft.source is not None:
        sources.append(read.draft.source)
    if all(source.kind == "package" for source in sources):
        where = f" --cluster {cluster}" if cluster is not None else ""
        raise UsageError(
            f"{recipe}'s model comes with glmspark",
            next=f"`glmspark up {recipe}{where}` " + ("copies it to the nodes" if where else "starts it"),
        )
    return read, nodes_of(cluster), [source for source in sources if source.kind != "package"]


def nodes_of(file: Path | None) -> Cluster:
    """The nodes of a cluster file; without one, this machine."""
    from glmspark.config.cluster import Cluster, Node, load_cluster

    return (
        load_cluster(file)
        if file is not None
        else Cluster(cluster=1, nodes=(Node(name="here", address="127.0.0.1"),))
    )


def _divided(
    recipe: Recipe, cluster: Cluster, tp: int | None, pp: int | None, nodes: str | None
) -> tuple[Cluster, Layout]:
    """The nodes of the ranks, and the layout. Raises PlanError, and UsageError where nothing is saved."""
    from glmspark.errors import UsageError
    from glmspark.plan.cluster import choose_nodes
    from glmspark.weights.parts import layout_of

    tp, pp = tp or recipe.layout.tp, pp or recipe.layout.pp
    names = [name.strip() for name in (nodes or "").split(",") if name.strip()]
    chosen = choose_nodes(cluster, tp * pp, names)
    layout = layout_of(recipe, [node.name for node in chosen], tp, pp)
    if pp == 1 and not layout.ep:
        raise UsageError(
            f"TP{tp} splits within tensors: every node needs all files, nothing would be saved",
            next="fetch without --only-needed; PP and expert parallelism divide a model by its tensors",
        )
    return cluster.model_copy(update={"nodes": chosen}), layout


def fleet_of(cluster: Cluster, file: Path | None) -> Fleet:
    """Connections to what `nodes_of` gave."""
    from glmspark.nodes.doctor import addresses
    from glmspark.nodes.fleet import Fleet

    return Fleet(addresses(cluster) if file is not None else {node.name: None for node in cluster.nodes})


def print_parts(parts: Mapping[str, NodePart], as_json: bool) -> None:
    """What each node would store, and what that saves."""
    from rich.console import Console
    from rich.table import Table

    from glmspark.config.units import format_size

    if as_json:
        print_json({node: {"rank": one.rank, "bytes": one.nbytes, "of": one.whole, "shards": len(one.shards)}
                    for node, one in parts.items()})  # fmt: skip
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("node", "rank", "stores", "of", "", "shards", "saves"):
        table.add_column(title, justify="left" if title == "node" else "right")
    for node, one in parts.items():
        table.add_row(
            node, str(one.rank), format_size(one.nbytes), format_size(one.whole),
            f"{100 * one.nbytes / max(one.whole, 1):.0f} %", str(len(one.shards)),
            format_size(one.whole - one.nbytes),
        )  # fmt: skip
    Console(file=sys.stdout, highlight=False).print(table)


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
        said = f"received {format_size(one.received)}" if one.received or one.reused else "had it"
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
        "unhashed": one.unhashed,
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
            print(f"  {one.node}: {len(one.problems)} of {one.files} files are damaged or missing")
            for name, problem in one.problems.items():
                print(f"    {name} {problem}")
            print("    next: `glmspark fetch` sends the damaged chunks again")
        else:
            rest = f"; {one.unhashed} others have no hashes to compare with" if one.unhashed else ""
            print(f"  {one.node}: {one.files} files, {format_size(one.verified)}, all as they came{rest}")
