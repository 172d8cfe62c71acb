"""`glmspark models`: which weights lie on which node, and how to get rid of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, print_json
from glmspark.cli.fetch import ClusterFile, fleet_of, nodes_of

if TYPE_CHECKING:
    from glmspark.config.cluster import Cluster
    from glmspark.nodes.fleet import Fleet
    from glmspark.nodes.transport import NodeError
    from glmspark.weights.verify import StoredModel

app = typer.Typer(
    name="models",
    no_args_is_help=True,
    help="Weights on the nodes: list them, remove them.\n\n"
    "Example: [bold]glmspark models list --cluster cluster.yaml[/bold]",
)


@app.command("list")
def list_(cluster: ClusterFile = None, as_json: AsJson = False) -> None:
    """Show the models on every node with their sizes; without --cluster, on this machine.

    Example: [bold]glmspark models list --cluster cluster.yaml[/bold]
    """
    import asyncio

    from glmspark.cli.nodes import waiting
    from glmspark.nodes.transport import NodeError

    loaded = nodes_of(cluster)
    with waiting(f"looking into {loaded.paths.models} on {len(loaded.nodes)} nodes"):
        found = asyncio.run(_look(loaded, cluster))
    if as_json:
        print_json(
            {
                node: one.to_json() if isinstance(one, NodeError) else {n: asdict(m) for n, m in one.items()}
                for node, one in found.items()
            }
        )
    else:
        _show(found)
    if any(isinstance(one, NodeError) for one in found.values()):
        raise typer.Exit(1)


@app.command("rm")
def rm(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Its name, as `glmspark models list` shows it.")
    ],
    cluster: ClusterFile = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a model from every node, or from this machine. One that a deployment uses stays.

    Example: [bold]glmspark models rm org--GLM-5.2-NVFP4@main --cluster cluster.yaml[/bold]
    """
    import asyncio

    from glmspark.config.units import format_size
    from glmspark.errors import UsageError
    from glmspark.nodes.transport import NodeError

    loaded = nodes_of(cluster)
    found = asyncio.run(_look(loaded, cluster))
    where = {
        node: one[model] for node, one in found.items() if not isinstance(one, NodeError) and model in one
    }
    for one in found.values():
        if isinstance(one, NodeError):
            raise one
    if not where:
        names = sorted({name for one in found.values() if not isinstance(one, NodeError) for name in one})
        raise UsageError(
            f"no node has a model {model}",
            next=f"there are {', '.join(names)}" if names else "there are none",
        )
    _check_unlinked(model, found)
    size = format_size(sum(one.nbytes for one in where.values()))
    if not yes and not typer.confirm(f"Remove {model} ({size}) from {', '.join(where)}?", err=True):
        raise typer.Exit(1)
    errors = asyncio.run(_remove(loaded, cluster, where))
    failures = [error for error in errors.values() if error is not None]
    if failures:
        raise failures[0]
    if as_json:
        print_json(
            {"removed": model, "nodes": list(where), "bytes": {n: one.nbytes for n, one in where.items()}}
        )
        return
    print(f"removed {model} ({size}) from {', '.join(where)}")


def _check_unlinked(model: str, found: Mapping[str, dict[str, StoredModel] | NodeError]) -> None:
    """Raises UsageError where another model's files lie in this one's directory, by links."""
    from glmspark.errors import UsageError
    from glmspark.nodes.transport import NodeError

    for node, models in found.items():
        if isinstance(models, NodeError):
            continue
        users = [name for name, one in models.items() if model in one.into]
        if users:
            raise UsageError(
                f"{', '.join(users)} links to files of {model}",
                host=node,
                step="remove a model",
                next=f"remove {users[0]} first, or keep both",
            )


async def _look(cluster: Cluster, file: Path | None) -> dict[str, dict[str, StoredModel] | NodeError]:
    from glmspark.weights.verify import list_models

    async with fleet_of(cluster, file) as fleet:
        return await list_models(fleet, cluster.paths.models)


async def _remove(
    cluster: Cluster, file: Path | None, where: Mapping[str, StoredModel]
) -> dict[str, NodeError | None]:
    from glmspark.weights.verify import remove_model

    async with fleet_of(cluster, file) as fleet:
        await _check_unused(fleet, where)
        return await remove_model(fleet, where)


async def _check_unused(fleet: Fleet, where: Mapping[str, StoredModel]) -> None:
    """Raises GlmsparkError where a deployment that is alive names the model, or where a node does not say."""
    from glmspark.errors import GlmsparkError
    from glmspark.launch.agents import Agents
    from glmspark.launch.cluster_ops import is_alive
    from glmspark.nodes.transport import NodeError

    for node, states in (await Agents(fleet).all_states(record=True)).items():
        if isinstance(states, NodeError):
            raise states
        for state in states:
            if is_alive(state) and any(_names(state, one.path) for one in where.values()):
                raise GlmsparkError(
                    f"{state.get('name')} uses it",
                    host=node,
                    step="remove a model",
                    next=f"stop it first: `glmspark down {state.get('name')}`",
                )


def _names(state: Mapping[str, Any], path: str) -> bool:
    """Whether a deployment's state names a directory, or a file in it; not one whose name begins so."""
    import json
    import re

    text = json.dumps(state, ensure_ascii=False)
    return re.search(rf"{re.escape(path)}(?![\w@+-]|\.\w)", text) is not None


def _show(found: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from glmspark.config.units import format_size
    from glmspark.nodes.transport import NodeError

    shipped = {one.name for one in (files("glmspark.recipes") / "checkpoints").iterdir()}
    console = Console(file=sys.stdout, highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("node", "model", "size", "files", ""):
        table.add_column(title, justify="right" if title in ("size", "files") else "left", overflow="fold")
    for node, models in found.items():
        if isinstance(models, NodeError):
            table.add_row(node, "", "", "", models.message)
            continue
        for name, one in models.items():
            notes = ["not complete"] if one.partial else []
            if one.part is not None:
                rank, tp, pp = one.part
                notes.append(f"what rank {rank} of TP{tp} PP{pp} needs")
            notes += [f"links to {format_size(one.linked)} elsewhere"] if one.linked else []
            if name in shipped:
                notes.append("comes with glmspark: `glmspark up` compares it")
            elif not one.hashed:
                notes.append("no hashes: `glmspark fetch` verifies it")
            table.add_row(node, name, format_size(one.nbytes), str(one.files), ", ".join(notes))
    console.print(table if table.row_count else "no models")
