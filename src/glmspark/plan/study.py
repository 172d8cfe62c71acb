"""A recipe looked at before anything is started: what each rank holds, whether it fits, how fast it will
be."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glmspark.config.recipe import Recipe
from glmspark.config.units import format_size
from glmspark.models.outline import Outline
from glmspark.models.published import find_drafter
from glmspark.plan.cache import TokenBytes, cache_format
from glmspark.plan.checks import check_positions
from glmspark.plan.engine_memory import indexer_scratch
from glmspark.plan.errors import PlanError
from glmspark.plan.facts import MachineFacts
from glmspark.plan.plan import Memory
from glmspark.plan.ranks import (
    block_tokens,
    cache_of,
    cache_parts,
    capture_sizes,
    drafts_of,
    element_bytes,
    kv_tokens,
    rank_memory,
    request_bytes,
    uses_dsa,
)
from glmspark.plan.settings import Asked, apply, drafter_key
from glmspark.plan.site import Site
from glmspark.plan.speed import Prediction, Run, predict
from glmspark.plan.speed.text import KINDS, Text
from glmspark.plan.split import Place, check_layout, check_stages, places
from glmspark.plan.startable import refused
from glmspark.plan.stored import stored_bytes

__all__ = ["Held", "Study", "alike", "largest_context", "refusal", "run_of", "study", "to_json"]

MIB = 2**20


@dataclass(frozen=True)
class Held:
    """One rank. left: bytes that its node has beyond what its ranks need, below 0 where it is short."""

    place: Place
    node: str
    memory: Memory
    left: int


@dataclass(frozen=True)
class Study:
    """What is known of a recipe on a site. speeds: by kind of text, empty on CPUs. context: the largest that
    fits, 0 for none. token: of the KV cache, on the rank that holds most. states: bytes of a sequence's fixed
    states there."""

    recipe: Recipe
    outline: Outline
    site: Site
    ranks: tuple[Held, ...]
    tokens: int
    context: int
    token: TokenBytes
    states: int
    speeds: dict[str, Prediction] = field(default_factory=dict)

    @property
    def shortest(self) -> Held:
        """The rank whose node has least left."""
        return min(self.ranks, key=lambda rank: rank.left)

    @property
    def fits(self) -> bool:
        """Whether every node holds its ranks."""
        return self.shortest.left >= 0

    @property
    def layout(self) -> str:
        """TP4 DCP4."""
        return self.recipe.layout.words()


def study(
    recipe: Recipe,
    outline: Outline,
    site: Site,
    *,
    streams: int = 1,
    depth: int = 1000,
    prompt: int = 2048,
    texts: Sequence[Text] = KINDS,
) -> Study:
    """Plan memory and speed. streams, depth, prompt, texts: what speed is asked for.

    Raises PlanError for a layout that the model cannot be split by, for too few nodes, for a context that the
    model was not made for, and for a KV cache that does not hold one request. What does not fit is no error
    here: see `refusal`.
    """
    layout = recipe.layout
    model = outline.architecture
    check_layout(model, layout.tp, layout.pp)
    if len(site.seats) < layout.world:
        raise PlanError(
            f"{layout.words()} takes {layout.world} nodes, and there are {len(site.seats)}",
            step="choose nodes",
            next=f"choose --tp and --pp whose product is at most {len(site.seats)}",
        )
    check_positions(recipe, model)
    where = places(len(model.layers), layout.tp, layout.pp)
    if uses_dsa(recipe, outline, site.platform):
        check_stages(model, where)
    machine = MachineFacts(site.seats[0].name, (0,), 0, 0, site.platform)
    tokens = kv_tokens(recipe, outline, where, machine, tp=layout.tp, dcp=layout.dcp)
    ranks = _ranks(recipe, outline, site, where, tokens)
    per_place = [cache_parts(recipe, outline, place, site.platform) for place in where]
    token = max(per_place, key=lambda one: one.total)
    states = max(cache_of(recipe, outline, place, site.platform, tp=layout.tp)[1] for place in where)
    found: dict[str, Prediction] = {}
    if texts and site.platform == "cuda":
        run = run_of(recipe, outline, site)
        drafter = drafter_key(recipe, flash=model.linear is not None)
        for text in texts if run.drafts else texts[:1]:
            found[text if run.drafts else "any"] = predict(
                run, streams=streams, depth=depth, prompt=prompt, drafter=drafter, text=text
            )
    context = largest_context(recipe, outline, site, ranks)
    return Study(recipe, outline, site, ranks, tokens, context, token, states, found)


def _ranks(
    recipe: Recipe, outline: Outline, site: Site, where: Sequence[Place], tokens: int
) -> tuple[Held, ...]:
    layout = recipe.layout
    memories: dict[tuple[object, ...], Memory] = {}
    held: list[tuple[Place, Memory]] = []
    for place in where:
        # Ranks of a stage hold alike; on CPUs the first of all also runs the API.
        key = (place.pp_rank, site.platform == "cpu" and place.rank == 0)
        if key not in memories:
            memories[key] = rank_memory(
                recipe,
                outline,
                place,
                site.platform,
                tp=layout.tp,
                pp=layout.pp,
                dcp=layout.dcp,
                tokens=tokens,
            )
        held.append((place, memories[key]))
    needed: dict[str, int] = defaultdict(int)
    for (_, memory), seat in zip(held, site.seats, strict=False):
        needed[seat.board] += memory.needed
    return tuple(
        Held(place, seat.name, memory, seat.available - memory.reserve - needed[seat.board])
        for (place, memory), seat in zip(held, site.seats, strict=False)
    )


def largest_context(recipe: Recipe, outline: Outline, site: Site, ranks: Sequence[Held]) -> int:
    """The longest request that fits beside the weights, in whole blocks; at most what the model was made for.

    The KV cache then takes what that request takes, and the indexer's work space grows with it.
    """
    layout, model = recipe.layout, outline.architecture
    block = block_tokens(recipe, site.platform)
    sparse = uses_dsa(recipe, outline, site.platform)
    boards: dict[str, int] = defaultdict(int)
    for seat in site.seats[: len(ranks)]:
        boards[seat.board] += 1

    def scratch(context: int) -> int:
        return indexer_scratch(recipe, model, context=context) if sparse else 0

    before = scratch(recipe.engine.max_model_len)

    def fits(context: int) -> bool:
        for rank, seat in zip(ranks, site.seats, strict=False):
            memory = rank.memory
            cache = request_bytes(
                recipe, outline, rank.place, site.platform, tp=layout.tp, dcp=layout.dcp, context=context
            )
            total = memory.total - memory.kv_cache - before + cache + scratch(context)
            most = seat.available / boards[seat.board] - memory.reserve / boards[seat.board]
            if max(total, memory.load) > most:
                return False
        return True

    low, high = 0, model.max_position // block
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * block) else (low, middle - 1)
    return low * block


def run_of(recipe: Recipe, outline: Outline, site: Site) -> Run:
    """The recipe as the speed model sees it."""
    layout, engine = recipe.layout, recipe.engine
    sparse = uses_dsa(recipe, outline, site.platform)
    dtype = str(engine.args.get("kv_cache_dtype", "auto"))
    element = element_bytes(recipe)
    drafts = drafts_of(recipe)
    key = drafter_key(recipe, flash=outline.architecture.linear is not None)
    method = "" if not drafts else {"mtp": "mtp", "mtp-flash": "mtp", "lookup": "lookup"}.get(key, "block")
    known = find_drafter(recipe.draft.source.name) if recipe.draft and recipe.draft.source else None
    dcp = layout.dcp if outline.architecture.linear is None else 1
    return Run(
        outline=outline,
        link=site.link if layout.world > 1 else replace(site.link, kind="none"),
        tp=layout.tp,
        pp=layout.pp,
        dcp=dcp,
        expert_parallel=bool(engine.args.get("enable_expert_parallel")),
        graphs=not engine.enforce_eager,
        sparse=sparse,
        cache=cache_format(outline.architecture, dtype, element=element, sparse=sparse),
        element=element,
        method=method,
        drafts=drafts,
        drafter=known.nbytes if known else 0,
        drafter_layers=known.layers if known else 0,
        a2a=engine.args.get("dcp_comm_backend") == "a2a",
        chunk=engine.max_num_batched_tokens,
    )


def refusal(found: Study) -> PlanError | None:
    """Why it cannot be started, with the way out in numbers; None where it fits."""
    worst = found.shortest
    if worst.left >= 0:
        return None
    recipe = found.recipe
    ways = []
    if found.context >= block_tokens(recipe, found.site.platform):
        wanted = found.context if found.context < recipe.engine.max_model_len else None
        if wanted is not None:
            ways.append(f"max_model_len <= {wanted:,}")
        else:
            size = max(recipe.engine.kv_cache_memory + worst.left, 0) // MIB
            ways.append(f"kv_cache_memory <= {size:,} MiB")
    ways += [way for dcp in (2, 4, 8) if (way := _with_dcp(found, dcp))][:1]
    if not ways and (fewer := _fewer_requests(found)):
        ways.append(f"max_num_seqs <= {fewer}")
    memory = worst.memory
    loading = memory.load >= memory.total
    seen = "\n".join(
        f"rank {rank.place.rank} on {rank.node}: {format_size(rank.memory.needed)} needed, "
        f"{format_size(-rank.left) + ' short' if rank.left < 0 else format_size(rank.left) + ' left'}"
        for rank in found.ranks
    )
    own = " while it loads" if loading and memory.needed == memory.load else ""
    return PlanError(
        f"does not fit: {format_size(-worst.left)} short on rank {worst.place.rank}{own}"
        + (f"; fits with {' or '.join(ways)}" if ways else ""),
        host=worst.node,
        step="plan the memory",
        seen=seen,
        next=(f"set {ways[0]}, or " if ways and "refuses" not in ways[0] else "")
        + "plan with more nodes: `glmspark plan --search`",
    )


def _fewer_requests(found: Study) -> int:
    """The most requests at once that fit, 0 where fewer do not help."""

    def fits(count: int) -> bool:
        changed = apply(found.recipe, Asked(concurrency=count))
        return study(changed, found.outline, found.site, texts=()).fits

    low, high = 0, found.recipe.engine.max_num_seqs - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _with_dcp(found: Study, dcp: int) -> str:
    """This much context parallelism as a way out, empty where it is none."""
    recipe = found.recipe
    layout = recipe.layout
    if dcp <= layout.dcp or layout.tp % dcp or found.outline.architecture.linear is not None:
        return ""
    stages = {rank.place.pp_rank: rank.place for rank in found.ranks}.values()
    length = recipe.engine.max_model_len
    pool = max(
        request_bytes(
            recipe, found.outline, place, found.site.platform, tp=layout.tp, dcp=dcp, context=length
        )
        for place in stages
    )
    engine = recipe.engine.model_copy(update={"kv_cache_memory": pool})
    changed = recipe.model_copy(update={"layout": layout.model_copy(update={"dcp": dcp}), "engine": engine})
    try:
        if not study(changed, found.outline, found.site, texts=()).fits:
            return ""
    except PlanError:
        return ""
    yet = refused(changed, found.outline, found.site.platform) is not None
    return f"DCP{dcp}" + (", which `up` refuses yet" if yet else "")


def to_json(found: Study) -> dict[str, Any]:
    """All of it as data."""
    return {
        "recipe": found.recipe.name,
        "model": found.outline.name,
        "exact": found.outline.exact,
        "layout": found.recipe.layout.model_dump(mode="json"),
        "platform": found.site.platform,
        "measured_nodes": found.site.measured,
        "link": {"kind": found.site.link.kind, "gbit": found.site.link.gbit},
        "fits": found.fits,
        "ranks": [
            {
                "rank": rank.place.rank,
                "node": rank.node,
                "available": seat.available,
                "stored": stored_bytes(found.recipe, found.outline, rank.place),
                "layers": list(rank.place.layers),
                **rank.memory.model_dump(),
                "total": rank.memory.total,
                "left": rank.left,
            }
            for rank, seat in zip(found.ranks, found.site.seats, strict=False)
        ],
        "kv": {
            "tokens": found.tokens,
            "bytes_per_token": found.token.total,
            "latent_bytes_per_token": found.token.latent,
            "indexer_bytes_per_token": found.token.indexer,
            "drafter_bytes_per_token": found.token.drafter,
            "state_bytes_per_sequence": found.states,
            "dtype": found.recipe.engine.args.get("kv_cache_dtype", "auto"),
        },
        "largest_context": found.context,
        "capture_sizes": [] if found.recipe.engine.enforce_eager else list(capture_sizes(found.recipe)),
        "speed": {text: one.to_json() for text, one in found.speeds.items()},
    }


def alike(ranks: Sequence[Held]) -> list[tuple[Held, ...]]:
    """Runs of ranks that hold as much of everything, for tables: of one stage, or of several of a kind."""
    groups = itertools.groupby(ranks, key=lambda rank: (rank.memory, rank.left))
    return [tuple(group) for _, group in groups]
