"""Weights and KV cache of published checkpoints, beside what those who run them say."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.models.outline import Outline, outline_published
from glmspark.models.published import CHECKPOINTS, find
from glmspark.plan.cache import cache_format, sequence_bytes, token_bytes, tokens_in
from glmspark.plan.split import places
from glmspark.plan.weights import rank_weights
from tools.headers import tensors as header_tensors
from tools.headers import write_shard

GIB = 2**30
MIX = "QuantTrio/GLM-5.2-Int4-Int8Mix"
FLASH = "local-inference-lab/GLM-5.3-Flash-NVFP4"


@cache
def outline(name: str) -> Outline:
    known = find(name)
    assert known is not None
    return outline_published(name, known)


def of_ranks(name: str, tp: int, pp: int = 1, *, mtp: bool = False, indexer: bool = True) -> list[float]:
    """GiB of each stage's ranks."""
    one = outline(name)
    return [
        sum(rank_weights(one, place, tp=tp, element=2, indexer=indexer, mtp=mtp).values()) / GIB
        for place in places(len(one.architecture.layers), tp, pp)[::tp]
    ]


@pytest.mark.parametrize(
    ("name", "tp", "mtp", "published"),
    [
        (MIX, 4, False, 95.5),
        (MIX, 4, True, 98.07),
        ("Tech2wild/GLM-5.3-Int4-Int8Mix", 4, False, 95.53),
        ("nvidia/GLM-5.2-NVFP4", 4, False, 106.86),
        ("zai-org/GLM-5.3", 8, False, 88.0),
        ("dealignai/GLM-5.3-UNCENSORED-FP8", 8, False, 88.0),
        (FLASH, 4, True, 46.1),
        (FLASH, 4, False, 46.1),
    ],
)
def test_weights_of_a_rank(name, tp, mtp, published):
    assert of_ranks(name, tp, mtp=mtp)[0] == pytest.approx(published, rel=0.02)


def test_stages_of_the_pruned_one():
    """83.9, 90.3 and 92.1 GiB (bird/GLM-spark)."""
    stages = of_ranks("0xSero/GLM-5.2-NVFP4-REAP-469B", 1, 3, indexer=False)
    assert stages == [pytest.approx(said, rel=0.02) for said in (83.9, 90.3, 92.1)]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        (MIX, 405_459_090_304),
        ("nvidia/GLM-5.2-NVFP4", 433 * GIB),
        ("0xSero/GLM-5.2-NVFP4-REAP-469B", 287e9),
        ("LibertAIDAI/GLM-5.3-Flash-NVFP4", 181.3 * GIB),
        ("nvidia/GLM-5.3-Flash-NVFP4", 190.4 * GIB),
        ("zai-org/GLM-5.3-Flash", 305.8 * GIB),
        ("zai-org/GLM-5.3-BF16", 1507e9),
        ("brandonmusic/GLM-5.3-Flash-tr3-4bpw", 163.6 * GIB),
        ("madeby561/GLM-5.2-NVFP4-REAP-504B", 308.9e9),
        ("madeby561/GLM-5.2-MXFP8-NVFP4-NF3-Hybrid", 327e9),
        ("Mia-AiLab/GLM-5.3-EXL3-2.75bpw-TensorFold", 273 * GIB),
        ("brandonmusic/GLM-5.2-EXL3-TR3v4-3.5bpw-MTP78", 346.2e9),
    ],
)
def test_size_on_disk(name, size):
    assert outline(name).nbytes == pytest.approx(size, rel=0.025)


def test_by_name_it_weighs_what_its_headers_add_up_to(tmp_path):
    contents = dict(header_tensors("glm-5.3-flash-nvfp4"))
    size = write_shard(tmp_path / "model.safetensors", contents)
    assert outline(FLASH).nbytes == pytest.approx(size, rel=0.001)


@pytest.mark.parametrize(
    ("name", "dtype", "memory", "dcp", "context", "drafts", "published"),
    [
        (MIX, "nvfp4_ds_mla", 10.2e9, 1, 319_000, 5, 319_000),  # 0xdfi R9, "fast"
        (MIX, "nvfp4_ds_mla", 8.41e9, 2, 520_000, 5, 525_887),  # 0xdfi R9, "balanced"
        (MIX, "fp8_ds_mla", 1.81e9, 4, 131_072, 1, 132_096),  # forum thread 374832
        (FLASH, "fp8", 32 * GIB, 1, 1_048_576, 3, 5_033_164),  # tonyd2wild
        (FLASH, "fp8", 24 * GIB, 4, 1_048_576, 3, 3_761_495),  # sparkring issue 257
    ],
)
def test_tokens_of_a_pool(name, dtype, memory, dcp, context, drafts, published):
    model = outline(name).architecture
    place = places(len(model.layers), 4, 1)[0]
    token = token_bytes(model, place, cache_format(model, dtype, element=2, sparse=True), mtp=True).total
    states = sequence_bytes(model, place, tp=4, drafts=drafts)
    found = tokens_in(int(memory), token, states, context=context, block=64, dcp=dcp)
    assert found == pytest.approx(published, rel=0.05)


def test_a_token_in_four_bits():
    """31,976 bytes at DCP1 (0xdfi): 79 latents of 368 and 22 indexer keys of 132."""
    model = outline(MIX).architecture
    place = places(78, 4, 1)[0]
    form = cache_format(model, "nvfp4_ds_mla", element=2, sparse=True)
    assert token_bytes(model, place, form, mtp=True).total == 31_976


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(CHECKPOINTS)),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 3, 6]),
    st.booleans(),
)
def test_more_ranks_never_hold_more_each(name, tp, pp, mtp):
    most = max(of_ranks(name, tp, pp, mtp=mtp))
    assert max(of_ranks(name, tp * 2, pp, mtp=mtp)) <= most
    assert max(of_ranks(name, tp, pp * 2, mtp=mtp)) <= most * (1 + 1e-9)


@given(
    st.sampled_from([MIX, FLASH]),
    st.integers(2**20, 2**36),
    st.integers(64, 2**20),
    st.sampled_from(["auto", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"]),
)
def test_a_larger_pool_never_holds_less(name, memory, context, dtype):
    model = outline(name).architecture
    place = places(len(model.layers), 4, 1)[0]
    token = token_bytes(model, place, cache_format(model, dtype, element=2, sparse=True), mtp=False).total
    states = sequence_bytes(model, place, tp=4, drafts=0)

    def held(size: int) -> int:
        return tokens_in(size, token, states, context=context, block=64, dcp=1)

    assert held(memory) <= held(memory + 2**24)
    assert held(memory) * token <= memory + token * 64
