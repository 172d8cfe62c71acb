"""The plan of a recipe on a cluster, one rank a node: a pure function of what is wanted and what is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from glmspark.config.cluster import Cluster, Node
from glmspark.config.recipe import Recipe
from glmspark.models.checkpoint import Checkpoint
from glmspark.models.outline import outline_of
from glmspark.plan.checks import check_context, check_drafter, check_endpoint
from glmspark.plan.errors import PlanError
from glmspark.plan.fabric import all_adjacent, fabric_places, free_port
from glmspark.plan.facts import NodeFacts
from glmspark.plan.flags import engine_env, engine_flags
from glmspark.plan.known_bad import check_known_bad
from glmspark.plan.plan import Endpoint, Plan, Ports, Rank
from glmspark.plan.ranks import check_memory, kv_tokens, limits, make_rank, share_cores, uses_dsa
from glmspark.plan.setting import Setting
from glmspark.plan.split import check_layout, check_stages, places

__all__ = ["Backend", "choose_nodes", "plan_cluster"]

Backend = Literal["mp", "ray", "lockstep"]

MASTER_PORT, WATCH_PORT, ENGINE_PORT = 29500, 29600, 29700
"""Where the search for free ports begins."""


def choose_nodes(cluster: Cluster, world: int, names: Sequence[str] = ()) -> tuple[Node, ...]:
    """The nodes that ranks 0, 1, ... go to: those named, in that order, else the file's first.

    Raises PlanError where there are too few, or one is not in the file or named twice.
    """
    for name in names:
        if cluster.node(name) is None:
            raise PlanError(
                f"{cluster.name} has no node {name}",
                step="choose nodes",
                next=f"its nodes are {', '.join(node.name for node in cluster.nodes)}",
            )
    if len(set(names)) < len(names):
        raise PlanError("a node is named twice: each holds one rank", step="choose nodes")
    chosen = [node for name in names if (node := cluster.node(name))] or list(cluster.nodes)
    if len(chosen) < world or (names and len(chosen) > world):
        few = "too few" if len(chosen) < world else "too many"
        raise PlanError(
            f"{len(chosen)} node{'s are' if len(chosen) != 1 else ' is'} {few} for {world} "
            f"rank{'s' if world > 1 else ''}: each node holds one",
            step="choose nodes",
            seen=", ".join(node.name for node in chosen),
            next=f"choose --tp and --pp whose product is {len(chosen)}, or name {world} nodes with --nodes",
        )
    return tuple(chosen[:world])


def plan_cluster(  # noqa: PLR0913 - all that decides a plan
    recipe: Recipe,
    checkpoint: Checkpoint,
    nodes: Sequence[Node],
    facts: Mapping[str, NodeFacts],
    *,
    tp: int,
    pp: int,
    backend: Backend = "mp",
    host: str = "127.0.0.1",
    port: int = 8000,
    draft_dir: str | None = None,
) -> Plan:
    """Plan a recipe on nodes, rank 0 on the first. Changes nothing and asks nothing.

    checkpoint: its directory is where the model lies on every node. facts: by node. host, port: where the API
    listens on rank 0's node. draft_dir: where the drafter's own checkpoint lies. Raises PlanError as
    `plan_local` does, and for nodes that do not reach each other, a stage that would begin with a layer
    without its own indexer, and a rank that does not fit its node: which, and by how much.
    """
    architecture, head = checkpoint.architecture, nodes[0].name
    check_endpoint(host, port)
    check_layout(architecture, tp, pp)
    known = [facts[node.name] for node in nodes]
    _check_platform(nodes, facts)
    check_context(recipe, checkpoint, known[0].machine)
    check_drafter(recipe, checkpoint)
    where = places(len(architecture.layers), tp, pp)
    outline, platform = outline_of(checkpoint), known[0].machine.platform
    if uses_dsa(recipe, outline, platform):
        check_stages(architecture, where)
    dcp = recipe.layout.dcp if tp % recipe.layout.dcp == 0 else 1
    _check_needs(recipe, nodes, platform)
    setting = Setting(recipe, checkpoint, platform, tp=tp, pp=pp, dcp=dcp, nodes=len(nodes))
    check_known_bad(replace(setting, all_pairs=all_adjacent(nodes)))
    fabric = fabric_places(nodes, facts)
    tokens = kv_tokens(recipe, outline, where, known[0].machine, tp=tp, dcp=dcp)
    boards = [one.board for one in known]
    ranks = []
    for place, node, one in zip(where, nodes, known, strict=True):
        mates = [number for number, board in enumerate(boards) if board == one.board]
        cpus = share_cores(one.machine.cpus, mates.index(place.rank), len(mates))
        rank = make_rank(recipe, outline, place, one.machine, tp=tp, pp=pp, dcp=dcp, tokens=tokens, cpus=cpus)
        ranks.append(rank.model_copy(update={"host": node.name, **vars(fabric[node.name])}))
    _check_memory(recipe, ranks, known)
    crowd = max(
        boards.count(one.board) / max(len(one.machine.cpus), 1) if one.machine.platform == "cpu" else 1.0
        for one in known
    )
    crowd = max(1.0, crowd)
    address = ranks[0].address
    return Plan(
        recipe=recipe.name,
        model_dir=str(checkpoint.directory),
        served_name=recipe.model.served_name,
        tp=tp,
        pp=pp,
        ranks=tuple(ranks),
        endpoint=Endpoint(host=host, port=port),
        limits=limits(max(rank.memory.weights for rank in ranks), crowd),
        kv_tokens=tokens,
        platform=platform,
        backend=backend,
        ports=Ports(
            master=free_port(MASTER_PORT, address, facts[head]),
            watch=free_port(WATCH_PORT, address, facts[head]),
            engine=free_port(ENGINE_PORT, address, facts[head]),
        ),
        flags=engine_flags(recipe, tp=tp, pp=pp, dcp=dcp, draft_dir=draft_dir),
        env=engine_env(recipe),
        warnings=_warnings(crowd),
    )


def _check_platform(nodes: Sequence[Node], facts: Mapping[str, NodeFacts]) -> None:
    kinds = {node.name: facts[node.name].machine.platform for node in nodes}
    if len(set(kinds.values())) > 1:
        without = ", ".join(name for name, kind in kinds.items() if kind == "cpu")
        raise PlanError(
            f"some nodes have a GPU that answers and some have none: {without}",
            host=without,
            step="plan the nodes",
            next="`glmspark doctor --cluster` says what is wrong with the driver there",
        )


def _check_needs(recipe: Recipe, nodes: Sequence[Node], platform: str) -> None:
    """The recipe's own words about what must be there."""
    needs, names = recipe.needs, ", ".join(node.name for node in nodes)
    if needs.platform == "cuda" and platform != "cuda":
        toy = f"`glmspark up {recipe.name} --toy` runs its layout on CPUs; else " if recipe.toy else ""
        raise PlanError(
            f"{recipe.name} is for nodes with a GPU, and none answers",
            host=names,
            step="plan the nodes",
            next=f"{toy}`glmspark doctor --cluster` says what is wrong with the driver",
        )
    without = [node.name for node in nodes if not any(link.hca for link in node.fabric)]
    if needs.link == "rdma" and len(nodes) > 1 and without:
        raise PlanError(
            f"{recipe.name} needs RDMA, and cluster.yaml names no hca of {', '.join(without)}",
            host=", ".join(without),
            step="plan the fabric",
            next="`glmspark init` finds RDMA devices; `glmspark doctor --cluster` says what keeps them off",
        )


def _check_memory(recipe: Recipe, ranks: Sequence[Rank], known: Sequence[NodeFacts]) -> None:
    """Every machine holds its ranks: one each, but those of a lab share theirs."""
    boards: dict[str, list[Rank]] = defaultdict(list)
    free: dict[str, int] = {}
    for rank, one in zip(ranks, known, strict=True):
        boards[one.board].append(rank)
        free[one.board] = min(one.machine.memory_available, free.get(one.board, 2**63))
    for board, its in boards.items():
        check_memory(recipe, its, free[board])


def _warnings(crowd: float) -> tuple[str, ...]:
    return ("ranks share cores of one machine: they wait for each other and are slow",) if crowd > 1 else ()
