"""What people type: one file a verb; each parses, calls one function, prints.

Imports of anything large stand inside the functions, so that `glmspark --help` answers at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from glmspark import __version__
from glmspark.cli import (
    bench,
    bundle,
    chat,
    clean,
    doctor,
    down,
    explain,
    fetch,
    guard,
    image,
    init,
    inspect,
    lab,
    logs,
    models,
    patches,
    plan,
    recipe,
    restart,
    speculator,
    status,
    tune,
    up,
    watch,
)
from glmspark.cli.console import own_command, print_json, wants_colour

if TYPE_CHECKING:
    from glmspark.errors import GlmsparkError

app = typer.Typer(
    name="glmspark",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="One GLM endpoint on one to eight DGX Sparks, or on this machine: planned before it starts, proven "
    "correct before it is called ready.\n\n"
    'Example: [bold]glmspark up[/bold], then [bold]glmspark chat "What is 2+2? Answer in one word:"[/bold]',
)
for verb in (up.up, status.status, logs.logs, chat.chat, restart.restart, down.down, clean.clean):
    app.command()(verb)
app.command()(patches.patches)
app.command()(plan.plan)
app.command()(init.init)
app.command()(doctor.doctor)
app.command()(explain.explain)
app.command()(bundle.bundle)
app.command()(watch.watch)
app.command()(guard.guard)
app.command()(inspect.inspect)
app.command()(fetch.fetch)
app.command()(fetch.verify)
app.add_typer(bench.app)
app.add_typer(models.app)
app.add_typer(tune.app)
app.add_typer(speculator.app)
app.add_typer(recipe.app)
app.add_typer(image.app)
app.add_typer(lab.app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"glmspark {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and stop.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


_WRONG_USE: type[Exception] = typer.BadParameter.__mro__[1]
"""UsageError of click, of which some versions of typer have their own: found by what typer exports."""


def _run(as_json: bool) -> None:
    """Run the command that was typed. With as_json what click complains of is an error like any other."""
    from glmspark.errors import GlmsparkError, UsageError

    if not as_json:
        app()
        return
    try:
        code = app(standalone_mode=False, prog_name="glmspark")
    except _WRONG_USE as error:
        context = getattr(error, "ctx", None)
        words = context.command_path if context is not None else "glmspark"
        raise UsageError(error.format_message(), next=f"`{words} --help`") from None  # type: ignore[attr-defined]
    except typer.Abort:
        raise GlmsparkError(
            "the question was not answered", next="give --yes where nobody can answer"
        ) from None
    sys.exit(code if isinstance(code, int) else 0)


def main() -> None:
    """Run the command line. Errors glmspark knows are printed as one block, or as JSON with --json."""
    from glmspark.errors import GlmsparkError

    words = sys.argv[1:]
    as_json = "--json" in words[: words.index("--") if "--" in words else len(words)]
    try:
        _run(as_json)
    except GlmsparkError as error:
        _print_error(error, as_json)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has gone (`glmspark logs | head`); Python would complain again at its end.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _print_error(_of_os(error), as_json)
        with contextlib.suppress(OSError):  # if it is our output that cannot be written, not at the end again
            sys.stdout.flush()
            sys.exit(1)
        os._exit(1)


def _print_error(error: GlmsparkError, as_json: bool) -> None:
    from glmspark.errors import error_block

    if as_json:
        with contextlib.suppress(OSError):  # of an output that cannot be written people are still told
            print_json(error.to_json())
            return
    if error.next:
        error.next = error.next.replace("`glmspark ", f"`{own_command()} ")
    print(error_block(error, colour=wants_colour(sys.stderr)), file=sys.stderr)


def _of_os(error: OSError) -> GlmsparkError:
    """The error for a file that no part of glmspark has foreseen to fail."""
    from pathlib import Path

    from glmspark.config.files import advice
    from glmspark.errors import GlmsparkError

    where = error.filename if isinstance(error.filename, str) else None
    return GlmsparkError(
        f"{f'{where}: ' if where else ''}{error.strerror or error}",
        next=advice(error, Path(where)) if where else None,
    )
