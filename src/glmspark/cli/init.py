"""`glmspark init`: write cluster.yaml by looking at the nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmspark.cli.console import AsJson, print_json
from glmspark.cli.nodes import image_name

if TYPE_CHECKING:
    from glmspark.config.cluster import Link
    from glmspark.config.imports import Note
    from glmspark.nodes.discover import Fabric
    from glmspark.nodes.survey import Facts

_ENV_BYTES = 128 * 1024


def init(
    hosts: Annotated[
        list[str] | None,
        typer.Argument(metavar="HOST", help="The nodes as \\[user@]host[:port], the head first."),
    ] = None,
    from_env: Annotated[
        Path | None, typer.Option("--from-env", help="Take the nodes from a .env file of a shell launcher.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write; - prints it.")] = Path(
        "cluster.yaml"
    ),
    image: Annotated[
        str | None,
        typer.Option(
            callback=image_name,
            help="The image that ranks run in \\[default: this environment where nodes have it, else "
            "glmspark:VERSION].",
        ),
    ] = None,
    identity: Annotated[
        Path | None, typer.Option(help="Private key to use beside the agent's and ~/.ssh/config's.")
    ] = None,
    known_hosts: Annotated[
        Path | None, typer.Option(help="File with the nodes' host keys instead of ~/.ssh/known_hosts.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at nodes and write the cluster file: fabric, RDMA devices, how they are connected.

    The fabric is found by which addresses reach which. Wi-Fi and the interface with the default route are
    never chosen. Nothing is changed on the nodes.

    Example: [bold]glmspark init spark1 spark2[/bold]
    """
    import asyncio
    from dataclasses import replace

    from glmspark import __version__
    from glmspark.cli.nodes import waiting, where
    from glmspark.config.cluster import Runtime, dump_cluster
    from glmspark.config.files import write_atomic
    from glmspark.config.imports.env import parse_env
    from glmspark.errors import UsageError
    from glmspark.nodes.discover import cluster_of, has_docker, look_for_fabric, runtime_of
    from glmspark.nodes.facts.environment import environment

    notes: list[Note] = []
    if from_env is not None:
        if hosts:
            raise UsageError("give hosts or --from-env, not both")
        old = parse_env(_settings(from_env), str(from_env))
        hosts, notes = list(old.hosts), list(old.notes)
    if not hosts:
        raise UsageError("no nodes given", next="for example: glmspark init spark1 spark2")
    to_stdout = str(output) == "-"
    if not to_stdout and output.exists() and not force:
        raise UsageError(
            f"{output} is there already", next="write another with --output, or replace it with --force"
        )
    if not to_stdout and (output.is_dir() or not output.parent.is_dir()):
        seen = f"{output} is a directory" if output.is_dir() else f"there is no directory {output.parent}"
        raise UsageError(seen, step=f"write {output}", next="name a file with --output")
    _, named = where(hosts, None)
    key, hosts_file = (
        None if path is None else path.expanduser().absolute() for path in (identity, known_hosts)
    )
    addresses = {
        name: replace(address, keys=() if key is None else (key,), known_hosts=hosts_file)
        for name, address in named.items()
        if address is not None
    }
    with waiting(f"looking at {len(addresses)} node{'s' if len(addresses) > 1 else ''}") as said:
        mine = sys.prefix if sys.prefix != sys.base_prefix else None  # only an environment of its own counts
        asked = [] if image or mine is None else [environment(mine)]
        facts, fabric = asyncio.run(look_for_fabric(addresses, also=asked, said=said))
    runtime, why = Runtime(image=image), ""
    if image is None:
        runtime, why = runtime_of(facts, sys.prefix, __version__, image=f"glmspark:{__version__}")
    cluster = cluster_of(addresses, facts, fabric, runtime)
    comment = f"Written by `glmspark init`: {_sentence(fabric)}.\n" + "\n".join(fabric.notes)
    data = dump_cluster(cluster, comment=comment.strip())
    without = [name for name in facts if name not in has_docker(facts)]
    if without and runtime.kind == "docker" and not as_json:
        print(f"note: no Docker Engine answers on {', '.join(without)}", file=sys.stderr)
    if from_env is not None:
        _compare(cluster.nodes[0].fabric, old.interfaces, notes)
    if to_stdout:
        sys.stdout.write(data.decode())
        return
    write_atomic(output, data)
    if as_json:
        print_json(
            {
                "path": str(output),
                "shape": fabric.shape,
                "notes": list(fabric.notes),
                "runtime": why,
                "imported": [note.to_json() for note in notes],
                "cluster": cluster.model_dump(mode="json"),
            }
        )
        return
    show_notes(notes)
    print(f"{output}: {len(cluster.nodes)} node{'s' if len(cluster.nodes) > 1 else ''}, {_sentence(fabric)}")
    for node in cluster.nodes:
        links = ", ".join(
            f"{one.interface} {one.address}" + (f" ({one.hca})" if one.hca else "") for one in node.fabric
        )
        print(f"  {node.name} {node.address}: {links or 'no fabric needed'}")
    place = runtime.venv if runtime.kind == "venv" else f"containers of {runtime.image}"
    print(f"  ranks run in {place}" + (f" ({why})" if why else ""))
    for line in fabric.notes:
        print(f"  note: {line}")
    if runtime.kind == "docker" and not _has_image(facts, runtime.image):
        print(f"  note: no node has {runtime.image} yet: `glmspark image build` on one makes it")
    print(f"next: glmspark doctor --cluster {output}")


def _settings(path: Path) -> str:
    """The text of a .env file, of which no more is read than one may have. UsageError where it is none."""
    from glmspark.errors import UsageError

    try:
        with path.expanduser().open("rb") as stream:
            raw = stream.read(_ENV_BYTES + 1)
        text = raw.decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        seen = f"{path} cannot be read: {reason}"
    else:
        if len(raw) <= _ENV_BYTES and "\0" not in text:
            return text
        seen = f"{path} is no .env file: it is {'binary' if chr(0) in text else 'larger than 128 KiB'}"
    raise UsageError(seen, next="name the launcher's .env file, or give the hosts themselves")


def _has_image(facts: dict[str, Facts], image: str | None) -> bool:
    from glmspark.nodes.checks.alike import identity_of
    from glmspark.nodes.facts.docker import IMAGES

    return image is None or any(identity_of(known.get(IMAGES) or (), image) for known in facts.values())


def _sentence(fabric: Fabric) -> str:
    words = {
        "alone": "alone",
        "pair": "connected directly or through a switch, as a pair",
        "ring": "cabled as a ring",
        "line": "cabled as a line",
        "switch": "connected through a switch",
    }
    rdma = all(one.hca for links in fabric.links.values() for one in links) and fabric.shape != "alone"
    return words[fabric.shape] + (", with RDMA" if rdma else "")


def _compare(fabric: tuple[Link, ...], interfaces: tuple[str, ...], notes: list[Note]) -> None:
    from glmspark.config.imports import Note

    found = ", ".join(sorted(one.interface for one in fabric)) or "none"
    notes.extend(
        Note("refused", "ETH_IF", f"{name} is not fabric on the first node; found there: {found}")
        for name in interfaces
        if name not in found.split(", ")
    )


def show_notes(notes: list[Note]) -> None:
    """Print what became of an old file's settings, one a line."""
    for note in notes:
        place = f"line {note.line}: " if note.line else ""
        print(f"  {note.outcome:8}{place}{note.name}: {note.what}")
