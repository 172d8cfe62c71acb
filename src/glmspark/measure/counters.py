"""What the server counts about itself, before and after: drafts by position, the prefix cache, power."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

_TOTALS = {
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "drafted": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
    "cache_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "cache_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "preemptions": ("vllm:num_preemptions_total",),
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class Counters:
    """Counters since the server's start; what it does not export is None."""

    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    cache_queries: float | None = None
    cache_hits: float | None = None
    preemptions: float | None = None
    per_position: dict[int, float] = field(default_factory=dict)


def parse_counters(text: str) -> Counters:
    """Counters from the text of /metrics, those of several engines added.

    Raises ValueError for what is not Prometheus' text format.
    """
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == _PER_POSITION:
                place = int(sample.labels.get("position", "-1"))
                positions[place] = positions.get(place, 0.0) + sample.value
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    read = {name: next((sums[one] for one in names if one in sums), None) for name, names in _TOTALS.items()}
    return Counters(**read, per_position=dict(sorted(positions.items())))


@dataclass(frozen=True)
class Between:
    """What happened between two readings.

    acceptance: share of drafted tokens that were accepted. length: mean tokens a step of a drafting request,
    with the sure one (acceptance length). per_position: share accepted at each place of the draft.
    cache_hits: share of prompt tokens found in the prefix cache. preemptions: requests put back.
    """

    acceptance: float | None = None
    length: float | None = None
    per_position: tuple[float, ...] = ()
    cache_hits: float | None = None
    preemptions: float | None = None


def between(before: Counters, after: Counters) -> Between:
    """The difference of two readings; None where nothing was counted or the server was started anew."""

    def grown(name: str) -> float | None:
        first, last = getattr(before, name), getattr(after, name)
        return last - first if first is not None and last is not None and last >= first else None

    drafts, drafted, accepted = grown("drafts"), grown("drafted"), grown("accepted")
    queries, hits = grown("cache_queries"), grown("cache_hits")
    positions: tuple[float, ...] = ()
    if drafts:
        positions = tuple(
            (value - before.per_position.get(place, 0.0)) / drafts
            for place, value in after.per_position.items()
        )
    return Between(
        acceptance=accepted / drafted if drafted and accepted is not None else None,
        length=1 + accepted / drafts if drafts and accepted is not None else None,
        per_position=positions,
        cache_hits=hits / queries if queries and hits is not None else None,
        preemptions=grown("preemptions"),
    )
