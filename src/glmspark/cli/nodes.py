"""What commands that work on nodes have in common: which nodes are meant, and a line while one waits."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glmspark.config.cluster import Cluster
    from glmspark.nodes.ssh import Address

OnCluster = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="On the nodes of this cluster.yaml, from any machine."),
]


def image_name(value: str | None) -> str | None:
    """Of an option that names an image: refuses what cannot, before anything is looked at."""
    import re

    from glmspark.config.cluster import IMAGE_NAME

    if value is not None and re.fullmatch(IMAGE_NAME, value) is None:
        raise typer.BadParameter(f"{value!r} is no image name such as glmspark:0.1.0")
    return value


def where(hosts: list[str] | None, cluster: Path | None) -> tuple[Cluster | None, dict[str, Address | None]]:
    """The cluster file, if one is given, and how to reach the nodes meant; this machine if none is named.

    Hosts beside a cluster file choose among its nodes. Raises UsageError for what is neither.
    """
    from dataclasses import replace

    from glmspark.config.cluster import load_cluster
    from glmspark.errors import UsageError
    from glmspark.nodes.doctor import addresses
    from glmspark.nodes.ssh import Address

    if cluster is not None:
        loaded = load_cluster(cluster)
        known = addresses(loaded)
        for name in hosts or ():
            if name not in known:
                raise UsageError(f"{cluster} has no node {name}", next=f"its nodes are {', '.join(known)}")
        return loaded, {name: known[name] for name in known if not hosts or name in hosts}
    if not hosts:
        return None, {"this machine": None}
    found: dict[str, Address | None] = {}
    for text in hosts:
        try:
            address = Address.parse(text)
        except ValueError as error:
            raise UsageError(str(error), next="for example: spark1 me@192.168.1.12 spark3:2222") from None
        if text in found:
            raise UsageError(f"{text} is named twice")
        found[text] = replace(address, name=text)
    return None, found


@contextlib.contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done while it lasts, on a terminal; the function yielded changes the words."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield lambda said: status.update(f"{what}: {said}")
