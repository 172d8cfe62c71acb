"""`glmspark explain`: what a log, a deployment or the nodes show of known failures, with cause and remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmspark.cli.console import AsJson, complete_deployment, print_json
from glmspark.cli.nodes import OnCluster, waiting

if TYPE_CHECKING:
    from rich.console import Console

    from glmspark.launch.case import Case
    from glmspark.symptoms.match import Finding

_MOST_EVIDENCE = 4


def explain(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="LOG|DEPLOYMENT",
            help="A log (any vLLM's), a directory, a bundle, `-` for standard input, or a deployment; "
            "the one that failed last if not given.",
            autocompletion=complete_deployment,
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Also look at the nodes as they are now, as doctor does.")
    ] = False,
    cluster: OnCluster = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also what only follows from something else, and what is ruled out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look up what went wrong in the catalogue of known failures: cause, remedy, and how sure that is.

    Example: [bold]glmspark explain[/bold] after a start that failed, [bold]glmspark explain vllm.log[/bold],
    or [bold]docker logs vllm 2>&1 | glmspark explain -[/bold]

    Exit codes: 0 something known shows, 3 nothing does.
    """
    case = _case(what, live=live, cluster=cluster)
    if as_json:
        print_json(case.to_json())
    else:
        _print(case, every=every)
    if not case.findings():
        raise typer.Exit(3)


def _case(what: str | None, *, live: bool, cluster: Path | None) -> Case:
    from glmspark.errors import UsageError
    from glmspark.launch import explain as gather
    from glmspark.launch.record import home

    if cluster is not None:
        from glmspark.config.cluster import load_cluster

        loaded = load_cluster(cluster)
        with waiting("asking the nodes") as said:
            return gather.explain_live(loaded, what, said)
    if what is None and live:
        with waiting("looking at this machine") as said:
            try:
                place = gather.newest_failed()
            except UsageError:
                return gather.explain_live(None, None, said)
            return gather.explain_deployment(place, live=True, said=said)
    if what is None:
        with waiting("reading") as said:
            return gather.explain_deployment(gather.newest_failed(), said=said)
    if what != "-" and not Path(what).exists() and "/" not in what and home(what).has_record():
        with waiting("reading") as said:
            return gather.explain_deployment(home(what), live=live, said=said)
    if live:
        raise UsageError("--live goes with a deployment or --cluster", next="leave it out, or name one")
    return gather.explain_file(what)


def _print(case: Case, *, every: bool) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    console.print(f"[bold]{_plain(case.about)}[/bold]: {_read(case)}")
    for note in case.notes:
        console.print(f"  {_plain(note)}", style="dim")
    findings = case.findings()
    shown = [one for one in findings if every or one.words != "follows"] or findings
    for number, one in enumerate(shown, 1):
        _print_one(console, number, one)
    if len(shown) < len(findings):
        rest = ", ".join(one.symptom.name for one in findings if one not in shown)
        console.print(f"\nWhat only follows from it (--all shows it): {rest}", style="dim")
    if every:
        for symptom, why in case.ruled_out():
            console.print(f"\nruled out: {symptom.name}, since {_plain(why)}", style="dim")
    if all(one.words == "follows" for one in findings):
        console.print("\nNo known cause shows.")
        if (first := case.first_error()) is not None:
            console.print(f"The first error, of {_plain(first[0])}:")
            console.print("  " + _plain(first[1]).replace("\n", "\n  "))


def _print_one(console: Console, number: int, one: Finding) -> None:
    from rich.table import Table

    symptom = one.symptom
    colour = {"almost certain": "bold red", "likely": "yellow"}.get(one.words, "dim")
    console.print(f"\n{number}. [bold]{_plain(symptom.title)}[/bold]  [{colour}]{one.words}[/{colour}]")
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    if one.follows is not None:
        table.add_row("   from:", _plain(one.follows))
    for line in one.evidence[:_MOST_EVIDENCE]:
        table.add_row("   seen:", _plain(line))
    if len(one.evidence) > _MOST_EVIDENCE:
        table.add_row("", f"and {len(one.evidence) - _MOST_EVIDENCE} more")
    table.add_row("   cause:", _plain(symptom.cause))
    table.add_row("   next:", _plain(symptom.remedy))
    table.add_row("   name:", _plain(symptom.name))
    table.add_row("   source:", _plain(", ".join(symptom.sources)))
    console.print(table)


def _read(case: Case) -> str:
    size = case.scanner.bytes
    amount = f"{size / 2**20:.1f} MiB" if size >= 1 << 20 else f"{size / 1024:.0f} KiB"
    count = len(case.sources)
    return f"{count} source{'s' if count != 1 else ''}, {amount} read"


def _plain(text: str) -> str:
    """Text of logs is no markup, and has no say over the terminal."""
    from rich.markup import escape

    shown = (one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)
    return escape("".join(shown))
