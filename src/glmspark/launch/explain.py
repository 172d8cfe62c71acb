"""What is known of a deployment that does not do well: its record, its logs, its nodes, their guards."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glmspark.config.cluster import Cluster
from glmspark.config.files import advice
from glmspark.errors import GlmsparkError, UsageError
from glmspark.launch import lock as locks
from glmspark.launch.agents import Agents
from glmspark.launch.case import Case, Readable
from glmspark.launch.cluster_ops import Place, place_of, record_of, states_by_name, the_one
from glmspark.launch.cluster_status import overall
from glmspark.launch.record import Deployment, Home, State, homes
from glmspark.launch.status import LOST
from glmspark.nodes.checks.everything import judge
from glmspark.nodes.doctor import addresses, look_at
from glmspark.nodes.facts.kernel_log import KERNEL_LOG
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.guards import GLANCE, Seen
from glmspark.nodes.node import Node
from glmspark.nodes.survey import survey
from glmspark.nodes.transport import NodeError

__all__ = ["explain_deployment", "explain_file", "explain_live", "newest_failed"]

_LINES = 20_000  # of each rank's log on nodes, which come over SSH


def newest_failed() -> Home:
    """The deployment that failed last, by this machine's records; else the latest on nodes, of whose end
    these do not hear. Raises UsageError where there is neither."""
    found: list[tuple[float, Home]] = []
    elsewhere: list[tuple[float, Home]] = []
    for place in homes():
        with contextlib.suppress(GlmsparkError):
            deployment = place.read()
            if deployment is None:
                continue
            lost = (
                deployment.cluster is None and not deployment.state.over and not locks.held(place.lock_file)
            )
            if deployment.state in (State.FAILED, State.UNPROVEN) or lost:
                found.append((deployment.since, place))
            elif deployment.cluster is not None and not deployment.state.over:
                elsewhere.append((deployment.since, place))
    found = found or elsewhere
    if not found:
        raise UsageError(
            "no deployment failed",
            next="name a log, or a deployment that runs; `glmspark explain --live` looks at the nodes",
        )
    return max(found, key=lambda pair: pair[0])[1]


def explain_file(name: str, stdin: Readable | None = None) -> Case:
    """A log, an archive or a directory of them; `-` for standard input. Raises UsageError where it is not."""
    if name == "-":
        case = Case("standard input")
        case.stream(stdin if stdin is not None else sys.stdin.buffer, "stdin")
        return case
    path = Path(name)
    try:
        is_directory, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise UsageError(f"cannot look at {name}: {error.strerror}", next=advice(error, path)) from error
    case = Case(name)
    if is_directory:
        case.directory(path)
    elif is_file:
        case.file(path)
    else:
        raise UsageError(
            f"there is no file and no deployment {name}",
            next="`glmspark status` shows deployments; `-` reads standard input",
        )
    if not case.sources and case.notes:
        raise UsageError(
            f"cannot read {name}: {case.notes[0].removeprefix(path.name + ': ')}",
            next="name a log, a directory of logs or a bundle that this user may read",
        )
    return case


def explain_deployment(
    home: Home, *, live: bool = False, said: Callable[[str], None] = lambda _: None
) -> Case:
    """A deployment of this machine's records. live: also look at its nodes as they are now.

    said: told each step, for people who wait. Raises what reading the record does.
    """
    deployment = home.read()
    place = place_of(home, deployment)
    case = Case(_about(home.name, deployment))
    _record(case, deployment)
    if place is None:
        for directory in (home.logs, home.path / "evidence"):
            if directory.is_dir():
                with contextlib.suppress(UsageError):
                    case.directory(directory)
        lost = deployment is not None and not deployment.state.over and not locks.held(home.lock_file)
        if lost:
            case.facts.add("deployment.state", LOST)
        if live:
            asyncio.run(_look(case, {"this machine": None}, None, said))
    else:
        asyncio.run(_on_nodes(case, place, live, said))
    return case


def explain_live(
    cluster: Cluster | None, name: str | None, said: Callable[[str], None] = lambda _: None
) -> Case:
    """Nodes as they are now, and what runs on them: those of a cluster file, or this machine.

    Raises NodeError where none of them can be reached.
    """
    if cluster is None:
        case = Case("this machine, now")
        asyncio.run(_look(case, {"this machine": None}, None, said))
        return case
    nodes = tuple(node.name for node in cluster.nodes)
    case = Case(f"{', '.join(nodes)}, now")
    asyncio.run(_on_nodes(case, Place(cluster, nodes, name), True, said))
    return case


def _about(name: str, deployment: Deployment | None) -> str:
    return name if deployment is None else f"{name} ({deployment.state}, {deployment.endpoint.model})"


def _record(case: Case, deployment: Deployment | None) -> None:
    if deployment is not None:
        case.known(deployment.model_dump(mode="json"), "record")


async def _on_nodes(case: Case, place: Place, live: bool, said: Callable[[str], None]) -> None:
    said(f"asking {', '.join(place.nodes)}")
    known = addresses(place.cluster)
    async with Fleet({name: known[name] for name in place.nodes}) as fleet:
        for node, error in fleet.lost.items():
            _unreached(case, node, error)
        if not fleet.nodes:
            return
        name = place.name
        if name is None:
            with contextlib.suppress(UsageError):  # nothing runs there
                name = await the_one(place, fleet)
        if name is not None:
            await _ranks(case, place.named(name) if place.name is None else place, fleet)
        await _guards(case, fleet)
        if live:
            await _facts(case, fleet, place.cluster, said)


def _unreached(case: Case, node: str, error: NodeError) -> None:
    case.facts.add("node.reached", False, node)
    case.notes.append(f"{node}: {error.message}")
    case.text(f"{error.message}\n{error.seen or ''}", node)


async def _ranks(case: Case, place: Place, fleet: Fleet) -> None:
    states = (await states_by_name(place, fleet)).get(place.name or "", {})
    for node, state in states.items():
        if isinstance(state, NodeError):
            _unreached(case, node, state)
        elif state is not None:
            case.known({key: one for key, one in state.items() if key != "record"}, f"{node} agent")
    deployment = record_of(place, states)
    if place.deployment is None:
        _record(case, deployment)
    if states:
        state = overall(states, deployment)
        case.facts.known.pop("deployment.state", None)  # the record's own does not hear of its end
        case.facts.add("deployment.state", state)
        model = deployment.endpoint.model if deployment is not None else "a model that is not known"
        case.about = f"{place.name} ({state}, {model})"
    for node, log in (await Agents(fleet, place.name).logs(_LINES)).items():
        if isinstance(log, NodeError):
            case.notes.append(f"{node}: {log.message}")
        else:
            case.text("\n".join(log.lines), f"{node} rank {log.rank}")


async def _guards(case: Case, fleet: Fleet) -> None:
    async def ask(node: Node) -> Seen | None:
        return (await survey(node, (GLANCE,))).get(GLANCE)

    for node, seen in (await fleet.each(ask)).items():
        if isinstance(seen, Seen) and seen.state is not None and seen.runs:
            case.known({**seen.state, "node": node}, f"{node} guard")


async def _look(
    case: Case, where: dict[str, Any], cluster: Cluster | None, said: Callable[[str], None]
) -> None:
    async with Fleet(where) as fleet:
        await _guards(case, fleet)
        await _facts(case, fleet, cluster, said)


async def _facts(case: Case, fleet: Fleet, cluster: Cluster | None, said: Callable[[str], None]) -> None:
    """What doctor sees, and the kernel's own lines."""
    from glmspark.nodes.checks import Expected
    from glmspark.nodes.doctor import expected_of

    expected = expected_of(cluster) if cluster is not None else Expected(runtime="venv", ports=())
    seen = await look_at(fleet, cluster=cluster, expected=expected, said=said)
    case.known({"verdicts": [one.to_json() for one in judge(seen)]}, "doctor")
    for node, facts in seen.facts.items():
        for lines in (facts.get(KERNEL_LOG) or {}).values():
            case.text("\n".join(lines), f"{node} kernel", old=True)
