"""`glmspark doctor`: what stands in the way on each node, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmspark.cli.console import AsJson, print_json
from glmspark.cli.nodes import image_name
from glmspark.cli.recipe import complete_recipe

if TYPE_CHECKING:
    from glmspark.nodes.checks import Expected, Look, Verdict

Hosts = Annotated[
    list[str] | None,
    typer.Argument(metavar="HOST", help="Nodes as \\[user@]host[:port]; this machine if none is given."),
]
ClusterFile = Annotated[Path | None, typer.Option("--cluster", help="Nodes and fabric from a cluster file.")]


def doctor(
    hosts: Hosts = None,
    cluster: ClusterFile = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Also ask whether what this recipe needs is there.", autocompletion=complete_recipe
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(callback=image_name, help="The image that is to run, instead of the file's."),
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(
            "--load",
            metavar="SECONDS",
            min=1,
            max=600,
            help="Also look from where ranks run: engine, RDMA, NCCL, and the GPU under so long a load.",
        ),
    ] = None,
    port: Annotated[
        list[int] | None,
        typer.Option(min=1, max=65535, help="TCP ports that must be free \\[default: 8000 29500]."),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Then tune what can be tuned, as `glmspark tune apply` does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at nodes and say what is wrong with them, with the evidence and what to do.

    Example: [bold]glmspark doctor --cluster cluster.yaml --recipe glm-5.2-4x-mtp --load 10[/bold]

    Exit codes: 0 nothing blocks, 1 something does.
    """
    import asyncio

    from glmspark.cli.nodes import waiting, where
    from glmspark.nodes.checks import State
    from glmspark.nodes.checks.everything import judge
    from glmspark.nodes.doctor import look

    loaded, addresses = where(hosts, cluster)
    expected = _expected(loaded, recipe, image, port)
    with waiting(f"looking at {len(addresses)} node{'s' if len(addresses) > 1 else ''}") as said:
        seen = asyncio.run(look(addresses, cluster=loaded, expected=expected, load=load, said=said))
    verdicts = judge(seen)
    if as_json:
        print_json({"verdicts": [one.to_json() for one in verdicts]})
    else:
        show(seen, verdicts)
    if fix:
        from glmspark.cli.tune import mend

        mend(addresses, verdicts, cluster=loaded, as_json=as_json)
    if any(one.state is State.BLOCKED for one in verdicts):
        raise typer.Exit(1)


def _expected(cluster: object, recipe: str | None, image: str | None, ports: list[int] | None) -> Expected:
    from dataclasses import replace

    from glmspark.config.cluster import Cluster
    from glmspark.nodes.checks import Expected
    from glmspark.nodes.doctor import expected_by, expected_of

    expected = expected_of(cluster) if isinstance(cluster, Cluster) else Expected()
    if image is not None:
        expected = replace(expected, image=image)
    if ports:
        expected = replace(expected, ports=tuple(ports))
    if recipe is not None:
        from glmspark.config import load_recipe

        expected = expected_by(load_recipe(recipe), expected)
    return expected


def show(seen: Look, verdicts: list[Verdict]) -> None:
    """Print a table of what is not fine, node by node, and one line for all that is."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from glmspark.nodes.checks import State

    console = Console(file=sys.stdout, highlight=False)
    colours = {State.SLOW: "yellow", State.BLOCKED: "bold red", State.UNKNOWN: "cyan", State.OK: "green"}
    order = {State.BLOCKED: 0, State.SLOW: 1, State.UNKNOWN: 2, State.OK: 3}
    wrong = [one for one in verdicts if one.state is not State.OK]
    if wrong:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("", "node", "check", "seen and what to do"):
            table.add_column(title, overflow="fold", no_wrap=title in ("", "node"))
        for one in sorted(wrong, key=lambda one: order[one.state]):
            text = Text(one.evidence)
            if one.remedy:
                text.append(f"\n→ {one.remedy}", style="dim")
            table.add_row(Text(str(one.state), style=colours[one.state]), one.node or "all", one.check, text)
        console.print(table)
    counts = {state: sum(one.state is state for one in verdicts) for state in order}
    nodes = len(seen.facts) + len(seen.lost)
    console.print(
        f"{nodes} node{'s' if nodes != 1 else ''}, {len(verdicts)} checks: "
        + ", ".join(f"[{colours[state]}]{count} {state}[/]" for state, count in counts.items() if count)
    )
