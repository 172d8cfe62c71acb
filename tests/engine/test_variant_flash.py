"""glm-tiny-flash in transformers: the released config's fields and names, forward pass and generation."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer, Glm5NextConfig, Glm5NextForConditionalGeneration
from transformers.utils import logging

from glmspark.models.files import LocalFiles
from glmspark.models.inspection import inspect
from tools.glm_tiny.variants import VariantError, derive, make

logging.set_verbosity_error()
logging.disable_progress_bar()

LAYER = "model.language_model.layers."


@pytest.fixture(scope="module")
def flash(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variants") / "glm-tiny-flash"
    make("glm-tiny-flash", checkpoint, folder)
    return folder


@pytest.fixture(scope="module")
def loaded(flash: Path):
    """(model in float32, what loading said)."""
    model, report = Glm5NextForConditionalGeneration.from_pretrained(
        flash, dtype=torch.float32, output_loading_info=True
    )
    return model.eval(), report


@pytest.fixture(scope="module")
def ids(flash: Path) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(flash)
    return tokenizer("The quick brown fox jumps over 12 lazy dogs.", return_tensors="pt")["input_ids"]


@pytest.fixture(scope="module")
def shapes(flash: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    with safe_open(flash / "model.safetensors", framework="pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        return {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}


def test_the_config_is_read_as_glm_5_3_flash(flash, checkpoint):
    config = AutoConfig.from_pretrained(flash)
    assert isinstance(config, Glm5NextConfig)
    text = config.text_config
    kinds = ["linear_attention"] * 3 + ["indexed_attention"]
    assert text.layer_types == kinds * 2
    assert text.mlp_layer_types == ["dense"] * 3 + ["sparse"] * 5
    assert (text.qk_rope_head_dim, text.index_kpool, text.hc_mult, text.swiglu_limit) == (0, 4, 4, 10.0)
    assert (text.linear_num_heads, text.linear_head_dim, text.linear_conv_kernel_dim) == (4, 128, 4)
    assert (text.linear_lower_bound, text.hc_sinkhorn_iters, text.index_topk) == (-5.0, 20, 2048)
    same = json.loads((checkpoint / "config.json").read_text())
    assert (text.vocab_size, text.hidden_size) == (same["vocab_size"], same["hidden_size"])


def test_the_checkpoint_loads_without_a_missing_weight(loaded):
    _, report = loaded
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    left = {name for name in report["unexpected_keys"] if not name.startswith(f"{LAYER}8.")}
    assert not left  # layer 8 is MTP's, which transformers has no module for


def test_the_names_are_the_released_ones(shapes):
    kda, mla, mtp = (f"{LAYER}{n}." for n in (0, 3, 8))
    for name in (
        "q_conv1d.weight",
        "f_a_proj.weight",
        "g_b_proj.weight",
        "A_log",
        "dt_bias",
        "b_proj.weight",
    ):
        assert f"{kda}self_attn.{name}" in shapes
    for name in (
        "wq_b.weight",
        "index_kpool_compress_ape",
        "index_kpool_compress_gate",
        "weights_proj.weight",
    ):
        assert f"{mla}self_attn.indexer.{name}" in shapes
    assert shapes[f"{mla}self_attn.kv_a_proj_with_mqa.weight"][1] == (512, 256)  # NoPE: no rope part
    assert shapes[f"{kda}hc_attn_fn"] == ("F32", (24, 1024))
    assert {f"{mtp}{n}.weight" for n in ("enorm", "hnorm", "eh_proj", "shared_head.norm")} <= set(shapes)
    assert f"{mtp}mlp.experts.7.down_proj.weight" in shapes
    assert not any(name.startswith(f"{mtp}hc_") for name in shapes)
    assert any(name.startswith("model.visual.blocks.0.") for name in shapes)


def test_what_the_recurrence_adds_up_is_float32_and_the_rest_bf16(shapes):
    wide = {name for name, (dtype, _) in shapes.items() if dtype == "F32"}
    parts = ("A_log", "dt_bias", "_conv1d.weight", "hc_attn", "hc_ffn", "e_score_correction_bias")
    assert wide == {name for name in shapes if any(part in name for part in parts)}
    assert {dtype for dtype, _ in shapes.values()} == {"F32", "BF16"}


@torch.no_grad()
def test_the_forward_pass_depends_on_the_past_only(loaded, ids):
    model, _ = loaded
    whole = model(input_ids=ids).logits
    assert whole.shape == (*ids.shape, 576)
    assert torch.isfinite(whole).all()
    half = model(input_ids=ids[:, :6]).logits
    torch.testing.assert_close(whole[:, :6], half, rtol=0, atol=2e-4)


@torch.no_grad()
def test_generation_step_by_step_is_the_forward_pass(loaded, ids):
    model, _ = loaded
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=8,
        min_new_tokens=8,
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens = out.sequences[0, ids.shape[1] :]
    assert len(tokens) == 8
    steps = torch.cat(out.logits)
    whole = model(input_ids=out.sequences[:, :-1]).logits[0, ids.shape[1] - 1 :]
    torch.testing.assert_close(steps, whole, rtol=0, atol=2e-4)


def test_the_same_source_gives_the_same_weights(flash, checkpoint):
    again = derive("glm-tiny-flash", checkpoint)
    with safe_open(flash / "model.safetensors", framework="pt") as opened:
        assert set(opened.keys()) == set(again.tensors)
        assert all(torch.equal(opened.get_tensor(n), t) for n, t in again.tensors.items())


def test_layers_come_in_fours(checkpoint):
    with pytest.raises(VariantError, match="6 layers: give a multiple of 4"):
        derive("glm-tiny-flash", checkpoint, layers=6)
    four = derive("glm-tiny-flash", checkpoint, layers=4)
    assert four.config["text_config"]["linear_attn_config"]["full_attn_layers"] == [3]


def test_inspect_knows_every_weight_and_finds_nothing_wrong(flash, shapes):
    found = inspect(LocalFiles(flash))
    assert found.problems == ()
    assert found.matrices.unknown == []
    assert found.parameters == sum(math.prod(shape) for _, shape in shapes.values())
    assert found.parameters == sum(found.architecture.parameters.values())
