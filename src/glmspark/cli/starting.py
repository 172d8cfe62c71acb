"""What the commands that start a deployment share: a display while it starts, and how its end is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from glmspark.cli.console import print_json

if TYPE_CHECKING:
    from glmspark.cli.progress import Display
    from glmspark.launch.record import Deployment

T = TypeVar("T")


def shown(title: str, as_json: bool, start: Callable[[Display], T]) -> T:
    """Run `start` with a display of its phases; with as_json a start that failed is printed as JSON."""
    from glmspark.cli.progress import make_display
    from glmspark.launch.up import StartError

    with make_display(title, sys.stderr if as_json else sys.stdout) as display:
        try:
            return start(display)
        except StartError as error:
            display.finish()
            if as_json:
                print_json({**error.to_json(), "deployment": summary(error.deployment)})
                raise typer.Exit(error.exit_code) from error
            raise


def summary(deployment: Deployment) -> dict[str, Any]:
    """What --json prints of a start."""
    return {
        "name": deployment.name,
        "state": str(deployment.state),
        "endpoint": deployment.endpoint.model_dump(mode="json"),
        "seconds": round(deployment.since - deployment.created, 1),
        "ranks": [
            rank.model_dump(mode="json", include={"rank", "node", "process", "log"})
            for rank in deployment.ranks
        ],
        "verdicts": [verdict.model_dump(mode="json") for verdict in deployment.verdicts],
        "reason": deployment.reason.model_dump(mode="json") if deployment.reason else None,
    }
