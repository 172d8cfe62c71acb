"""`glmspark tune`: plan, apply, restore and status of what is tuned on nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmspark.cli.console import AsJson, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glmspark.config.cluster import Cluster
    from glmspark.nodes.checks import Verdict
    from glmspark.nodes.ssh import Address
    from glmspark.nodes.transport import NodeError
    from glmspark.nodes.tuning import TunePlan

app = typer.Typer(
    name="tune",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Tune nodes: kernel settings, swap, services, limits, lingering, the guard. What was there before "
    "is kept in a journal on each node.\n\nExample: [bold]glmspark tune plan --cluster cluster.yaml[/bold]",
)


def complete_key(incomplete: str) -> list[str]:
    """What can be tuned, for tab completion."""
    from glmspark.nodes.tuning.plan import KEYS

    return [key for key in KEYS if key.startswith(incomplete)]


Hosts = Annotated[
    list[str] | None,
    typer.Argument(metavar="HOST", help="Nodes as \\[user@]host[:port]; this machine if none is given."),
]
ClusterFile = Annotated[Path | None, typer.Option("--cluster", help="Nodes from a cluster file.")]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        help="Only this: sysctl, swap, services, limits, linger, guard. May be given again.",
        autocompletion=complete_key,
    ),
]
Swap = Annotated[str, typer.Option("--swap", help="How much swap there should be in all.")]


def _plans(
    addresses: Mapping[str, Address | None],
    only: list[str] | None,
    swap: str,
    cluster: Cluster | None,
) -> tuple[dict[str, TunePlan], dict[str, NodeError]]:
    import asyncio

    from glmspark.config.units import parse_size
    from glmspark.errors import UsageError
    from glmspark.nodes.transport import NodeError
    from glmspark.nodes.tuning import fleet
    from glmspark.nodes.tuning.plan import KEYS

    for key in only or ():
        if key not in KEYS:
            raise UsageError(f"there is nothing to tune called {key}", next=f"there are {', '.join(KEYS)}")
    try:
        size = parse_size(swap)
    except ValueError as error:
        raise UsageError(f"--swap: {error}") from None
    found = asyncio.run(fleet.plans(addresses, swap_size=size, only=only or KEYS, cluster=cluster))
    plans = {name: one for name, one in found.items() if not isinstance(one, NodeError)}
    return plans, {name: one for name, one in found.items() if isinstance(one, NodeError)}


@app.command("plan")
def plan_(
    hosts: Hosts = None,
    cluster: ClusterFile = None,
    only: Only = None,
    swap: Swap = "64GiB",
    as_json: AsJson = False,
) -> None:
    """Show what `apply` would change on each node, and why. Changes nothing.

    Example: [bold]glmspark tune plan spark1 spark2[/bold]
    """
    from glmspark.cli.nodes import waiting, where

    known, addresses = where(hosts, cluster)
    with waiting("looking"):
        plans, lost = _plans(addresses, only, swap, known)
    if as_json:
        print_json(
            {
                "plans": [one.to_json() for one in plans.values()],
                "errors": [e.to_json() for e in lost.values()],
            }
        )
    else:
        for one in plans.values():
            _show(one)
    _end(lost, as_json)


@app.command("apply")
def apply_(
    hosts: Hosts = None,
    cluster: ClusterFile = None,
    only: Only = None,
    swap: Swap = "64GiB",
    as_json: AsJson = False,
) -> None:
    """Make the changes that `plan` shows. `restore` takes them back.

    Example: [bold]glmspark tune apply --cluster cluster.yaml --swap 32GiB[/bold]
    """
    from glmspark.cli.nodes import waiting, where

    known, addresses = where(hosts, cluster)
    with waiting("looking"):
        plans, lost = _plans(addresses, only, swap, known)
    if not as_json:
        for one in plans.values():
            _show(one)
    lost |= _apply(plans, addresses)
    if as_json:
        print_json(
            {
                "applied": [one.to_json() for name, one in plans.items() if name not in lost],
                "errors": [error.to_json() for error in lost.values()],
            }
        )
    elif any(one.items for one in plans.values()):
        print("`glmspark tune restore` takes it back")
    _end(lost, as_json)


def _apply(plans: Mapping[str, TunePlan], addresses: Mapping[str, Address | None]) -> dict[str, NodeError]:
    import asyncio

    from glmspark.cli.nodes import waiting
    from glmspark.nodes.transport import NodeError
    from glmspark.nodes.tuning import fleet

    wanted = {name: one for name, one in plans.items() if one.items}
    try:
        with waiting("tuning") as said:
            results = asyncio.run(fleet.apply(wanted, addresses, said=said))
    except KeyboardInterrupt:
        print("interrupted; `glmspark tune restore` takes back what was made", file=sys.stderr)
        raise
    return {name: error for name, error in results.items() if isinstance(error, NodeError)}


@app.command()
def restore(hosts: Hosts = None, cluster: ClusterFile = None, as_json: AsJson = False) -> None:
    """Take back all that was tuned: the nodes are then as they were before the first `apply`.

    What someone else has changed since is left alone and named.

    Example: [bold]glmspark tune restore --cluster cluster.yaml[/bold]
    """
    import asyncio

    from glmspark.cli.nodes import waiting, where
    from glmspark.nodes.transport import NodeError
    from glmspark.nodes.tuning import fleet

    _, addresses = where(hosts, cluster)
    with waiting("restoring") as said:
        results = asyncio.run(fleet.restore(addresses, said=said))
    lost = {name: one for name, one in results.items() if isinstance(one, NodeError)}
    left = {name: one for name, one in results.items() if not isinstance(one, NodeError)}
    if as_json:
        print_json({"restored": left, "errors": [error.to_json() for error in lost.values()]})
    else:
        for name, lines in left.items():
            print(f"{name}: restored")
            for line in lines:
                print(f"  {line}")
    _end(lost, as_json)


@app.command()
def status(hosts: Hosts = None, cluster: ClusterFile = None, as_json: AsJson = False) -> None:
    """Show what is tuned on each node now, and what was there before.

    Example: [bold]glmspark tune status --json[/bold]
    """
    import asyncio

    from glmspark.cli.nodes import where
    from glmspark.nodes.transport import NodeError
    from glmspark.nodes.tuning import fleet

    _, addresses = where(hosts, cluster)
    results = asyncio.run(fleet.journals(addresses))
    lost = {name: one for name, one in results.items() if isinstance(one, NodeError)}
    found = {name: one for name, one in results.items() if not isinstance(one, NodeError)}
    if as_json:
        print_json(
            {
                "nodes": {name: [entry.to_json() for entry in one.entries] for name, one in found.items()},
                "errors": [error.to_json() for error in lost.values()],
            }
        )
    else:
        for name, one in found.items():
            entries = [entry for entry in one.entries if entry.kind != "dir"]
            print(f"{name}: {'nothing is tuned' if not entries else f'{len(entries)} changes'}")
            for entry in entries:
                print(f"  {entry.kind:8} {entry.name}{_was(entry.kind, entry.before, entry.after)}")
    _end(lost, as_json)


def _was(kind: str, before: Any, after: Any) -> str:
    if kind == "sysctl":
        return f": {before} → {after}"
    if kind == "service":
        return f": {'ran' if before else 'did not run'} before"
    if kind == "path":
        return f": was {before.kind}" if before.kind != "absent" else ": new"
    return ""


def mend(
    addresses: Mapping[str, Address | None],
    verdicts: list[Verdict],
    *,
    cluster: Cluster | None,
    as_json: bool,
) -> None:
    """What `glmspark doctor --fix` does: tune what the verdicts name, and drop page caches."""
    import asyncio

    from glmspark.cli.nodes import waiting
    from glmspark.nodes.transport import NodeError
    from glmspark.nodes.tuning import fleet

    keys = sorted({one.fix for one in verdicts if one.fix and one.fix != "page-cache"})
    caches = {one.node for one in verdicts if one.fix == "page-cache" and one.node}
    nodes = {one.node for one in verdicts if one.fix and one.node}
    lost: dict[str, NodeError] = {}
    if keys:
        with waiting("looking"):
            plans, lost = _plans(
                # Guards share a secret, so they are set up together.
                {name: one for name, one in addresses.items() if name in nodes or "guard" in keys},
                keys,
                "64GiB",
                cluster,
            )
        if not as_json:
            for one in plans.values():
                _show(one)
        lost |= _apply(plans, addresses)
    if caches:
        with waiting("dropping page caches"):
            results = asyncio.run(fleet.drop_page_cache({name: addresses[name] for name in sorted(caches)}))
        lost |= {name: error for name, error in results.items() if isinstance(error, NodeError)}
    if not as_json:
        print(
            "fixed what can be; run `glmspark doctor` again" if keys or caches else "nothing to fix by tuning"
        )
    _end(lost, as_json)


def _show(plan: TunePlan) -> None:
    from glmspark.nodes.tuning import describe

    print(f"{plan.node}:" + ("" if plan.items else " nothing to change"))
    for item in plan.items:
        print(f"  {item.title}")
        for why in item.why:
            print(f"    {why}")
        for change in item.changes:
            print(f"      {describe(change)}")
    for line in plan.left:
        print(f"  not done: {line}")


def _end(lost: Mapping[str, NodeError], as_json: bool) -> None:
    from glmspark.cli.console import wants_colour
    from glmspark.errors import error_block

    if lost:
        if not as_json:
            for error in lost.values():
                print(error_block(error, colour=wants_colour(sys.stderr)), file=sys.stderr)
        raise typer.Exit(1)
