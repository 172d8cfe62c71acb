"""The attention kernels without a GPU: right in Triton's interpreter, small enough compiled for sm_121."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.platforms.interface import DeviceCapability

from glmspark.engine.attention import reference, shares
from glmspark.engine.attention.layout import PACKED_BYTES, Format, cache_of, pack, unpack
from glmspark.engine.attention.shapes import GB10_SHARED, Shape, shape_for, splits_for
from glmspark.engine.patch import PatchRefusedError
from glmspark.engine.patches import dense_decode, sparse_decode

HERE = Path(__file__).parent


def run(script: str, *words: str, cache: Path) -> list[str]:
    """Lines that a script beside this one prints."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, str(HERE / script), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_the_kernels_agree_with_float64_in_the_interpreter(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in run("interpret_attention.py", cache=tmp_path)]
    assert len(rows) >= 10
    for row in rows:
        assert row["off"] < 1e-5, row
        assert row["lse_off"] < 1e-5, row
        assert row["empty_right"], row
    assert sum(row["empty"] > 0 for row in rows) >= 10  # rows that see nothing are in nearly every case


def case(kind: Format, sparse: bool, shape: Shape) -> str:
    """As compile_attention.py takes it."""
    numbers = (int(kind), 64, int(sparse), shape.pairs, shape.keys, shape.warps, shape.stages)
    return ":".join(map(str, numbers))


def test_every_variant_for_gb10_fits_its_shared_memory(tmp_path: Path) -> None:
    shapes = {(kind, shape_for(kind, pairs, GB10_SHARED)) for kind in Format for pairs in (16, 128)}
    cases = ["merge", *(case(kind, kind is Format.PACKED, shape) for kind, shape in shapes)]
    found = json.loads(run("compile_attention.py", "121", *cases, cache=tmp_path)[-1])
    assert found.keys() == set(cases)
    assert max(found.values()) <= GB10_SHARED, found


def test_the_backend_is_triton_mla_with_several_rows_under_dcp(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.layers.attention.mla_attention import MLACommonMetadataBuilder

    from glmspark.engine.attention.backend import DenseMLABackend, DenseMLAImpl, DenseMLAMetadataBuilder

    def common(self: object, *_args: object, supports_dcp_with_varlen: bool = False) -> None:
        self.dcp_world_size, self.varlen = 2, supports_dcp_with_varlen  # type: ignore[attr-defined]

    monkeypatch.setattr(MLACommonMetadataBuilder, "__init__", common)
    builder = DenseMLABackend.get_builder_cls()(None, ["layer"], None, None)
    assert isinstance(builder, DenseMLAMetadataBuilder)
    assert builder.varlen  # what lets vLLM decode as many rows as are verified
    assert not builder.supports_draft_decode_metadata_update
    assert DenseMLABackend.get_impl_cls() is DenseMLAImpl
    assert DenseMLABackend.get_name() == "CUSTOM"
    assert (DenseMLAImpl.can_return_lse_for_decode, DenseMLAImpl.supports_dcp) == (True, True)


@pytest.mark.parametrize(
    ("backend", "dcp", "drafts"), [(None, 4, 7), ("TRITON_MLA", 4, 7), ("CUSTOM", 4, 7), ("CUSTOM", 1, None)]
)
def test_custom_leads_to_our_dense_class_where_it_is_chosen(backend, dcp, drafts, monkeypatch) -> None:
    from vllm.v1.attention.backends import registry as backends

    from glmspark.engine.attention import self_test
    from glmspark.engine.attention.backend import DenseMLABackend

    asked: list[self_test.Wanted] = []
    monkeypatch.setattr(self_test, "verdict", lambda wanted, _device: asked.append(wanted))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(backends, "_ATTN_OVERRIDES", {})
    config = configuration(dcp, "fp8")
    config.attention_config.backend = backend and backends.AttentionBackendEnum[backend]
    config.speculative_config = drafts and SimpleNamespace(num_speculative_tokens=drafts)
    dense_decode.on_worker(config)
    if backend != "CUSTOM":
        assert not asked
        assert not backends._ATTN_OVERRIDES
        return
    rows = 1 + (drafts or 0)
    assert asked == [self_test.Wanted(Format.FP8, 16 * dcp, 64, rows, 64, torch.bfloat16, dcp)]
    assert backends.AttentionBackendEnum.CUSTOM.get_class() is DenseMLABackend
    assert backends.AttentionBackendEnum.TRITON_MLA not in backends._ATTN_OVERRIDES


def configuration(dcp: int, cache: str) -> SimpleNamespace:
    return SimpleNamespace(
        attention_config=SimpleNamespace(backend=None),
        speculative_config=None,
        model_config=SimpleNamespace(
            get_num_attention_heads=lambda _parallel: 16,
            hf_text_config=SimpleNamespace(qk_rope_head_dim=64),
            dtype=torch.bfloat16,
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=dcp),
        cache_config=SimpleNamespace(cache_dtype=cache, block_size=64),
    )


def test_the_self_test_draws_its_numbers_whatever_torchs_defaults_are(monkeypatch) -> None:
    """vLLM builds a model with the GPU as default device and bfloat16 as default type."""
    from glmspark.engine.attention import self_test

    def dense(query, cache, requests, scale):
        assert cache.format is Format.PLAIN or cache.scales.dtype is torch.float32
        lengths = shares.row_lengths(requests.starts, requests.lengths, len(query))
        return reference.dense(query, cache, requests.block_table, requests.starts, lengths, scale)

    def sparse(query, cache, slots, _counts, scale):
        return reference.sparse(query, cache, slots, scale)

    monkeypatch.setattr(self_test.decode, "dense", dense)
    monkeypatch.setattr(self_test.decode, "sparse", sparse)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            for kind in (Format.PLAIN, Format.FP8):
                wanted = self_test.Wanted(kind, 2, 64, 2, 16)
                assert self_test.verdict(wanted, torch.device("cpu")) is None
            wanted = self_test.Wanted(Format.PACKED, 2, 64, 1, 1)
            assert self_test.verdict(wanted, torch.device("cpu"), sparse=True) is None
    finally:
        torch.set_default_dtype(before)


def test_custom_leads_to_our_sparse_class_where_it_is_chosen_and_right(monkeypatch) -> None:
    from vllm.v1.attention.backends import registry as backends

    from glmspark.engine.attention import self_test
    from glmspark.engine.attention.sparse_backend import SparseMLABackend

    custom = backends.AttentionBackendEnum.CUSTOM
    seen: list[str | None] = [None]
    asked: list[self_test.Wanted] = []

    def verdict(wanted: self_test.Wanted, _device: object, *, sparse: bool = False) -> str | None:
        asked.append(wanted)
        return seen[0] if sparse else "dense"

    monkeypatch.setattr(self_test, "verdict", verdict)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(backends, "_ATTN_OVERRIDES", {})
    config = configuration(4, "fp8_ds_mla")
    sparse_decode.on_worker(config)
    assert not asked  # nobody chose it
    config.attention_config.backend = custom
    seen[0] = "LSE off by 3"
    with pytest.raises(PatchRefusedError, match="LSE off by 3"):
        sparse_decode.on_worker(config)
    with pytest.raises(PatchRefusedError, match="dense attention is not right"):
        dense_decode.on_worker(config)
    seen[0] = None
    sparse_decode.on_worker(config)
    assert asked[-1] == self_test.Wanted(Format.PACKED, 64, 64, 1, 1)
    assert custom.get_class() is SparseMLABackend
    assert SparseMLABackend.supports_compute_capability(DeviceCapability(12, 1))
    assert SparseMLABackend.supports_compute_capability(DeviceCapability(9, 0))
    assert not SparseMLABackend.supports_compute_capability(DeviceCapability(8, 0))
    assert SparseMLABackend.supports_dcp()
    assert SparseMLABackend.is_sparse()


def test_a_kernel_that_is_wrong_or_does_not_compile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from glmspark.engine.attention import self_test

    wanted, device = self_test.Wanted(Format.PLAIN, 2, 0, 2, 16, torch.float32, 2, 1), torch.device("cpu")

    def right(query, cache, requests, scale):
        lengths = shares.row_lengths(requests.starts, requests.lengths, len(query), 2, 1)
        return reference.dense(query, cache, requests.block_table, requests.starts, lengths, scale)

    monkeypatch.setattr(self_test.decode, "dense", right)
    assert self_test.verdict(wanted, device) is None
    monkeypatch.setattr(self_test.decode, "dense", lambda *words: (right(*words)[0], right(*words)[1] + 0.01))
    assert "LSE by 1.0e-02" in (self_test.verdict(wanted, device) or "")
    monkeypatch.setattr(
        self_test.decode, "dense", lambda *words: (right(*words)[0] * torch.nan, right(*words)[1])
    )
    assert "output off by inf" in (self_test.verdict(wanted, device) or "")

    def fails(*_words: object) -> None:
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(self_test.decode, "dense", fails)
    assert self_test.verdict(wanted, device) == "RuntimeError: out of resource: shared memory"


# --- shares of ranks ----------------------------------------------------------------------------------------


def owner(place: int, world: int, interleave: int) -> int:
    return place // interleave % world


@settings(max_examples=80)
@given(st.integers(0, 300), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 16]))
def test_local_lengths_count_the_tokens_of_each_rank(length: int, world: int, interleave: int) -> None:
    for rank in range(world):
        right = sum(owner(place, world, interleave) == rank for place in range(length))
        assert int(shares.local_lengths(torch.tensor(length), world, rank, interleave)) == right


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 50)), min_size=1, max_size=5),
    st.integers(0, 3),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 4]),
)
def test_a_rows_bound_is_global_before_it_is_local(requests, padding, world, interleave) -> None:
    counts = [rows for rows, _ in requests]
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    lengths = torch.tensor([max(rows, length) for rows, length in requests])
    total = int(starts[-1]) + padding
    for rank in range(world):
        found = shares.row_lengths(starts, lengths, total, world, rank, interleave)
        right = [
            sum(owner(place, world, interleave) == rank for place in range(int(length) - (rows - 1 - row)))
            for rows, length in zip(counts, lengths, strict=True)
            for row in range(rows)
        ]
        assert found.tolist() == right + [0] * padding
        assert found.dtype is torch.int32


def test_rows_taken_off_a_local_length_would_be_wrong() -> None:
    """The published failure: three rows that end at 9, 10 and 11 tokens, shared by two ranks."""
    starts, lengths = torch.tensor([0, 3], dtype=torch.int32), torch.tensor([11])
    assert shares.row_lengths(starts, lengths, 3, 2, 0).tolist() == [5, 5, 6]
    assert shares.row_lengths(starts, lengths, 3, 2, 1).tolist() == [4, 5, 5]


@settings(max_examples=60)
@given(
    st.integers(1, 120), st.sampled_from([1, 2, 4]), st.sampled_from([1, 4]), st.integers(1, 12), st.data()
)
def test_the_ranks_own_best_make_the_best_of_all(length, world, interleave, k, data) -> None:
    scores = torch.tensor(data.draw(st.lists(st.integers(0, 6), min_size=length, max_size=length))).float()
    right = sorted(range(length), key=lambda place: (-scores[place], place))[:k]
    found_scores, found_places = [], []
    for rank in range(world):
        places = torch.tensor([p for p in range(length) if owner(p, world, interleave) == rank])
        best = torch.argsort(scores[places.long()], descending=True, stable=True)[:k]
        local = torch.nn.functional.pad(best, (0, k - len(best)), value=-1)
        found_places.append(shares.global_places(local, world, rank, interleave))
        mine = torch.where(found_places[-1] < 0, torch.nan, scores[found_places[-1].clamp_min(0)])
        found_scores.append(mine)
    order = data.draw(st.permutations(range(world)))
    merged_places = shares.merge_top_k(
        torch.cat([found_scores[n] for n in order])[None],
        torch.cat([found_places[n] for n in order])[None],
        k,
    )
    assert merged_places.shape == (1, k)
    assert merged_places[0].tolist() == right + [-1] * (k - len(right))


# --- layouts and shapes -------------------------------------------------------------------------------------


def test_fp8_ds_mla_is_read_back_within_fp8s_own_error() -> None:
    values = torch.randn(5, 7, 576)
    packed = pack(values)
    assert packed.shape == (5, 7, PACKED_BYTES)
    back = unpack(packed)
    assert (back[..., 512:] - values[..., 512:].to(torch.bfloat16)).abs().max() == 0
    assert (back - values).abs().max() <= values.abs().max() / 16
    assert unpack(pack(values[..., :512]), 0).shape == (5, 7, 512)


@pytest.mark.parametrize(
    ("shape", "kind", "rope", "seen"),
    [
        ((2, 16, 575), Format.PLAIN, 64, "576 elements"),
        ((2, 16, 576), Format.PLAIN, 0, "512 elements"),
        ((2, 16, 576), Format.PACKED, 64, "656 elements"),
        ((32, 576), Format.PLAIN, 64, "pages, tokens, width"),
        ((2, 16, 576), Format.FP8, 64, "one scale"),
    ],
)
def test_another_tensor_is_no_cache(shape: tuple[int, ...], kind: Format, rope: int, seen: str) -> None:
    with pytest.raises(ValueError, match=seen):
        cache_of(torch.zeros(shape, dtype=torch.uint8), kind, rope)


@settings(max_examples=60)
@given(st.integers(1, 4096), st.integers(1, 1_048_576), st.sampled_from([48, 132]))
def test_splits_fill_the_device_and_no_more(blocks: int, keys: int, units: int) -> None:
    shape = Shape(16, 32, 4, 2)
    splits = splits_for(shape, blocks, keys, units)
    assert 1 <= splits <= -(-keys // shape.keys)
    assert splits == 1 or splits * blocks <= units


def test_parts_that_saw_nothing_weigh_nothing() -> None:
    outs = torch.full((2, 1, 2, 512), float("nan"))
    outs[0, 0, 0] = 3.0
    lses = torch.tensor([[[1.0, float("-inf")]], [[float("-inf"), float("-inf")]]])
    out, lse = reference.merged(outs.nan_to_num(0.0), lses)
    assert (out[0, 0] == 3.0).all()
    assert lse[0].tolist() == [1.0, float("-inf")]
