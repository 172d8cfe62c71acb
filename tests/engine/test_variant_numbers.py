"""The quantizers against their formats as documented, decoded here by hand, and their error bounds."""

import hashlib
import json

import pytest
import torch
from compressed_tensors.compressors import NVFP4PackedCompressor, PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.glm_tiny.variants import nvfp4, reap
from tools.glm_tiny.variants.checkpoint import INDEX, Checkpoint, VariantError, read, write
from tools.glm_tiny.variants.int4_int8mix import quantize as quantize_integers
from tools.glm_tiny.variants.names import module_of

NVFP4 = preset_name_to_scheme("NVFP4A16", targets=["Linear"])
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
GATE, UP = "model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"


def integers(bits, group):
    strategy = "group" if group else "channel"
    weights = QuantizationArgs(
        num_bits=bits, type="int", symmetric=True, strategy=strategy, group_size=group, dynamic=False
    )
    return QuantizationScheme(targets=["Linear"], weights=weights, format="pack-quantized")


INT4, INT8, INT8_CHANNEL = integers(4, 32), integers(8, 32), integers(8, None)


@st.composite
def matrices(draw):
    """bf16 matrices whose rows differ in size by up to 2**24, some of them all zeros."""
    rows, groups = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    noise = torch.randn(rows, 32 * groups, generator=torch.Generator().manual_seed(draw(st.integers(0, 999))))
    scales = torch.tensor([draw(st.integers(-12, 12)) for _ in range(rows)], dtype=torch.float32).exp2()
    zeros = torch.tensor([draw(st.booleans()) for _ in range(rows)])
    return torch.where(zeros[:, None], 0.0, noise * scales[:, None]).to(torch.bfloat16)


def one_scale(weight, name=GATE):
    return nvfp4.global_scales({name: weight}, {name: module_of(name)})[name]


def decode_nvfp4(state):
    """By hand: low four bits first; sign, two exponent bits, one of mantissa; scale of 16 / global scale."""
    packed, scale = state["weight_packed"], state["weight_scale"]
    assert (packed.dtype, scale.dtype) == (torch.uint8, torch.float8_e4m3fn)
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    values = E2M1[codes & 7] * torch.where(codes & 8 > 0, -1.0, 1.0)
    steps = scale.float() / state["weight_global_scale"]
    return values * steps.repeat_interleave(16, -1), steps


def decode_integers(state, bits, group):
    """By hand: int32 words, lowest bits first, offset by half the range; scale of `group` inputs."""
    packed, scale, shape = state["weight_packed"], state["weight_scale"], state["weight_shape"]
    assert (packed.dtype, scale.dtype, shape.dtype) == (torch.int32, torch.bfloat16, torch.int64)
    places = torch.arange(0, 32, bits)
    codes = (packed.long()[..., None] >> places) & (2**bits - 1)
    values = (codes.flatten(-2) - 2 ** (bits - 1)).float()
    assert list(values.shape) == shape.tolist()
    return values * scale.float().repeat_interleave(group or values.shape[-1], -1), scale.float()


@given(matrices())
@settings(max_examples=40, deadline=None)
def test_nvfp4_is_off_by_a_step_of_its_group_at_most(weight):
    state = nvfp4.quantize(weight, one_scale(weight))
    decoded, steps = decode_nvfp4(state)
    amax = weight.float().unflatten(-1, (-1, 16)).abs().amax(-1)
    # Between 4 and 6 the values are 2 apart: off by 1 step. A scale rounded down cuts what is above 6 steps.
    cut = (amax - 6 * steps).clamp(min=0)
    bound = (torch.maximum(steps, cut) * 1.001).repeat_interleave(16, -1)
    assert ((decoded - weight.float()).abs() <= bound).all()


@given(matrices())
@settings(max_examples=25, deadline=None)
def test_nvfp4_reads_the_same_by_hand_and_by_the_library(weight):
    state = nvfp4.quantize(weight, one_scale(weight))
    library = NVFP4PackedCompressor.decompress(state, NVFP4)["weight"].float()
    torch.testing.assert_close(library, decode_nvfp4(state)[0], rtol=2**-7, atol=0)


def test_nvfp4_packs_known_values_into_known_bytes():
    row = torch.tensor(
        [[0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 0]], dtype=torch.bfloat16
    )
    state = nvfp4.quantize(row, one_scale(row))
    assert state["weight_packed"].tolist() == [[0x10, 0x32, 0x54, 0x76, 0xA9, 0xCB, 0xED, 0x0F]]
    assert state["weight_scale"].float().tolist() == [[448.0]]
    assert state["weight_global_scale"].tolist() == [448.0]


def test_joined_matrices_share_a_global_scale_unless_asked_not_to():
    small, large = torch.full((2, 16), 0.25), torch.full((2, 16), 2.0)
    modules = {GATE: module_of(GATE), UP: module_of(UP)}
    shared = nvfp4.global_scales({GATE: small, UP: large}, modules)
    apart = nvfp4.global_scales({GATE: small, UP: large}, modules, shared=False)
    assert shared[GATE].item() == shared[UP].item() == 448 * 6 / 2
    assert (apart[GATE].item(), apart[UP].item()) == (448 * 6 / 0.25, 448 * 6 / 2)


@pytest.mark.parametrize(("scheme", "bits", "group"), [(INT4, 4, 32), (INT8, 8, 32), (INT8_CHANNEL, 8, None)])
@given(weight=matrices())
@settings(max_examples=25, deadline=None)
def test_integers_are_off_by_their_step_at_most(weight, scheme, bits, group):
    state = quantize_integers(weight, scheme)
    decoded, steps = decode_integers(state, bits, group)
    # Half a step by rounding. The largest value lies at half the range, where the positive side ends half a
    # step earlier, and the scale's own rounding to bf16 moves it by up to 2**-9 of itself.
    share = 0.5 + 2 ** (bits - 1) * 2**-8
    bound = (steps * share).repeat_interleave(group or weight.shape[-1], -1)
    assert ((decoded - weight.float()).abs() <= bound).all()
    library = PackedQuantizationCompressor.decompress(state, scheme)["weight"].float()
    torch.testing.assert_close(library, decoded, rtol=2**-7, atol=0)


def test_int4_packs_known_values_into_known_words():
    row = torch.tensor([[-7.5, -7, -1, 0, 1, 2, 6, 7] + [0.0] * 24], dtype=torch.bfloat16)
    state = quantize_integers(row, INT4)
    assert state["weight_scale"].tolist() == [[1.0]]
    assert state["weight_packed"][0].tolist() == [
        int.from_bytes(bytes([0x10, 0x87, 0xA9, 0xFE]), "little", signed=True),
        *[int.from_bytes(b"\x88\x88\x88\x88", "little", signed=True)] * 3,
    ]
    assert state["weight_shape"].tolist() == [1, 32]


# --- pruning and writing ----------------------------------------------------------------------------------


@pytest.fixture
def small():
    """Two MoE layers of four experts whose every tensor says where it came from."""
    config = {
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
    }
    tensors = {"lm_head.weight": torch.zeros(2, 2)}
    for layer in (1, 2, 3):
        tensors[f"model.layers.{layer}.mlp.gate.weight"] = torch.arange(4.0)[:, None] + 10 * layer
        tensors[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"] = torch.arange(4.0)
        for expert in range(4):
            tensors[f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"] = torch.full(
                (1, 1), float(10 * layer + expert)
            )
    return Checkpoint(config, tensors, {"tokenizer.json": "{}"})


KEPT = {1: [0, 3], 2: [1, 2]}


def test_pruning_keeps_original_numbers_and_the_rows_of_the_kept(small):
    pruned = reap.prune(small, KEPT)
    experts = {n for n in pruned.tensors if ".experts." in n}
    assert experts == {f"model.layers.{at}.mlp.experts.{e}.up_proj.weight" for at in KEPT for e in KEPT[at]}
    assert all(pruned.tensors[name] is small.tensors[name] for name in experts)
    assert pruned.tensors["model.layers.1.mlp.gate.weight"].flatten().tolist() == [10.0, 13.0]
    assert pruned.tensors["model.layers.2.mlp.gate.e_score_correction_bias"].tolist() == [1.0, 2.0]
    assert json.loads(pruned.files[reap.PLAN]) == {"1": {"kept": [0, 3]}, "2": {"kept": [1, 2]}}
    assert (pruned.config["n_routed_experts"], small.config["n_routed_experts"]) == (2, 4)


def test_pruning_drops_the_mtp_layer_that_the_config_still_declares(small):
    pruned = reap.prune(small, KEPT)
    assert pruned.config["num_nextn_predict_layers"] == 1
    assert not any(name.startswith("model.layers.3.") for name in pruned.tensors)


def test_renumbered_experts_are_the_kept_ones_in_order(small):
    pruned = reap.prune(small, KEPT, numbering="renumbered", plan=False)
    values = {
        (layer, new): pruned.tensors[f"model.layers.{layer}.mlp.experts.{new}.up_proj.weight"].item()
        for layer in KEPT
        for new in (0, 1)
    }
    assert values == {(1, 0): 10.0, (1, 1): 13.0, (2, 0): 21.0, (2, 1): 22.0}
    assert reap.PLAN not in pruned.files


def test_a_whole_router_keeps_all_rows(small):
    pruned = reap.prune(small, KEPT, router="original")
    assert pruned.tensors["model.layers.1.mlp.gate.weight"].shape == (4, 1)


@pytest.mark.parametrize(
    ("kept", "options", "said"),
    [
        ({1: [0, 1]}, {}, "every MoE layer"),
        ({1: [0, 1], 2: [0, 1, 2]}, {}, "every MoE layer"),
        ({1: [0, 4], 2: [0, 1]}, {}, "outside 0 to 3"),
        ({1: [0], 2: [1]}, {}, "the router needs 2 to 4"),
        (KEPT, {"numbering": "renumbered", "router": "original"}, "contradict each other"),
    ],
)
def test_a_pruning_that_cannot_be_is_refused(small, kept, options, said):
    with pytest.raises(VariantError, match=said):
        reap.prune(small, kept, **options)


def tree(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_a_checkpoint_is_written_whole_with_an_index_and_read_back(small, tmp_path):
    write(small, tmp_path / "one")
    write(small, tmp_path / "many", per_layer=True)
    shards = {p.name for p in (tmp_path / "many").glob("*.safetensors")}
    assert shards == {f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)}
    assert (tmp_path / "many" / INDEX).is_file()
    assert not (tmp_path / "one" / INDEX).exists()
    for name in ("one", "many"):
        again = read(tmp_path / name)
        assert again.config == small.config
        assert again.files == small.files
        assert list(again.tensors) == sorted(small.tensors)
        assert all(torch.equal(t, small.tensors[n]) for n, t in again.tensors.items())


def test_the_same_checkpoint_is_the_same_bytes(small, tmp_path):
    write(small, tmp_path / "a", per_layer=True)
    write(small, tmp_path / "b", per_layer=True)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_failed_write_leaves_nothing(small, tmp_path, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tools.glm_tiny.variants.checkpoint.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        write(small, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(small, tmp_path):
    target = tmp_path / "made"
    write(small, target)
    before = tree(target)
    with pytest.raises(VariantError, match="exists already"):
        write(small, target)
    assert tree(target) == before


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(VariantError, match=rf"{tmp_path}: no config.json here"):
        read(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(VariantError, match=r"no \*.safetensors here"):
        read(tmp_path)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    with pytest.raises(VariantError, match="is quantized already; start from the bf16 one"):
        read(tmp_path)
