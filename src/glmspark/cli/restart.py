"""`glmspark restart`: stop, and start the same again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmspark.cli.console import AsJson, complete_deployment, duration, print_json
from glmspark.cli.nodes import OnCluster

if TYPE_CHECKING:
    from glmspark.cli.progress import Display
    from glmspark.launch.record import Deployment


def restart(
    name: Annotated[
        str | None,
        typer.Argument(help="Deployment; the only one if not given.", autocompletion=complete_deployment),
    ] = None,
    cluster: OnCluster = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Environment variable that holds its API key, where it is not known here."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File that holds its API key.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Stop a deployment, if it runs, start the very same again, and prove it.

    All ranks stop and start together: one that ended cannot come back alone. On a cluster the nodes' own
    copies of their commands are started; nothing is planned or copied anew.

    Example: [bold]glmspark restart glm-tiny[/bold]

    Exit codes: 0 ready, 1 failed, 2 wrong use, 130 interrupted.
    """
    from glmspark.cli.starting import shown, summary
    from glmspark.cli.up import api_key
    from glmspark.launch.cluster_ops import find
    from glmspark.launch.status import pick

    known = None if cluster is not None else pick(name)
    place = find(known.name if known is not None else name, cluster)
    key = api_key(api_key_env, api_key_file)
    title = name or (known.name if known is not None else "it")
    deployment = shown(title, as_json, lambda display: _restart(known, place, display, key))
    if as_json:
        print_json(summary(deployment))
        return
    took = duration(deployment.since - deployment.created)
    where = f"  on {deployment.ranks[0].node}" if deployment.cluster is not None else ""
    print(f"{deployment.name} is ready again after {took}: {len(deployment.verdicts)} canaries passed")
    print(f"  endpoint  {deployment.endpoint.url}  (model {deployment.endpoint.model}){where}")


def _restart(known: object, place: object, display: Display, key: str | None) -> Deployment:
    from glmspark.launch.cluster_ops import Place
    from glmspark.launch.record import Home
    from glmspark.launch.restart import restart_here, restart_on_nodes

    if isinstance(place, Place):
        return restart_on_nodes(place, display, key=key)
    assert isinstance(known, Home)  # noqa: S101 - without a cluster file there is a record
    return restart_here(known, display, key=key).deployment
