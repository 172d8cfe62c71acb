"""The server's own counters."""

from __future__ import annotations

import pytest

from glmspark.measure.counters import Counters, between, parse_counters

# As vLLM 0.33.0 prints it while it drafts three tokens.
TEXT = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="glm-tiny"} 100.0
# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="glm-tiny"} 300.0
# HELP vllm:spec_decode_num_accepted_tokens_total Number of accepted tokens.
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="glm-tiny"} 150.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="glm-tiny",position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="glm-tiny",position="1"} 50.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="glm-tiny",position="2"} 20.0
# HELP vllm:prefix_cache_queries_total Prefix cache queries.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="glm-tiny"} 1000.0
# HELP vllm:prefix_cache_hits_total Prefix cache hits.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="glm-tiny"} 40.0
"""


def test_a_difference_says_how_much_was_accepted_where() -> None:
    found = between(Counters(0, 0, 0, 0, 0, 0), parse_counters(TEXT))
    assert found.acceptance == pytest.approx(0.5)
    assert found.length == pytest.approx(2.5)
    assert found.per_position == pytest.approx((0.8, 0.5, 0.2))
    assert found.cache_hits == pytest.approx(0.04)


def test_a_server_that_was_started_anew_says_nothing() -> None:
    found = between(parse_counters(TEXT), Counters(1, 3, 1, 10, 0, 0))
    assert found.length is None
    assert found.per_position == ()
    assert found.cache_hits is None


def test_a_server_that_does_not_count_says_nothing() -> None:
    assert between(Counters(), Counters()) == between(parse_counters(""), parse_counters(""))
    assert between(Counters(), Counters()).length is None
