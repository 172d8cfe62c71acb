"""Where deployments stand, from their records, their processes and vLLM's metrics."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from glmspark.errors import StateError, UsageError
from glmspark.launch import lock as locks
from glmspark.launch.metrics import Sample, acceptance, parse_metrics, tokens_per_second
from glmspark.launch.record import Deployment, Home, State, Verdict, home, homes
from glmspark.launch.watch import VITAL_TITLE
from glmspark.nodes import processes

_HALTED = "Tt"
"""States in /proc/PID/stat of a process that does not run on until someone lets it."""

LOST = "lost"
"""State of a deployment whose record says that it runs while nobody answers for it."""


@dataclass(frozen=True)
class RankStatus:
    """One rank. processes: titles of its engine core and workers. memory: bytes of them all (PSS). stopped:
    those that hang in a stop signal (SIGSTOP, a debugger), by title or command."""

    rank: int
    node: str
    pid: int | None
    alive: bool
    phase: str
    processes: list[str]
    memory: int
    log: str
    stopped: list[str]


@dataclass(frozen=True)
class Load:
    """What the engine does now. tokens_per_second: generated, over the time between two looks.
    tokens_per_step: that a step of one request made then, None where nothing drafts."""

    running: float | None
    waiting: float | None
    kv_usage: float | None
    tokens_per_second: float | None
    finished: float | None
    tokens_per_step: float | None = None


@dataclass(frozen=True)
class Status:
    """One deployment. uptime: seconds since it became ready. load: None where the metrics do not answer.

    restarts: those by its own agents, each with at, cause, evidence, seconds. evidence: by node, where the
    last of it lies. admission: whether new work is taken, since when, and why not. forecast: measured speed
    beside the predicted one, see `glmspark.plan.compare`; None where nothing runs or nothing is predicted."""

    name: str
    state: str
    endpoint: str
    model: str
    created: float
    uptime: float | None
    ranks: list[RankStatus]
    load: Load | None
    verdicts: list[Verdict]
    reason: dict[str, Any] | None
    directory: str
    restarts: list[dict[str, Any]] = field(default_factory=list)
    evidence: dict[str, str] = field(default_factory=dict)
    admission: dict[str, Any] | None = None
    forecast: dict[str, Any] | None = None

    @property
    def answers(self) -> bool:
        """Whether one that serves says how it does, with none of its processes stopped."""
        return self.load is not None and not any(rank.stopped for rank in self.ranks)

    @property
    def exit_code(self) -> int:
        """0 ready, 1 failed, lost, unproven or not answering, 3 starting, stopping or stopped."""
        if self.state == State.READY:
            return 0 if self.answers else 1
        return 1 if self.state in (State.FAILED, State.UNPROVEN, LOST) else 3

    def to_json(self) -> dict[str, Any]:
        """The status as JSON data."""
        value = asdict(self)
        value["verdicts"] = [verdict.model_dump(mode="json") for verdict in self.verdicts]
        return value


def look(place: Home, *, sample: float = 0.5) -> Status | None:
    """The status of a deployment, None where there is no record. sample: seconds between two looks at the
    metrics.

    Raises StateError where the record cannot be read.
    """
    deployment = place.read()
    if deployment is None:
        return None
    running = not deployment.state.over and locks.held(place.lock_file)
    if not running and not deployment.state.over:
        deployment = place.read() or deployment  # it may have ended between the two looks
    serving = running and deployment.state in (State.READY, State.UNPROVEN)
    # It may take its time: what follows is of now.
    load = load_of(deployment.endpoint.url, sample) if serving else None
    return Status(
        name=place.name,
        state=str(deployment.state) if running or deployment.state.over else LOST,
        endpoint=deployment.endpoint.url,
        model=deployment.endpoint.model,
        created=deployment.created,
        uptime=max(0.0, time.time() - deployment.since) if serving else None,  # the clock may be set back
        ranks=_ranks(deployment),
        load=load,
        verdicts=deployment.verdicts or (place.read_verdicts() if running else []),
        reason=deployment.reason.model_dump(mode="json") if deployment.reason else None,
        directory=str(place.path),
    )


def _ranks(deployment: Deployment) -> list[RankStatus]:
    stats = processes.all_stats()
    found = []
    for rank in deployment.ranks:
        alive = rank.process is not None and processes.is_alive(rank.process.identity)
        main = [rank.process.pid] if rank.process is not None and alive else []
        family = main + [stat.pid for stat in processes.descendants(main, stats) if not stat.ended]
        halted = [stat.pid for stat in stats if stat.pid in family and stat.state in _HALTED]
        titles = [processes.title(pid) for pid in family]
        found.append(
            RankStatus(
                rank=rank.rank,
                node=rank.node,
                pid=rank.process.pid if rank.process else None,
                alive=alive,
                phase=rank.phase if alive else "ended",
                processes=[title for title in titles if title.startswith(VITAL_TITLE)],
                memory=sum(processes.memory(pid) for pid in family),
                log=rank.log,
                stopped=[_called(pid) for pid in halted],
            )
        )
    return found


def _called(pid: int) -> str:
    title = processes.title(pid)
    name = title.removeprefix(VITAL_TITLE) if title.startswith(VITAL_TITLE) else "main process"
    return f"{name} (pid {pid})"


def load_of(endpoint: str, seconds: float) -> Load | None:
    """What an engine does now, from two looks at its metrics so many seconds apart; None without an answer.

    endpoint: the URL with /v1 at its end.
    """
    url = f"{endpoint.removesuffix('/v1')}/metrics"
    try:
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            before, begin = _sample(client, url), time.monotonic()
            time.sleep(seconds)
            after, end = _sample(client, url), time.monotonic()
    except (httpx.HTTPError, ValueError):
        return None
    return Load(
        running=after.running,
        waiting=after.waiting,
        kv_usage=after.kv_usage,
        tokens_per_second=tokens_per_second(before, after, end - begin),
        finished=after.finished,
        tokens_per_step=made[0] if (made := acceptance(before, after)) else None,
    )


def _sample(client: httpx.Client, url: str) -> Sample:
    response = client.get(url)
    response.raise_for_status()
    return parse_metrics(response.text)


def unfinished(place: Home) -> bool:
    """Whether something of a deployment runs, or may have been left: all but what has ended in order.

    Of one on nodes this machine's record says it, which does not hear of their end.
    """
    if locks.held(place.lock_file):
        return True
    try:
        deployment = place.read()
    except StateError:
        return True
    return deployment is not None and not deployment.state.over


def _on_a_cluster(place: Home) -> bool:
    """Whether a deployment serves on a cluster, as far as the record says: nobody answers for it here."""
    try:
        deployment = place.read()
    except StateError:
        return False
    serving = (State.READY, State.UNPROVEN)
    return deployment is not None and deployment.cluster is not None and deployment.state in serving


def pick(name: str | None, *, serving: bool = False) -> Home:
    """The deployment a command without a name means: the only one there is, or the only one that runs.

    serving: it must answer requests. Raises UsageError where there is none or no telling which.
    """
    known = [home(name)] if name is not None else list(homes())
    known = [one for one in known if one.has_record()]
    if not known:
        raise UsageError(
            f"there is no deployment {name}" if name is not None else "nothing was ever started here",
            next="`glmspark up` serves glm-tiny on this machine",
        )
    running = [one for one in known if locks.held(one.lock_file) or _on_a_cluster(one)]
    chosen = running if running or serving else known
    if len(chosen) > 1:
        raise UsageError(f"which one? there are {', '.join(one.name for one in chosen)}", next="name it")
    if not chosen:
        raise UsageError(
            f"{known[0].name} does not run" if len(known) == 1 else "nothing runs",
            next="`glmspark status` says why, `glmspark up` starts it",
        )
    if serving:
        deployment = chosen[0].read()
        if deployment is None or deployment.state not in (State.READY, State.UNPROVEN):
            raise UsageError(f"{chosen[0].name} is not ready", next="`glmspark status` shows how far it is")
    return chosen[0]


def _seems_to_run(place: Home) -> bool:
    """Whether its supervisor lives; of a deployment on nodes, whether the record says that it runs."""
    if locks.held(place.lock_file):
        return True
    try:
        deployment = place.read()
    except StateError:
        return False
    return deployment is not None and deployment.cluster is not None and not deployment.state.over
