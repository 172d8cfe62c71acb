"""`glmspark inspect`: what a checkpoint is, what it weighs, and what is wrong with it, before it is moved."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from glmspark.models.inspection import Inspection
    from glmspark.weights.holdings import Holding


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model's directory, hf:org/name\\[@revision] or package:NAME."
        ),
    ],
    tp: Annotated[int, typer.Option(help="Ranks that share each layer.", min=1, max=1024)] = 1,
    pp: Annotated[int, typer.Option(help="Stages that share the layers.", min=1, max=1024)] = 1,
    ep: Annotated[bool, typer.Option("--ep", help="Experts lie whole on the TP ranks.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look into a checkpoint without reading its weights: parameters, formats, sizes, and every problem.

    Example: [bold]glmspark inspect hf:org/GLM-5.2-NVFP4 --tp 4[/bold]

    Exit codes: 0 usable, 1 something is wrong (severity error) or it cannot be read.
    """
    from glmspark.cli.nodes import waiting
    from glmspark.models.files import CheckpointFiles, LocalFiles
    from glmspark.models.inspection import Severity
    from glmspark.models.inspection import inspect as look_into
    from glmspark.weights.holdings import holdings
    from glmspark.weights.hub import HubFiles, parse_hub

    with waiting(f"reading the headers of {model}"):
        files: CheckpointFiles
        if model.startswith("hf:"):
            files = HubFiles(*parse_hub(model.removeprefix("hf:")))
        else:
            files = LocalFiles(_directory(model))
        found = look_into(files)
    split = holdings(found, tp=tp, pp=pp, ep=ep) if tp * pp > 1 else []
    if as_json:
        print_json(_json(found, split, files))
    else:
        _show(found, split)
    if found.worst() is Severity.ERROR:
        raise typer.Exit(1)


def _directory(model: str) -> str | Path:
    """The directory that is meant: itself, or as a recipe's model.source says it."""
    if not model.startswith("package:"):
        return model.removeprefix("path:")
    from glmspark.config.recipe import ModelSource
    from glmspark.models.source import locate

    return locate(ModelSource(kind="package", name=model.removeprefix("package:")))


def _json(found: Inspection, split: list[Holding], files: object) -> dict[str, Any]:
    from dataclasses import asdict

    from glmspark.weights.hub import HubFiles

    shape = found.architecture
    return {
        "where": found.where,
        "hub": files.to_json() if isinstance(files, HubFiles) else None,
        "architecture": shape.name,
        "model_type": shape.model_type,
        "layers": len(shape.layers),
        "experts": shape.experts,
        "experts_per_token": shape.experts_per_token,
        "parameters": found.parameters,
        "parameters_declared": sum(shape.parameters.values()),
        "parameters_active": shape.active_parameters,
        "bytes": found.nbytes,
        "tensors": len(found.content.tensors),
        "shards": len(found.content.shards),
        "mtp": {"declared": len(shape.mtp_layers), "stored": found.mtp_stored},
        "reap": _kept(found),
        "classes": {
            kind: {
                "parameters": one.parameters,
                "bytes": one.nbytes,
                "matrices": one.matrices,
                "schemes": one.schemes,
            }
            for kind, one in found.classes.items()
        },
        "unused_bytes": {why: _bytes(found, names) for why, names in found.matrices.unused.items()},
        "ranks": [asdict(one) for one in split],
        "problems": [one.to_json() for one in found.problems],
    }


def _kept(found: Inspection) -> dict[str, Any] | None:
    if found.kept is None:
        return None
    counts = sorted({len(numbers) for numbers in found.kept.values()})
    highest = max((max(numbers) for numbers in found.kept.values() if numbers), default=-1)
    return {
        "layers": len(found.kept),
        "kept": counts,
        "before": highest + 1,
    }


def _bytes(found: Inspection, names: list[str]) -> int:
    return sum(found.matrices.sizes.get(name, 0) for name in names)


def _show(found: Inspection, split: list[Holding]) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    _facts(console, found)
    _classes(console, found)
    if split:
        _ranks(console, split)
    _problems(console, found)


def _facts(console: Console, found: Inspection) -> None:
    from rich.markup import escape

    from glmspark.config.units import format_size

    shape = found.architecture
    linear = sum(layer.linear for layer in shape.layers)
    mixed = f" ({linear} of them linear attention)" if linear else ""
    declared = sum(shape.parameters.values())
    experts = f"{shape.experts} experts, {shape.experts_per_token} a token"
    active = f"{_billions(shape.active_parameters)} active for a token"
    there = "weights there" if found.mtp_stored else "no weights"
    size = f"{found.nbytes / 1e9:,.2f} GB ({format_size(found.nbytes)})"
    lines = [
        f"{shape.name}, {len(shape.layers)} layers{mixed}, {experts}",
        f"{_billions(found.parameters)} parameters stored, {_billions(declared)} declared, {active}",
        f"{size} in {len(found.content.tensors):,} tensors, {_shards(len(found.content.shards))}",
        f"MTP: {len(shape.mtp_layers)} declared, {there}",
    ]
    if kept := _kept(found):
        counts = "/".join(map(str, kept["kept"]))
        lines.append(f"REAP: {counts} of at least {kept['before']} experts kept in {kept['layers']} layers")
    console.print(f"[bold]{escape(found.where)}[/bold]")
    for line in lines:
        console.print("  " + escape(line))


def _classes(console: Console, found: Inspection) -> None:
    from rich.table import Table
    from rich.text import Text

    from glmspark.config.units import format_size

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, justify in (
        ("weights", "left"),
        ("parameters", "right"),
        ("size", "right"),
        ("stored as", "left"),
    ):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for kind, one in found.classes.items():
        ordered = sorted(one.schemes.items(), key=lambda item: -item[1])
        total = max(one.nbytes, 1)
        stored = ", ".join(
            name if len(ordered) == 1 else f"{name} {100 * size / total:.0f} %" for name, size in ordered
        )
        table.add_row(
            kind.replace("_", " "), _billions(one.parameters), format_size(one.nbytes), Text(stored)
        )
    for why, names in found.matrices.unused.items():
        table.add_row(Text(f"unused: {why}"), "", format_size(_bytes(found, names)), "")
    console.print(table)


def _shards(count: int) -> str:
    return "1 shard" if count == 1 else f"{count} shards"


def _billions(count: int) -> str:
    return f"{count / 1e9:,.2f} B" if count >= 10**8 else f"{count / 1e6:,.2f} M"


def _ranks(console: Console, split: list[Holding]) -> None:
    from rich.table import Table

    from glmspark.config.units import format_size

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("rank", "layers", "tensors", "holds", "in shards"):
        table.add_column(title, justify="right")
    for one in split:
        table.add_row(
            str(one.rank),
            f"{one.layers[0]}-{one.layers[1] - 1}",
            f"{one.tensors:,}",
            format_size(one.nbytes),
            f"{one.shards} of {format_size(one.shard_bytes)}",
        )  # fmt: skip
    console.print(table)


def _problems(console: Console, found: Inspection) -> None:
    from rich.text import Text

    from glmspark.models.inspection import Severity

    colours = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
    if not found.problems:
        console.print(Text("no problems found", style="green"))
    for one in found.problems:
        severity = (str(one.severity), colours[one.severity])
        console.print(Text.assemble(severity, f" {one.rule}: {one.seen}"))
        if one.where:
            console.print(Text(f"  where: {one.where}"))
        console.print(Text(f"  then:  {one.effect}"))
        console.print(Text(f"  → {one.remedy}", style="dim"))
