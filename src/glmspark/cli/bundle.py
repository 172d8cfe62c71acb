"""`glmspark bundle`: one archive for a bug report, secrets removed."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, complete_deployment, print_json
from glmspark.cli.nodes import OnCluster, waiting

if TYPE_CHECKING:
    from glmspark.launch.cluster_ops import Place
    from glmspark.launch.record import Home


def bundle(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="DEPLOYMENT",
            help="Deployment; the one that failed last, or the only one, if not given.",
            autocompletion=complete_deployment,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write it; here, named by deployment and time."
        ),
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Also replace user names, home directories, public addresses.")
    ] = False,
    doctor: Annotated[
        bool, typer.Option("--doctor/--no-doctor", help="Whether to look at the nodes as doctor does.")
    ] = True,
    cluster: OnCluster = None,
    as_json: AsJson = False,
) -> None:
    """Pack what a bug report needs: record, recipe, plan, logs, evidence, the guards' last hour, versions.

    API keys, tokens, passwords and Authorization headers are removed; `about.json` in it says how many. Look
    through it before you hand it on: what you asked the model may stand in logs. `glmspark explain FILE`
    reads it.

    Example: [bold]glmspark bundle --anonymous[/bold]
    """
    from glmspark.errors import UsageError
    from glmspark.launch.bundle import write
    from glmspark.launch.bundle_deployment import gather

    home, place = _which(name, cluster)
    chosen = home.name if home is not None else name or "nodes"
    path = output or Path(f"glmspark-{chosen}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    if path.is_dir():
        raise UsageError(f"{path} is a directory", next="--output names the file to write")
    if not path.parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}", next="make it, or leave --output out")
    if not re.search(r"\.(?:tar\.gz|tgz)$", path.name):
        raise UsageError(f"{path}: a bundle is a .tar.gz", next=f"--output {path}.tar.gz")
    with waiting("gathering") as said:
        found = gather(chosen, home, place, doctor=doctor, said=said)
        about = write(found, path, anonymous=anonymous)
    if as_json:
        print_json(about)
    else:
        _print(about)


def _which(name: str | None, cluster: Path | None) -> tuple[Home | None, Place | None]:
    from glmspark.errors import UsageError
    from glmspark.launch.cluster_ops import find
    from glmspark.launch.explain import newest_failed
    from glmspark.launch.status import pick

    if cluster is not None:
        if name is None:
            raise UsageError("which deployment?", next="name it: glmspark bundle NAME --cluster FILE")
        place = find(name, cluster)
        return (place.home if place is not None else None), place
    if name is not None:
        return pick(name), None
    try:
        return newest_failed(), None
    except UsageError:
        return pick(None), None


def _print(about: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from glmspark.config.units import format_size

    console = Console(file=sys.stdout, highlight=False)
    groups: dict[str, list[int]] = {}
    for name, size in about["files"].items():
        groups.setdefault(name.rpartition("/")[0] or name, []).append(size)
    table = Table(box=None, pad_edge=False)
    for title in ("what", "files", "size"):
        table.add_column(title, justify="left" if title == "what" else "right")
    for group, sizes in sorted(groups.items()):
        table.add_row(escape(group), str(len(sizes)), format_size(sum(sizes)))
    console.print(table)
    for note in about["notes"]:
        console.print(f"  {escape(note)}", style="dim")
    removed = ", ".join(f"{count} {kind}" for kind, count in sorted(about["removed"].items()))
    console.print(f"removed: {removed or 'nothing'}")
    size = format_size(about["size"])
    console.print(f"[bold]{escape(about['path'])}[/bold]  {size}, readable by you alone")
