"""What people type: one file a verb; each parses, calls one function, prints.

Imports of anything large stand inside the functions, so that `glmspark --help` answers at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

import typer

from glmspark import __version__
from glmspark.cli import (
    chat,
    clean,
    doctor,
    down,
    fetch,
    image,
    init,
    inspect,
    lab,
    logs,
    models,
    patches,
    recipe,
    restart,
    status,
    tune,
    up,
)
from glmspark.cli.console import own_command, print_json, wants_colour

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
app.command()(init.init)
app.command()(doctor.doctor)
app.command()(inspect.inspect)
app.command()(fetch.fetch)
app.command()(fetch.verify)
app.add_typer(models.app)
app.add_typer(tune.app)
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


def main() -> None:
    """Run the command line. Errors glmspark knows are printed as one block, or as JSON with --json."""
    from glmspark.errors import GlmsparkError, error_block

    try:
        app()
    except GlmsparkError as error:
        if "--json" in sys.argv[1:]:
            print_json(error.to_json())
        else:
            if error.next:
                error.next = error.next.replace("`glmspark ", f"`{own_command()} ")
            print(error_block(error, colour=wants_colour(sys.stderr)), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has gone (`glmspark logs | head`); Python would complain again at its end.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        with contextlib.suppress(OSError):  # if it is our output that cannot be written, not at the end again
            sys.stdout.flush()
            sys.exit(1)
        os._exit(1)
