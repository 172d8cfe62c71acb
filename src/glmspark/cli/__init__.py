"""What people type: one file a verb; each parses, calls one function, prints."""

import typer

from glmspark import __version__

app = typer.Typer(no_args_is_help=True, help="One GLM endpoint on one to eight DGX Sparks, or on this machine.")


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        typer.echo(f"glmspark {__version__}")


def main() -> None:
    """Run the command line."""
    app()
