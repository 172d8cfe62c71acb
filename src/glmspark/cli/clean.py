"""`glmspark clean`: remove what nobody answers for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, complete_deployment, print_json
from glmspark.cli.nodes import OnCluster, waiting

if TYPE_CHECKING:
    from glmspark.errors import GlmsparkError


def clean(
    name: Annotated[
        str | None,
        typer.Argument(help="Deployment; all of them if not given.", autocompletion=complete_deployment),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Also remove the record and logs that this machine has of NAME, even if its nodes are gone "
            "for good.",
        ),
    ] = False,
    cluster: OnCluster = None,
    as_json: AsJson = False,
) -> None:
    """Remove containers, processes, Ray sessions and shared memory of deployments that nobody answers for.

    On this machine and on the nodes of all clusters its records name, or only on those of a cluster file.
    What runs, what another user started and what glmspark did not make is left alone; records and logs stay
    unless --forget says otherwise.

    Example: [bold]glmspark clean --dry-run[/bold]

    Example: [bold]glmspark clean glm-tiny --forget[/bold]

    Exit codes: 0 clean, 1 something would not go or a node could not be asked.
    """
    from glmspark.errors import GlmsparkError

    gone: list[str] = []
    if forget:
        found, gone = _forget(name, cluster, dry_run=dry_run)
    else:
        found = _clean(name, cluster, dry_run=dry_run)
    if as_json:
        print_json(
            {
                where: one.to_json() if isinstance(one, GlmsparkError) else dict(one)
                for where, one in found.items()
            }
        )
    else:
        _print(found, dry_run=dry_run)
    wrong = {where for where, one in found.items() if isinstance(one, GlmsparkError) or one["stubborn"]}
    if wrong - set(gone):
        raise typer.Exit(1)


def _forget(
    name: str | None, cluster: Path | None, *, dry_run: bool
) -> tuple[dict[str, Mapping[str, Any] | GlmsparkError], list[str]]:
    """What `--forget` did, and the nodes that did not answer, which is no failure here."""
    import asyncio

    from glmspark.errors import UsageError
    from glmspark.launch.forget import forget
    from glmspark.launch.leftovers import HERE
    from glmspark.launch.record import home
    from glmspark.nodes.transport import NodeError

    if name is None:
        raise UsageError("--forget without a deployment", next="name it: `glmspark clean NAME --forget`")
    if cluster is not None:
        raise UsageError(
            "--forget and --cluster exclude each other: what is forgotten is this machine's record",
            next=f"`glmspark clean {name} --forget`",
        )
    with waiting(f"looking for {name}"):
        done = asyncio.run(forget(home(name), dry_run=dry_run))
    gone = [node for node, one in done.nodes.items() if isinstance(one, NodeError)]
    return {HERE: done.here, **done.nodes}, gone


def _clean(
    name: str | None, cluster: Path | None, *, dry_run: bool
) -> dict[str, Mapping[str, Any] | GlmsparkError]:
    import asyncio

    from glmspark.errors import GlmsparkError
    from glmspark.launch.cluster_ops import clusters_known, find
    from glmspark.launch.leftovers import HERE, clean_here, clean_nodes

    found: dict[str, Mapping[str, Any] | GlmsparkError] = {}
    named = find(name, cluster)
    if named is None:
        found[HERE] = clean_here(name, dry_run=dry_run)
    places = [(named, True)] if named is not None else clusters_known() if name is None else []
    for place, needed in places:
        with waiting(f"asking {', '.join(place.nodes)}"):
            try:
                found.update(asyncio.run(clean_nodes(place, dry_run=dry_run)))
            except GlmsparkError as error:
                if needed:
                    found[", ".join(place.nodes)] = error
                else:
                    print(f"{', '.join(place.nodes)}: not reached: {error.message}", file=sys.stderr)
    return found


def _print(found: Mapping[str, Any], *, dry_run: bool) -> None:
    from glmspark.errors import GlmsparkError

    anything = False
    for where, one in found.items():
        if isinstance(one, GlmsparkError):
            print(f"{where}: could not be asked: {one.message}")
            anything = True
            continue
        for part, word in (("containers", "container"), ("processes", "process"), ("files", "file")):
            for what in one[part]:
                print(f"{where}: {'would remove' if dry_run else 'removed'} {word} {what}")
                anything = True
        for what in one.get("forgotten", ()):
            print(f"{'would forget' if dry_run else 'forgot'} {what}: its record and logs on {where}")
            anything = True
        for what in one["stubborn"]:
            print(f"{where}: would not go: {what}")
            anything = True
    if not anything:
        print("there is nothing to clean")
