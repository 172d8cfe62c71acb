"""A drafter's shape, and its config.json in the format of `speculators`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.speculator.shape import DrafterError, Shape, read_shape

TINY = Shape(hidden_size=256, vocab_size=576, aux_layers=(1, 2, 3), mask_token=543)
WHOLE = Shape(
    6144, 154_880, (8, 23, 39, 55, 70), 154_821, layers=5, heads=48, kv_heads=8, head_dim=128,
    intermediate_size=12_288, window=None, markov_rank=256, max_positions=202_752,
)  # fmt: skip


@pytest.mark.parametrize("shape", [TINY, WHOLE], ids=["tiny", "GLM-5.2"])
def test_what_is_written_is_read(shape: Shape, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(shape.config("glm")))
    assert read_shape(tmp_path) == shape


def test_a_window_is_said_as_vllm_reads_it() -> None:
    layer = TINY.config("glm")["transformer_layer_config"]
    assert (layer["layer_types"], layer["sliding_window"]) == (["sliding_attention"] * 2, 1024)
    assert WHOLE.config("glm")["transformer_layer_config"]["layer_types"] == ["full_attention"] * 5
    assert (TINY.causal, WHOLE.causal) == (True, False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"heads": 5}, "5 heads cannot share 2"),
        ({"head_dim": 20}, "multiple of 8"),
        ({"layers": 0}, "layers must be a whole number"),
        ({"layers": True}, "layers must be a whole number"),
        ({"aux_layers": ()}, "aux_layers names"),
        ({"aux_layers": (0, 1)}, "counted from 1"),
        ({"aux_layers": (2, 1)}, "must rise"),
        ({"aux_layers": (1, 1)}, "must rise"),
        ({"mask_token": 576}, "not among"),
        ({"window": 8}, "not more than a block"),
    ],
)
def test_a_shape_that_cannot_be(change: dict[str, Any], said: str) -> None:
    with pytest.raises(DrafterError, match=said):
        replace(TINY, **change)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("markov_head_type", "gated"),
        ("sample_from_anchor", False),
        ("draft_vocab_size", 500),
        ("enable_confidence_head", False),
        ("speculators_model_type", "dflash"),
        ("sliding_window_non_causal", True),
    ],
)
def test_what_cannot_be_trained_here_is_said(key: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY.config("glm") | {key: value}))
    with pytest.raises(DrafterError, match=key):
        read_shape(tmp_path)


def test_mixed_windows_and_other_rotary_embeddings_are_refused(tmp_path: Path) -> None:
    for change in (
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}},
    ):
        config = TINY.config("glm")
        config["transformer_layer_config"] |= change
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(DrafterError, match="cannot be trained here"):
            read_shape(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 600) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from([*TINY.config(""), *TINY.config("")["transformer_layer_config"], "new"])


@given(KEYS, VALUES, st.booleans())
def test_any_configuration_is_a_shape_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any, inner: bool
) -> None:
    config = TINY.config("glm")
    (config["transformer_layer_config"] if inner else config)[key] = value
    folder = tmp_path_factory.mktemp("drafter")
    (folder / "config.json").write_text(json.dumps(config))
    with contextlib.suppress(DrafterError):
        assert isinstance(read_shape(folder), Shape)


@given(st.binary(max_size=60))
def test_a_file_that_is_no_json(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("drafter")
    (folder / "config.json").write_bytes(data)
    with pytest.raises(DrafterError):
        read_shape(folder)
