"""vLLM's metrics, on a recorded answer of its /metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from glmspark.launch.metrics import Sample, parse_metrics, tokens_per_second

RECORDED = Path(__file__).with_name("recorded") / "metrics-0.32.txt"
NONE = Sample(None, None, None, None, None, None)


def test_recorded() -> None:
    sample = parse_metrics(RECORDED.read_text())
    assert (sample.running, sample.waiting, sample.kv_usage) == (0, 0, 0)
    assert sample.finished is not None
    assert sample.generated_tokens is not None
    assert sample.finished > 0
    assert sample.generated_tokens > sample.finished


def test_several_engines_are_added_up() -> None:
    text = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n'
        "# TYPE vllm:kv_cache_usage_perc gauge\n"
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.4\n'
    )
    sample = parse_metrics(text)
    assert sample.running == 5
    assert sample.kv_usage == pytest.approx(0.3)
    assert sample.waiting is None


def test_other_text_is_refused() -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the library's own words
        parse_metrics("<html>not found</html>\n")
    assert parse_metrics("") == NONE


def test_tokens_a_second() -> None:
    before, after = replace(NONE, generated_tokens=100.0), replace(NONE, generated_tokens=150.0)
    assert tokens_per_second(before, after, 0.5) == 100
    assert tokens_per_second(after, before, 0.5) is None
    assert tokens_per_second(before, NONE, 0.5) is None
    assert tokens_per_second(before, after, 0) is None
