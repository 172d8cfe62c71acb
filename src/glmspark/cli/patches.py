"""`glmspark patches`: our changes to vLLM, and their state on the vLLM installed here."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glmspark.engine.survey import Survey

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

COLOURS = {
    "applied": "green",
    "refused": "bold red",
    "skipped": "yellow",
    "superseded upstream": "cyan",
    "not needed here": "dim",
}


def patches(as_json: AsJson = False) -> None:
    """List the changes glmspark makes to vLLM, and what becomes of each on the vLLM installed here.

    Exit code 1 where one that is needed does not fit: a launch would stop there.

    Example: [bold]glmspark patches[/bold]
    """
    from rich.console import Console

    from glmspark.engine.patch import PatchRefusedError, State
    from glmspark.engine.survey import survey
    from glmspark.errors import UsageError

    try:
        with Console(stderr=True).status("importing vLLM"):
            found = survey()
    except PatchRefusedError as error:
        raise UsageError(str(error), step="read the environment") from None
    if as_json:
        json.dump(found.to_json(), sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        _print(found)
    if any(outcome.state is State.REFUSED for outcome in found.outcomes):
        raise typer.Exit(1)


def _print(found: Survey) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    if found.target is None:
        console.print("vLLM is not installed in this environment, so the patches' state is not known.")
    else:
        capability = " {}.{}".format(*found.target.capability) if found.target.capability else ""
        console.print(f"vLLM {found.target.version} on {found.target.platform}{capability}")
    for row in found.to_json()["patches"]:
        state = row["state"] or "unknown"
        console.print()
        console.print(Text(row["name"], style="bold"), Text(state, style=COLOURS.get(state, "")))
        console.print(Text(f"  {row['title']}"))
        console.print(Text(f"  because: {row['why'] or row['reason']}"))
