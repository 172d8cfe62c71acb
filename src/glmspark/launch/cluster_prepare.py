"""From a recipe and a cluster file to what would be run on which node: looks, plans, changes nothing."""

from __future__ import annotations

import hashlib
import ipaddress
import posixpath
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glmspark.config.cluster import Cluster, Node
from glmspark.errors import UsageError
from glmspark.launch.cluster_judge import refuse_blocked, slow_links
from glmspark.launch.command import client_url
from glmspark.launch.environments import look_at_environments, venv_at
from glmspark.launch.images import Images, look_at_images
from glmspark.launch.node_models import Model, look_at_model, place_of
from glmspark.launch.prepare import Wanted
from glmspark.launch.rank_commands import (
    Seat,
    Start,
    container_argv,
    container_env,
    container_name,
    make_spec,
    process_argv,
    rank_env,
)
from glmspark.launch.record import ClusterSite, Deployment, Endpoint, Limits, RankRecord, new_id
from glmspark.nodes import processes
from glmspark.nodes.doctor import expected_of, look_at
from glmspark.nodes.facts.account import ACCOUNT, BOARD, Account
from glmspark.nodes.facts.checkpoint import links
from glmspark.nodes.facts.cpu import CORES
from glmspark.nodes.facts.engine import EngineVersions
from glmspark.nodes.facts.login import VERBS
from glmspark.nodes.facts.memory_detail import MEMORY_DETAIL
from glmspark.nodes.facts.network import INTERFACES, ROUTES
from glmspark.nodes.facts.nvidia import GPUS
from glmspark.nodes.facts.ports import LISTENERS, Listener, command_line, socket_owners
from glmspark.nodes.facts.rdma import RDMA
from glmspark.nodes.fleet import Fleet
from glmspark.nodes.node import as_root
from glmspark.nodes.survey import Facts, survey
from glmspark.nodes.transport import NodeError
from glmspark.plan import MachineFacts, Plan
from glmspark.plan.cluster import Backend, choose_nodes, plan_cluster
from glmspark.plan.facts import NodeFacts
from glmspark.weights.parts import layout_of

__all__ = ["ClusterWanted", "Prepared", "prepare", "want"]

Said = Callable[[str], None]


@dataclass(frozen=True)
class ClusterWanted:
    """What was asked for, with the nodes chosen. path: of the cluster file, for messages."""

    wanted: Wanted
    cluster: Cluster
    nodes: tuple[Node, ...]
    backend: Backend
    path: str

    @property
    def name(self) -> str:
        """The deployment's name."""
        return self.wanted.home.name

    def differs(self, deployment: Deployment) -> list[str]:
        """In what a running deployment is not the one wanted, in words; empty when it is the same."""
        found = self.wanted.differs(deployment)
        backend = deployment.plan.get("backend", "mp")
        if backend != self.backend:
            found.append(f"by {backend} instead of {self.backend}")
        nodes = [rank.node for rank in deployment.ranks]
        if nodes != [node.name for node in self.nodes]:
            found.append(f"on {', '.join(nodes)} instead of {', '.join(node.name for node in self.nodes)}")
        return found


@dataclass(frozen=True)
class Prepared:
    """All that is known before anything is changed. facts: of the nodes. images: None with a venv.
    engines: of the venvs, by node; empty with images, whose ids say as much. draft_dir: the drafter's
    checkpoint on every node, if it has one. links: by node, where the models' files lead by links; empty
    with venvs."""

    wanted: ClusterWanted
    plan: Plan
    model: Model
    images: Images | None
    engines: Mapping[str, EngineVersions]
    facts: Mapping[str, Facts]
    accounts: Mapping[str, Account]
    draft_dir: str | None = None
    links: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def seats(self, directories: Mapping[str, str]) -> list[Seat]:
        """Each rank's node. directories: of the deployment on each node."""
        return [
            _seat(rank.host, self.accounts[rank.host], self.facts[rank.host], directories[rank.host], self)
            for rank in self.plan.ranks
        ]

    def starts(
        self, directories: Mapping[str, str], image: str | None, key: str | None
    ) -> tuple[Deployment, dict[str, dict[str, Any]]]:
        """The record of a start that has not begun, and each node's spec. image: its id."""
        runtime = self.wanted.cluster.runtime
        start = Start(self.wanted.name, new_id(), secrets.token_hex(32), secrets.token_hex(32), key)
        ranks, specs = [], {}
        for number, seat in enumerate(self.seats(directories)):
            env = rank_env(self.plan, number, seat)
            if runtime.kind == "docker":
                env = container_env(env, seat)
                argv = container_argv(
                    self.plan,
                    number,
                    seat,
                    runtime=runtime,
                    image=image or "",
                    deployment=start.name,
                    deployment_id=start.id,
                    draft_dir=self.draft_dir,
                )
            else:
                argv = process_argv(
                    self.plan, number, venv=venv_at(runtime.venv or "", self.accounts[seat.node])
                )
            log = posixpath.join(seat.directory, "logs", f"rank-{number}.log")
            ranks.append(RankRecord(rank=number, node=seat.node, argv=argv, env=env, log=log))
            specs[seat.node] = make_spec(self.plan, number, seat, start, argv, env, runtime)
        deployment = self._record(start, ranks, directories)
        data = deployment.model_dump(mode="json")
        for spec in specs.values():
            spec["record"] = data
        return deployment, specs

    def _record(self, start: Start, ranks: list[RankRecord], directories: Mapping[str, str]) -> Deployment:
        wanted, plan, now = self.wanted, self.plan, time.time()
        limits = Limits(start=float(plan.limits.start), join=float(plan.limits.join))
        if wanted.wanted.request.timeout is not None:
            limits = limits.model_copy(update={"start": wanted.wanted.request.timeout})
        inside = wanted.cluster.runtime.kind == "docker"
        return Deployment(
            id=start.id,
            name=start.name,
            boot_id=processes.boot_id(),
            created=now,
            since=now,
            keep=wanted.wanted.request.keep,
            keep_up=wanted.wanted.request.keep_up,
            recipe=wanted.wanted.recipe_data(),
            plan=plan.to_json(),
            endpoint=Endpoint(
                host=plan.endpoint.host,
                port=plan.endpoint.port,
                url=_url(plan, wanted.nodes[0]),
                model=plan.served_name,
                needs_key=start.key is not None,
            ),
            limits=limits,
            cluster=ClusterSite(
                cluster=wanted.cluster.model_dump(mode="json"),
                directories=dict(directories),
                containers={one.node: container_name(start.name, one.rank) for one in ranks}
                if inside
                else {},
            ),
            scratch=_scratch(directories[ranks[0].node], self.accounts[ranks[0].node]),
            ranks=ranks,
        )


def want(
    wanted: Wanted, cluster: Cluster, *, path: str, backend: Backend | None = None, names: Sequence[str] = ()
) -> ClusterWanted:
    """Choose backend and nodes. Raises UsageError and PlanError for what needs no look at the nodes."""
    runtime = cluster.runtime
    if runtime.kind == "docker" and runtime.image is None:
        raise UsageError(
            f"{path} names no image",
            step="read cluster",
            next="write `runtime: {kind: docker, image: NAME}`; `glmspark image build` makes one",
        )
    nodes = choose_nodes(cluster, wanted.tp * wanted.pp, names)
    return ClusterWanted(wanted, cluster, nodes, backend or wanted.recipe.layout.backend, path)


async def prepare(
    fleet: Fleet, wanted: ClusterWanted, said: Said = lambda _: None, *, taken: tuple[Listener, ...] = ()
) -> Prepared:
    """Look at the nodes, judge what is seen, and plan.

    taken: ports on the head that others will listen on, beside those that it tells of.

    Raises NodeError for a node that cannot be reached, GlmsparkError for what blocks a start (which check,
    where, the remedy), CheckpointError and PlanError.
    """
    for error in fleet.lost.values():
        raise error
    chosen = wanted.cluster.model_copy(update={"nodes": wanted.nodes})
    recipe = wanted.wanted.recipe
    expected = replace(
        expected_of(chosen),
        image=None,
        ports=(),
        recipe=recipe.name,
        link=recipe.needs.link,
        link_gbit=recipe.needs.link_gbit,
    )
    look = await look_at(fleet, cluster=chosen, expected=expected, said=said)
    said("judging what was seen")
    refuse_blocked(look)
    slow = slow_links(look)
    for text in slow:
        said(f"warning: {text}")
    more = await _more(fleet)
    accounts = {name: _must(facts, ACCOUNT) for name, facts in more.items()}
    images, engines = None, {}
    if wanted.cluster.runtime.kind == "docker":
        images = look_at_images(str(wanted.cluster.runtime.image), look.facts)
    else:
        engines = await look_at_environments(fleet, str(wanted.cluster.runtime.venv), accounts)
    said("looking at the model")
    place = place_of(recipe.model.source, wanted.cluster.paths.models, accounts)
    names = [node.name for node in wanted.nodes]
    layout = layout_of(recipe, names, wanted.wanted.tp, wanted.wanted.pp)
    model = await look_at_model(fleet, recipe.model.source, place, layout)
    facts = {name: _node_facts(name, look.facts[name], more[name]) for name in look.facts}
    head = wanted.nodes[0].name
    facts[head] = replace(facts[head], listeners=(*facts[head].listeners, *taken))
    request = wanted.wanted.request
    draft_dir = None
    if recipe.draft is not None and recipe.draft.source is not None:
        draft_dir = place_of(recipe.draft.source, wanted.cluster.paths.models, accounts)
        await look_at_model(fleet, recipe.draft.source, draft_dir)
    plan = plan_cluster(
        recipe,
        model.checkpoint,
        wanted.nodes,
        facts,
        tp=wanted.wanted.tp,
        pp=wanted.wanted.pp,
        backend=wanted.backend,
        host=request.host,
        port=request.port,
        draft_dir=draft_dir,
    )
    places = (place,) if draft_dir is None else (place, draft_dir)
    leads = await links_of(fleet, places) if images is not None else {}
    return Prepared(wanted, plan, model, images, engines, look.facts, accounts, draft_dir, leads, slow)


async def links_of(fleet: Fleet, directories: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """By node, the other directories to which files of these lead by links. Raises NodeError."""
    fact = links(directories)
    found = await fleet.each(lambda node: survey(node, [fact]))
    for one in found.values():
        if isinstance(one, NodeError):
            raise one
    return {name: _must(facts, fact) for name, facts in found.items() if isinstance(facts, Facts)}


async def check_port(fleet: Fleet, prepared: Prepared) -> None:
    """Raises UsageError where the address is not the head's, or naming who listens on the port already."""
    plan, head = prepared.plan, prepared.plan.ranks[0].host
    host, port = plan.endpoint.host, plan.endpoint.port
    refuse_elsewhere(host, head, prepared.facts[head])
    address = "127.0.0.1" if host == "localhost" else host
    taken = [
        one
        for one in prepared.facts[head].get(LISTENERS) or ()
        if one.port == port and _covers(one.covers, address)
    ]
    if not taken:
        return
    owners = socket_owners([one.inode for one in taken])
    known = await survey(fleet.nodes[head], [owners])
    if not known.get(owners):  # another user's process, which only root can look into
        owners = replace(owners, command=(*as_root(True), *owners.command))
        known = await survey(fleet.nodes[head], [owners])
    found = known.get(owners) or ()
    who = f"a process of the user with id {taken[0].uid}"
    for owner in found[:1]:
        line = command_line(owner.pid)
        what = (await survey(fleet.nodes[head], [line])).get(line) or ""
        who = f"process {owner.pid}" + (f" ({what[:160]})" if what else "")
    raise UsageError(
        f"port {port} is taken by {who}",
        host=head,
        step="check the port",
        next="stop that, or choose another --port",
    )


def refuse_elsewhere(host: str, head: str, facts: Facts) -> None:
    """Raises UsageError where host is an IPv4 address that none of the head's interfaces has."""
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:  # IPv6, or a name: only vLLM itself can tell
        return
    own = [one.ip for interface in facts.get(INTERFACES) or () for one in interface.addresses]
    if not own or address in own or address.is_unspecified or address.is_loopback:
        return
    raise UsageError(
        f"{host} is no address of {head}, where the API listens",
        host=head,
        step="check the port",
        next=f"its addresses are {', '.join(map(str, own))}; rank 0 is on the first node that --nodes names",
    )


def _covers(covers: Callable[[str], bool], address: str) -> bool:
    try:
        return covers(address)
    except ValueError:  # a host name: only vLLM itself can tell
        return False


async def _more(fleet: Fleet) -> dict[str, Facts]:
    found = await fleet.each(lambda node: survey(node, [ACCOUNT, BOARD]))
    for one in found.values():
        if isinstance(one, NodeError):
            raise one
    return {name: one for name, one in found.items() if isinstance(one, Facts)}


def _must(facts: Facts, fact: Any) -> Any:
    value = facts.get(fact)
    if value is None:
        raise NodeError(
            f"cannot read {fact.name}: {facts.problem(fact)}", host=facts.node, step="look at the node"
        )
    return value


def _node_facts(name: str, facts: Facts, more: Facts) -> NodeFacts:
    memory = _must(facts, MEMORY_DETAIL)
    return NodeFacts(
        machine=MachineFacts(
            hostname=name,
            cpus=_must(facts, CORES),
            memory_total=memory.total,
            memory_available=memory.available,
            platform="cuda" if facts.get(GPUS) else "cpu",
        ),
        board=more.get(BOARD) or name,
        listeners=facts.get(LISTENERS) or (),
        routes=facts.get(ROUTES) or (),
        rdma=facts.get(RDMA) or (),
    )


def _seat(node: str, account: Account, facts: Facts, directory: str, prepared: Prepared) -> Seat:
    cache = prepared.wanted.cluster.paths.cache
    if cache.startswith("~/"):
        cache = posixpath.join(account.home, cache[2:])
    return Seat(
        node=node,
        directory=directory,
        scratch=_scratch(directory, account),
        cache=posixpath.normpath(cache),
        user=account.name,
        uid=account.uid,
        gid=account.gid,
        gpu=prepared.plan.platform == "cuda",
        verbs=bool(_devices(facts)) and any(rank.hcas for rank in prepared.plan.ranks),
        links=tuple(prepared.links.get(node, ())),
    )


def _devices(facts: Facts) -> tuple[str, ...]:
    return facts.get(VERBS) or ()


def _scratch(directory: str, account: Account) -> str:
    """Short, because a socket's path holds at most 107 bytes, and the same at every start."""
    tag = hashlib.sha256(directory.encode()).hexdigest()[:16]
    return f"/tmp/glmspark-{account.uid}-{tag}"  # noqa: S108 - the agent makes it with mode 0700


def _url(plan: Plan, head: Node) -> str:
    """What a client uses: on the head itself where the API listens there only, else its address."""
    url = client_url(plan.endpoint.host, plan.endpoint.port)
    if plan.endpoint.host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return client_url(head.address, plan.endpoint.port)
    return url
