"""What vLLM's own metrics say: requests, tokens, KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

# Newest name first; vLLM renamed some between versions.
_GAUGES = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}
_COUNTERS = {
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generated_tokens": ("vllm:generation_tokens_total",),
    "finished": ("vllm:request_success_total",),
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "drafted_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total",),
}


@dataclass(frozen=True)
class Sample:
    """One reading. kv_usage: used share of the KV cache, 0 to 1. Counters are since the server started. What
    the server does not export is None."""

    running: float | None
    waiting: float | None
    kv_usage: float | None
    prompt_tokens: float | None
    generated_tokens: float | None
    finished: float | None
    drafts: float | None = None
    drafted_tokens: float | None = None
    accepted_tokens: float | None = None
    preemptions: float | None = None


def parse_metrics(text: str) -> Sample:
    """A Sample from the text of /metrics. Values of several engines are added, usage is averaged.

    Raises ValueError for what is not Prometheus' text format.
    """
    values: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, []).append(sample.value)

    def find(names: tuple[str, ...]) -> list[float] | None:
        return next((values[name] for name in names if name in values), None)

    read: dict[str, float | None] = {}
    for field, names in {**_GAUGES, **_COUNTERS}.items():
        found = find(names)
        if found is None:
            read[field] = None
        else:
            read[field] = sum(found) / len(found) if field == "kv_usage" else sum(found)
    return Sample(**read)


def tokens_per_second(before: Sample, after: Sample, seconds: float) -> float | None:
    """Generated tokens a second between two readings; None where they are not counted or were reset."""
    if before.generated_tokens is None or after.generated_tokens is None or seconds <= 0:
        return None
    made = after.generated_tokens - before.generated_tokens
    return made / seconds if made >= 0 else None


def acceptance(before: Sample, after: Sample) -> tuple[float, float] | None:
    """Tokens a verify step gives on average (1 + accepted), and the accepted share of drafted tokens, between
    two readings; None where nothing was drafted."""
    drafts, drafted, accepted = (
        None if (old := getattr(before, name)) is None or (new := getattr(after, name)) is None else new - old
        for name in ("drafts", "drafted_tokens", "accepted_tokens")
    )
    if not drafts or not drafted or accepted is None or drafts < 0 or accepted < 0:
        return None
    return 1 + accepted / drafts, accepted / drafted
