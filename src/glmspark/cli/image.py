"""`glmspark image`: the images that ranks run in."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from glmspark.cli.console import AsJson, print_json
from glmspark.cli.nodes import image_name

app = typer.Typer(
    name="image",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="The images that ranks run in.\n\nExample: [bold]glmspark image build[/bold] on a Spark",
)


@app.callback()
def _group() -> None:
    pass


def _platform(value: str) -> str:
    if re.fullmatch(r"[a-z0-9]+/[a-z0-9_]+(/[a-z0-9.]+)?", value) is None:
        raise typer.BadParameter(f"{value!r} is no platform such as linux/arm64")
    return value


@app.command()
def build(
    platform: Annotated[
        str, typer.Option(callback=_platform, help="What it is to run on, as Docker names it.")
    ] = "linux/arm64",
    tag: Annotated[
        str | None,
        typer.Option(
            callback=image_name, help="Its name \\[default: glmspark:VERSION, glmspark-lab:VERSION]."
        ),
    ] = None,
    lab: Annotated[
        bool, typer.Option("--lab", help="The lab's image instead, on the first node of the lab that stands.")
    ] = False,
    write_only: Annotated[
        Path | None,
        typer.Option("--write-only", metavar="DIR", help="Write Dockerfile and wheel there; build nothing."),
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="This wheel of glmspark instead of one of this source."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a Dockerfile that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a Dockerfile for Sparks (CUDA 13, vLLM, Ray, b12x and this glmspark, all pinned) and build it.

    Build it on one node: `glmspark up` brings it to the others. It has not been built or run on a GB10 yet.

    Example: [bold]glmspark image build --tag glmspark:mine[/bold]
    """
    from glmspark import __version__
    from glmspark.errors import UsageError
    from glmspark.launch.image_build import build_lab, build_spark, docker_build, write_context

    if lab and (write_only is not None or wheel is not None):
        raise UsageError("--lab goes with neither --write-only nor --wheel: it adds to the lab's base")
    name = tag or f"glmspark{'-lab' if lab else ''}:{__version__}"
    if write_only is not None:
        import shlex

        file = write_context(write_only, wheel=wheel, force=force)
        argv = docker_build(name, platform, str(write_only))
        if as_json:
            print_json({"dockerfile": str(file), "build": argv})
        else:
            print(f"{file}: written\nnext: {shlex.join(argv)}")
        return

    def report(said: str) -> None:
        print(said, file=sys.stderr)

    built = build_lab(name, report=report) if lab else build_spark(name, platform, wheel=wheel, report=report)
    if as_json:
        print_json(built.to_json())
        return
    print(f"{built.tag} is {built.id[7:19]}" + (f" on {built.node}" if built.node else ""))
    print(f'next: runtime: {{kind: docker, image: "{built.tag}"}} in cluster.yaml; `glmspark up` copies it')
