"""`glmspark recipe`: list, show and check recipes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmspark.cli.console import AsJson, print_json
from glmspark.cli.nodes import image_name

if TYPE_CHECKING:
    from glmspark.config import Recipe
    from glmspark.plan.engine_help import EngineHelp

app = typer.Typer(
    name="recipe",
    no_args_is_help=True,
    help="List, show and check recipes.\n\n"
    "Example: [bold]glmspark recipe show glm-tiny > mine.yaml; glmspark recipe lint mine.yaml[/bold]",
    rich_markup_mode="rich",
)


def complete_recipe(incomplete: str) -> list[str]:
    """Names for tab completion; the shell adds files itself."""
    from glmspark.config import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the recipes that come with glmspark.

    Example: [bold]glmspark recipe list[/bold]
    """
    from glmspark.config import load_recipe, recipe_names

    recipes = [load_recipe(name) for name in recipe_names()]
    if as_json:
        print_json(
            [
                {
                    "name": recipe.name,
                    "description": recipe.description,
                    "model": str(recipe.model.source),
                    "tp": recipe.layout.tp,
                    "pp": recipe.layout.pp,
                    "dcp": recipe.layout.dcp,
                    "backend": recipe.layout.backend,
                    "nodes": recipe.needs.nodes or 1,
                    "link": recipe.needs.link,
                    "toy": recipe.toy is not None and not recipe.toy.lacks,
                    "lacks": list(recipe.lacks),
                    "max_model_len": recipe.engine.max_model_len,
                }
                for recipe in recipes
            ]
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("recipe", "runs on", "layout", "what"):
        table.add_column(title, overflow="fold", no_wrap=title != "what")
    for recipe in recipes:
        table.add_row(recipe.name, _where(recipe), recipe.layout.words(), recipe.description)
    Console().print(table)
    if any(recipe.lacks for recipe in recipes):
        print("\nnot yet: this version lacks something for it; `glmspark recipe show` says what")


def _where(recipe: Recipe) -> str:
    if recipe.lacks:
        return "not yet"
    nodes = recipe.needs.nodes or 1
    return "this machine" if nodes == 1 else f"{nodes} nodes"


@app.command()
def show(
    recipe: Annotated[str, typer.Argument(help="Name or file.", autocompletion=complete_recipe)],
    as_json: AsJson = False,
) -> None:
    """Print a recipe: the file as it is, or with --json all its values, defaults included.

    What this version lacks for it, and that its figures are other people's, is said beside it.

    Example: [bold]glmspark recipe show glm-tiny > mine.yaml[/bold]
    """
    from glmspark.config import load_recipe, read_recipe

    loaded = load_recipe(recipe)
    if as_json:
        print_json(loaded.model_dump(mode="json"))
        return
    sys.stdout.write(read_recipe(recipe).decode("utf-8-sig"))
    sys.stdout.flush()
    for sentence in loaded.lacks:
        print(f"not yet: {sentence}", file=sys.stderr)
    if any(source.published for source in loaded.sources) and not loaded.measured:
        print("note: the published figures are their authors'; glmspark has measured none", file=sys.stderr)


@app.command()
def lint(
    recipes: Annotated[list[str], typer.Argument(help="Names or files.", autocompletion=complete_recipe)],
    image: Annotated[
        str | None,
        typer.Option(callback=image_name, help="Also check the arguments against the engine in this image."),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", help="Ask on this cluster's first node, its image if --image names none."),
    ] = None,
    engine: Annotated[
        bool, typer.Option("--engine", help="Also check the arguments against the engine installed here.")
    ] = False,
    engine_help: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The same with what `vllm serve --help=all` has printed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check recipes and name everything that is wrong, by file and line. Exit code 1 if anything is.

    Example: [bold]glmspark recipe lint mine.yaml --image glmspark:latest[/bold]
    """
    from glmspark.config import RecipeError, read_recipe
    from glmspark.config.problems import describe
    from glmspark.plan.lint import Lint, lint_recipe

    known = _flags_of(image, cluster, engine, engine_help)
    results: list[tuple[str, Lint]] = []
    for recipe in recipes:
        try:
            results.append((recipe, lint_recipe(read_recipe(recipe), known)))
        except RecipeError as error:
            results.append((error.path, Lint(None, error.problems, ())))
    if as_json:
        print_json(
            [
                {
                    "recipe": path,
                    "ok": result.ok,
                    "problems": [
                        {"line": problem.line, "message": problem.message, "hint": problem.hint}
                        for problem in result.problems
                    ],
                    "notes": list(result.notes),
                }
                for path, result in results
            ]
        )
    else:
        for path, result in results:
            for problem in result.problems:
                print(describe(path, problem))
                if problem.hint:
                    print(f"    {problem.hint}")
            for note in result.notes:
                print(f"{path}: note: {note}")
            if result.ok:
                version = (
                    f", arguments as vLLM {known.version or '(version not said)'} has them" if known else ""
                )
                print(f"{path}: ok{version}")
    if not all(result.ok for _, result in results):
        raise typer.Exit(1)


def _flags_of(
    image: str | None, cluster: Path | None, engine: bool, recorded: Path | None
) -> EngineHelp | None:
    """What the engine that was named says of its flags; None where none was named."""
    import asyncio

    from glmspark.cli.nodes import waiting
    from glmspark.config.cluster import load_cluster
    from glmspark.errors import UsageError
    from glmspark.launch import engine_help

    ways = [image is not None or cluster is not None, engine, recorded is not None]
    if sum(ways) > 1:
        raise UsageError("--image (or --cluster), --engine and --engine-help exclude each other")
    if recorded is not None:
        return engine_help.of_file(recorded)
    loaded = None if cluster is None else load_cluster(cluster)
    if loaded is not None and image is None:
        image = loaded.runtime.image
        if image is None:
            raise UsageError(f"{cluster} names no image", next="give --image IMAGE")
    if not any(ways):
        return None
    with waiting("asking the engine for its flags"):
        asked = engine_help.of_engine() if image is None else engine_help.of_image(image, loaded)
        return asyncio.run(asked)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A recipe of format v1 or v2.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; it is printed if not given.")
    ] = None,
    kv_cache: Annotated[
        str | None,
        typer.Option("--kv-cache", help="KV cache of a rank, such as 20GiB; old formats name none."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take over a recipe of another tool, and say of each of its keys whether it is kept, changed or refused.

    Nothing in the file is run.

    Example: [bold]glmspark recipe import old.yaml --kv-cache 20GiB -o mine.yaml[/bold]
    """
    from glmspark.cli.init import show_notes
    from glmspark.config import read_recipe
    from glmspark.config.files import write_atomic
    from glmspark.config.imports.recipes import import_recipe
    from glmspark.errors import UsageError

    if output is not None and output.exists() and not force:
        raise UsageError(f"{output} is there already", next="write another, or replace it with --force")
    found = import_recipe(read_recipe(file), str(file), kv_cache=kv_cache)
    if output is not None:
        write_atomic(output, found.text)
    if as_json:
        print_json(
            {
                "format": found.version,
                "path": None if output is None else str(output),
                "recipe": found.text.decode(),
                "notes": [note.to_json() for note in found.notes],
            }
        )
    elif output is None:
        sys.stdout.write(found.text.decode())
    else:
        print(f"{output}: taken over from {file} (format v{found.version})")
        show_notes(list(found.notes))
        print(f"next: glmspark recipe lint {output}")
