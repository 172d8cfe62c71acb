"""`glmspark up`: plan, start, prove."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from glmspark.cli.console import AsJson, duration, own_command, print_json
from glmspark.cli.recipe import complete_recipe

if TYPE_CHECKING:
    from glmspark.launch.prepare import Wanted
    from glmspark.launch.record import Deployment
    from glmspark.launch.up import Outcome

KEY_VARIABLE = "GLMSPARK_API_KEY"
_LONGEST_KEY = 4096


def complete_backend(incomplete: str) -> list[str]:
    """Backends for tab completion."""
    return [name for name in ("mp", "ray", "lockstep") if name.startswith(incomplete)]


def up(  # noqa: PLR0913, PLR0917 - one parameter for each option
    recipe: Annotated[
        str, typer.Argument(help="Recipe, by name or file.", autocompletion=complete_recipe)
    ] = "glm-tiny",
    name: Annotated[
        str | None, typer.Option(help="Name of the deployment; the recipe's name if not given.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve on the nodes of this cluster.yaml.")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Of these nodes; rank 0, with the API, on the first."),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="What holds the ranks together: mp, ray or lockstep.",
            metavar="NAME",
            autocompletion=complete_backend,
        ),
    ] = None,
    tp: Annotated[int | None, typer.Option(help="Ranks that share every layer.", min=1)] = None,
    pp: Annotated[int | None, typer.Option(help="Stages that share out the layers.", min=1)] = None,
    host: Annotated[str, typer.Option(help="Address the API listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port the API listens on.")] = 8000,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Environment variable that holds the API key; {KEY_VARIABLE} if it is set."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File that holds the API key.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve other machines without an API key.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(metavar="DIR", help="Serve this checkpoint instead of the recipe's.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Longest time to wait for the API.", min=1)
    ] = None,
    toy: Annotated[
        bool, typer.Option("--toy", help="Its layout and settings at toy scale, over a glm-tiny, on CPUs.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it running when a canary fails, to look into it.")
    ] = False,
    restarts: Annotated[
        str | None,
        typer.Option(
            metavar="N[/MINUTES]", help="Start again as a whole at most so often, then stay down; 0: never."
        ),
    ] = None,
    keep_up: Annotated[
        bool, typer.Option("--keep-up", help="Come back when a lost node does, also after a reboot.")
    ] = False,
    lock: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the lock file of what is started here.")
    ] = None,
    locked: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Start only what agrees with this lock file.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and the commands; start nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Serve a recipe: plan it, start its ranks, prove that it answers rightly.

    Without a recipe it serves glm-tiny; without --cluster, on this machine. It returns when every canary has
    passed; the deployment then goes on by itself until `glmspark down`. Ctrl-C before that stops everything
    it started.

    Example: [bold]glmspark up --pp 2 --port 8001[/bold]

    Example: [bold]glmspark up glm-tiny --cluster cluster.yaml --tp 2[/bold]

    Exit codes: 0 ready (or it was already), 1 failed, 2 wrong use, 130 interrupted.
    """
    from glmspark.launch.prepare import Request, read_request

    request = Request(
        recipe=recipe,
        name=name,
        tp=tp,
        pp=pp,
        host=host,
        port=port,
        key=api_key(api_key_env, api_key_file),
        insecure=insecure,
        model=_model(model),
        keep=keep,
        timeout=timeout,
        toy=toy,
        backend=_backend(backend),
        restarts=None if restarts is None else _restarts(restarts),
        keep_up=keep_up,
    )
    wanted = read_request(request)
    if cluster is not None:
        from glmspark.cli.up_cluster import up_cluster

        up_cluster(wanted, cluster, nodes=nodes, lock=lock, locked=locked, dry_run=dry_run, as_json=as_json)
        return
    _refuse_cluster_options(
        **{"nodes": nodes, "lock": lock, "locked": locked, "restarts": restarts, "keep-up": keep_up or None}
    )
    if dry_run:
        _print_plan(wanted, as_json)
        return
    _start(wanted, as_json)


def _model(directory: str | None) -> Path | None:
    """An empty word is a variable that was not set, not the current directory."""
    from glmspark.errors import UsageError

    if directory is not None and not directory.strip():
        raise UsageError("--model is empty", next="name the checkpoint's directory, or leave --model out")
    return None if directory is None else Path(directory)


def _backend(name: str | None) -> Literal["mp", "ray", "lockstep"] | None:
    from glmspark.errors import UsageError

    known: dict[str, Literal["mp", "ray", "lockstep"]] = {"mp": "mp", "ray": "ray", "lockstep": "lockstep"}
    if name is not None and name not in known:
        raise UsageError(f"there is no backend {name}", next=f"backends are {', '.join(known)}")
    return None if name is None else known[name]


def _restarts(text: str) -> tuple[int, float]:
    """Times and minutes of `N` or `N/MINUTES`; the minutes are 30 where none are given."""
    from glmspark.errors import UsageError

    found = re.fullmatch(r"(\d{1,3})(?:/(\d{1,5}))?", text)
    if found is None or (found[2] is not None and int(found[2]) == 0):
        raise UsageError(
            f"--restarts {text}: expected N or N/MINUTES",
            next="for example: --restarts 3/30, or --restarts 0 for never",
        )
    return int(found[1]), float(found[2] or 30)


def _refuse_cluster_options(**given: object) -> None:
    from glmspark.errors import UsageError

    for option, value in given.items():
        if value is not None:
            raise UsageError(
                f"--{option} is for a cluster, and none is named",
                next="add --cluster cluster.yaml; `glmspark init` writes that file",
            )


def api_key(variable: str | None, file: Path | None) -> str | None:
    """The API key from a file or an environment variable, None where there is none. Raises UsageError."""
    from glmspark.config.files import advice
    from glmspark.errors import UsageError

    if variable is not None and file is not None:
        raise UsageError("--api-key-env and --api-key-file exclude each other", next="give one of them")
    if file is not None:
        try:
            with file.open("rb") as stream:
                raw = stream.read(_LONGEST_KEY + 1)
            if len(raw) > _LONGEST_KEY:
                raise UsageError(
                    f"{file} is no API key: it is longer than {_LONGEST_KEY} bytes",
                    next="name a file that holds nothing but the key",
                )
            key, place = raw.decode("utf-8").strip(), str(file)
        except (OSError, ValueError) as error:
            said = advice(error, file) if isinstance(error, OSError) else None
            raise UsageError(
                f"cannot read the API key from {file}",
                seen=str(error),
                next=said or "name a text file that holds the key",
            ) from error
    else:
        place = variable or KEY_VARIABLE
        key = os.environ.get(place, "").strip()
        if not key and variable is None:
            return None
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            f"{place} holds no usable API key",
            seen="empty" if not key else "blanks, control or non-ASCII characters",
            next=f"set it (export {place}=...), or give the key with --api-key-file FILE"
            if not key and file is None
            else "use letters, digits and punctuation only",
        )
    return key


def _print_plan(wanted: Wanted, as_json: bool) -> None:
    import shlex
    import time

    from glmspark.config.units import format_size
    from glmspark.launch.prepare import make_plan, make_record
    from glmspark.nodes.transport import Local

    plan = make_plan(wanted, Local())
    taken = _taken(wanted)
    record = make_record(wanted, plan, now=time.time())
    if as_json:
        commands = [{"rank": rank.rank, "argv": rank.argv, "env": rank.env} for rank in record.ranks]
        warnings = [*plan.warnings, *taken]
        print_json({"name": record.name, "plan": record.plan, "commands": commands, "warnings": warnings})
        return
    print(f"{record.name}: TP{plan.tp} PP{plan.pp}, {plan.model_dir}, would serve {record.endpoint.url}")
    for rank, started in zip(plan.ranks, record.ranks, strict=True):
        first, end = rank.layers
        print(
            f"\nrank {rank.rank} on {rank.host}: layers {first}-{end - 1}, cores {rank.omp_bind}, "
            f"{format_size(rank.memory.needed)}, KV cache {format_size(rank.memory.kv_cache)}"
        )
        print("  " + " ".join(f"{key}={shlex.quote(value)}" for key, value in sorted(started.env.items())))
        print("  " + shlex.join(started.argv))
    for warning in (*plan.warnings, *taken):
        print(f"warning: {warning}", file=sys.stderr)


def _taken(wanted: Wanted) -> list[str]:
    """Why the API could not listen now, if it could not: a start would be refused."""
    from glmspark.errors import UsageError
    from glmspark.launch.up import check_port
    from glmspark.nodes.transport import Local

    try:
        check_port(wanted, Local())
    except UsageError as error:
        return [f"{error.message}: {error.next}" if error.next else error.message]
    return []


def _start(wanted: Wanted, as_json: bool) -> None:
    from glmspark.cli.starting import shown, summary
    from glmspark.launch.up import bring_up

    outcome = shown(wanted.home.name, as_json, lambda display: bring_up(wanted, display.update))
    if as_json:
        print_json({**summary(outcome.deployment), "already": outcome.already})
        return
    _print_ready(wanted, outcome)


def _print_ready(wanted: Wanted, outcome: Outcome) -> None:
    import time

    deployment = outcome.deployment
    if outcome.already:
        state = f"{deployment.state} for {duration(time.time() - deployment.since)}"
        print(f"{deployment.name} already runs, {state}")
    else:
        took = duration(deployment.since - deployment.created)
        print(f"{deployment.name} is ready after {took}: {len(deployment.verdicts)} canaries passed")
    print(f"  endpoint  {deployment.endpoint.url}  (model {deployment.endpoint.model})")
    if deployment.endpoint.needs_key:
        print(f"  API key   in {wanted.home.key_file}")
    print(f"  try       {curl_line(deployment, wanted)}")
    glmspark = own_command()
    other = "" if deployment.name == "glm-tiny" else f" --name {deployment.name}"
    print(f"  chat      {glmspark} chat{other}")
    print(f"  stop      {glmspark} down{'' if deployment.name == 'glm-tiny' else ' ' + deployment.name}")


def curl_line(deployment: Deployment, wanted: Wanted) -> str:
    """A shell line that asks the endpoint the recipe's own first question."""
    import json
    import shlex

    question = next((canary.prompt for canary in wanted.recipe.canaries if canary.probe == "answer"), "Hello")
    body = {
        "model": deployment.endpoint.model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
    }
    words = ["curl", f"{deployment.endpoint.url}/chat/completions", "-H", "Content-Type: application/json"]
    line = shlex.join([*words, "-d", json.dumps(body)])
    if deployment.endpoint.needs_key:
        key = shlex.quote(str(wanted.home.key_file))
        line += f' -H "Authorization: Bearer $(cat {key})"'
    return line
