"""`glmspark lab`: virtual Sparks on this machine."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from glmspark.cli.console import AsJson, print_json

if TYPE_CHECKING:
    from glmspark.lab.look import LabState
    from glmspark.lab.record import LabHome
    from glmspark.launch.record import Home

app = typer.Typer(
    name="lab",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Virtual Sparks on this machine: each with a network, sshd and Docker Engine of its own. "
    "Needs root.\n\n"
    "Example: [bold]glmspark lab up 3 --link 10gbe[/bold], then [bold]glmspark lab shell spark1[/bold]",
)


def complete_node(incomplete: str) -> list[str]:
    """Names of nodes for tab completion."""
    from glmspark.lab import lab_home

    record = lab_home().read()
    return [name for name in record.wiring.nodes if name.startswith(incomplete)] if record else []


def complete_topology(incomplete: str) -> list[str]:
    """Ways to cable a lab, for tab completion."""
    from glmspark.lab.spec import Topology

    return [name for name in Topology if name.startswith(incomplete)]


def complete_link(incomplete: str) -> list[str]:
    """Names of nodes, links, cables and networks for tab completion."""
    from glmspark.lab import lab_home

    record = lab_home().read()
    return [name for name in record.wiring.names() if name.startswith(incomplete)] if record else []


@app.command()
def up(
    nodes: Annotated[int, typer.Argument(help="How many nodes, 1 to 8.", metavar="N")],
    link: Annotated[
        str | None,
        typer.Option(
            help="Speed of every fabric link: 1gbe, 10gbe or a rate such as 2.5gbit. Unlimited if not given."
        ),
    ] = None,
    topology: Annotated[
        str,
        typer.Option(
            help="How the fabric is cabled: switch, ring (3 and more nodes) or pair (2).",
            autocompletion=complete_topology,
        ),
    ] = "switch",
    delay: Annotated[
        str | None, typer.Option(help="One-way delay of the fabric, such as 200us. Needs tc's netem.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="Share of packets the fabric loses, such as 0.1%. Needs tc's netem.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make N virtual Sparks, and the cluster.yaml that describes them.

    Each is a machine of its own to what runs in it: name, network, users, processes, /etc, /home, /tmp and
    shared memory; programs are this machine's. The default route goes over a Wi-Fi-like interface that leads
    nowhere. Ctrl-C leaves nothing behind.

    Example: [bold]glmspark lab up 3 --link 1gbe[/bold]
    """
    from glmspark.lab import LabSpec, Topology, lab_home, parse_delay, parse_loss, parse_rate
    from glmspark.lab import up as make

    spec = LabSpec(
        nodes,
        Topology(_one_of(topology, list(Topology))),
        parse_rate(link) if link is not None else None,
        parse_delay(delay) if delay is not None else 0,
        parse_loss(loss) if loss is not None else 0.0,
    )
    home = lab_home()
    begin = time.monotonic()
    make(home, spec, _reporter(begin))
    seconds = time.monotonic() - begin
    if as_json:
        state = _state()
        print_json((state.to_json() if state else {}) | {"seconds": round(seconds, 2)})
        return
    sys.stdout.write(home.cluster_file.read_text())
    print(
        f"\n{nodes} node{'s' if nodes > 1 else ''} up in {seconds:.1f} s\n"
        f"  this file:  {home.cluster_file}\n"
        f"  log in:     ssh -F {home.ssh_config} spark1   or   glmspark lab shell spark1\n"
        f"  serve:      glmspark lab image   and   glmspark up --cluster {home.cluster_file}\n"
        f"  end:        glmspark lab down",
        file=sys.stderr,
    )


def _one_of(text: str, choices: list[str]) -> str:
    from glmspark.errors import UsageError

    if text not in choices:
        raise UsageError(f"there is no topology {text}", next=f"topologies are {', '.join(choices)}")
    return text


def _reporter(begin: float):  # type: ignore[no-untyped-def]
    def report(text: str) -> None:
        print(f"{time.monotonic() - begin:7.1f} s  {text}", file=sys.stderr, flush=True)

    return report


def _state() -> LabState | None:
    from glmspark.lab import lab_home, look

    return look(lab_home())


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show the lab: its nodes, what answers on them, and which links are cut.

    Example: [bold]glmspark lab status --json[/bold]

    Exit codes: 0 all up, 1 something is down, 3 there is no lab.
    """
    state = _state()
    if as_json:
        print_json(state.to_json() if state else None)
    elif state is None:
        print("there is no lab; `glmspark lab up 3` makes one of three nodes")
    else:
        _print(state)
    raise typer.Exit(3 if state is None else 0 if state.well else 1)


def _print(state: LabState) -> None:
    from rich.console import Console
    from rich.table import Table

    from glmspark.config.units import format_size
    from glmspark.lab.spec import format_rate

    # Into a file or a pipe, lines are as long as they need to be.
    width = None if sys.stdout.isatty() else 160
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True, width=width)
    colour = "green" if state.well else "cyan" if state.state in ("starting", "stopping") else "bold red"
    word = state.state if state.well or state.state != "up" else "up, but not all of it answers"
    spec = state.record.spec
    console.print(
        f"[{colour}]{word}[/{colour}]  {spec.topology}, links {format_rate(spec.rate)}  {state.cluster}"
    )
    table = Table(box=None, pad_edge=False)
    for title in ("  node", "address", "sshd", "docker", "memory", "links"):
        table.add_column(title, justify="right" if title == "memory" else "left")
    for node in state.nodes:
        links = [f"{link.interface} {link.address}{' CUT' if link.cut else ''}" for link in node.links]
        table.add_row(
            f"  {node.name}",
            node.address,
            "answers" if node.sshd else "-",
            node.docker or "-",
            format_size(node.memory),
            "\n".join(links),
        )
    console.print(table)


@app.command(context_settings={"ignore_unknown_options": True})
def shell(
    node: Annotated[str, typer.Argument(help="The node.", autocompletion=complete_node)],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command and its arguments, after --; a login shell if not given."),
    ] = None,
    root: Annotated[bool, typer.Option("--root", help="As root, not as the lab's user.")] = False,
) -> None:
    """Open a shell in a node, or run one command there; it works also while the node's links are cut.

    The exit code is the command's.

    Example: [bold]glmspark lab shell spark2 -- ip address[/bold]
    """
    from glmspark.lab import lab_home, shell_argv
    from glmspark.lab.run import PATH

    argv = shell_argv(lab_home(), node, command or [], root=root)
    sys.stdout.flush()
    os.execvpe(argv[0], argv, {"PATH": PATH, "TERM": os.environ.get("TERM", "dumb")})  # noqa: S606


@app.command()
def cut(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Nodes, links (spark1:wlP9s9), cables (spark1-spark2) or networks (fabric, wifi).",
            metavar="NODE|LINK...",
            autocompletion=complete_link,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Pull the cable of links; both ends see it as when a cable is pulled. A node means all its links.

    Example: [bold]glmspark lab cut wifi[/bold]
    """
    _switch(names, up=False, as_json=as_json)


@app.command()
def mend(
    names: Annotated[
        list[str], typer.Argument(help="As for cut.", metavar="NODE|LINK...", autocompletion=complete_link)
    ],
    as_json: AsJson = False,
) -> None:
    """Put the cable of links back.

    Example: [bold]glmspark lab mend wifi[/bold]
    """
    _switch(names, up=True, as_json=as_json)


def _switch(names: list[str], *, up: bool, as_json: bool) -> None:
    from glmspark.lab import lab_home, switch_links

    done = switch_links(lab_home(), names, up=up)
    word = "mended" if up else "cut"
    if as_json:
        print_json({word: done})
    else:
        print(f"{word}: {', '.join(done)}")


@app.command()
def image(as_json: AsJson = False) -> None:
    """Bring the base image for containers to every node. It is made once (about a minute) and kept.

    Example: [bold]glmspark lab image[/bold]
    """
    from glmspark.lab import bring_image, lab_home

    brought = bring_image(lab_home(), _reporter(time.monotonic()))
    if as_json:
        print_json(brought.to_json())
    else:
        print(f"{brought.name} ({brought.id[:19]}) is on {', '.join(brought.nodes)}")


@app.command()
def down(as_json: AsJson = False) -> None:
    """Take the lab down: nodes, networks, files. Only cached images are kept.

    Deployments that run in it end with it, and are named. It also clears what a killed `lab up` has left.
    Where there is no lab it says so and leaves with 0.

    Example: [bold]glmspark lab down[/bold]
    """
    from glmspark.lab import down as end
    from glmspark.lab import lab_home
    from glmspark.launch.cluster_ops import close_records

    begin = time.monotonic()
    home, report = lab_home(), _reporter(begin)
    running = _deployments(home)
    for one in running:
        report(f"{one.name} runs in it and ends with it")
    cleared = end(home, report)
    close_records(running)
    if as_json:
        print_json(cleared.to_json() | {"deployments": [one.name for one in running]})
    elif cleared.nothing:
        print("there is no lab")
    else:
        print(f"the lab is down, {cleared.processes} processes ended, in {time.monotonic() - begin:.1f} s")


def _deployments(home: LabHome) -> list[Home]:
    """What runs in the lab, as far as this machine's records say."""
    from glmspark.config.cluster import load_cluster
    from glmspark.errors import GlmsparkError
    from glmspark.launch.cluster_ops import running_on

    if not home.cluster_file.is_file():
        return []
    try:
        return running_on(load_cluster(home.cluster_file))
    except GlmsparkError:  # whatever is wrong with a file or record, the lab can be taken down
        return []
