"""The patches for context parallelism, shown an altered vLLM."""

from __future__ import annotations

import pytest

from glmspark.engine import registry
from glmspark.engine.code import installed_code
from glmspark.engine.patch import State, Target
from glmspark.engine.patches import cpu_dcp, dcp_query, dense_decode, sparse_decode
from tests.engine.test_preconditions import CONFIG, CPU, GB10_DENSE, GB10_SPARSE, REFUSED, SUPERSEDED, altered

BACKEND = "vllm.v1.attention.backends.mla.cpu_mla"
DCP = "vllm.v1.attention.ops.dcp"
KERNELS = "vllm.utils.cpu_triton_utils"
TABLE = "vllm.v1.worker.block_table"
PARALLEL = "vllm.config.parallel"
TRITON = "vllm.v1.attention.backends.mla.triton_mla"
MLA = "vllm.model_executor.layers.attention.mla_attention"
SPARSE_MLA = "vllm.model_executor.layers.attention.sparse_mla_attention"
SLOTS = "vllm.v1.attention.backends.mla.sparse_utils"
SM120 = "vllm.v1.attention.backends.mla.flashinfer_mla_sparse"
BACKENDS = "vllm.v1.attention.backends.registry"


@pytest.mark.parametrize(
    ("module", "pattern", "replacement", "state", "seen"),
    [
        (BACKEND, "_decode: bool = False", "_decode: bool = True", SUPERSEDED, "returns the LSE"),
        (KERNELS, "assert TOTAL_CP_WORLD_SIZE == 1", "assert True", REFUSED, "does not refuse"),
        (DCP, r"def correct_attn_out\(\n", "def correct_attn_out(\n    x,\n", REFUSED, "takes (x, out"),
        (DCP, r"def _dcp_a2a_pack_send\(\n", "def _dcp_a2a_pack_send(\n    x,\n", REFUSED, "takes (x, cp_"),
        (DCP, r"def _lse_weighted_combine\(", "def _other(", REFUSED, "has no _lse_weighted"),
        (DCP, r"(?m)^    _dcp_a2a_pack_send\(", "    send(", REFUSED, "does not combine"),
        (TABLE, r"        query_start_loc_ptr,  #", "        loc_ptr,  #", REFUSED, "takes other arguments"),
        ("vllm._custom_ops", "def cp_gather_cache", "def gather_cp", REFUSED, "has no cp_gather_cache"),
    ],
)
def test_cpu_dcp_on_an_altered_vllm(module, pattern, replacement, state, seen) -> None:
    outcome = registry.judge(cpu_dcp.PATCH, CPU, altered(module, pattern, replacement))
    assert outcome.state is state, outcome.why
    assert seen in outcome.why


@pytest.mark.parametrize(
    ("module", "pattern", "replacement", "state", "seen"),
    [
        (CONFIG, "q_replicate=True", "q_replicate=False", SUPERSEDED, "does not replicate"),
        (PARALLEL, r"q_replicate: bool = False,", "replicate: bool = False,", REFUSED, "takes (self"),
        (PARALLEL, r"if self\.dcp_q_replicate is None", "if True", REFUSED, "does not leave"),
    ],
)
def test_dcp_query_on_an_altered_vllm(
    module, pattern, replacement, state, seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", "rocep1s0f0")
    spark = Target("0.33.0", "cuda", (12, 1))
    code = altered(module, pattern, replacement)
    outcome = registry.judge(dcp_query.PATCH, spark, code)
    assert outcome.state is state, outcome.why
    assert seen in outcome.why
    assert registry.judge(dcp_query.PATCH, CPU, code).state is State.NOT_NEEDED


@pytest.mark.parametrize(
    ("module", "pattern", "replacement", "state", "seen"),
    [
        (TRITON, r"causal multi-token decode is not", "more rows are", SUPERSEDED, "does not refuse"),
        (
            TRITON,
            r"kv_c_and_k_pe_cache: torch.Tensor,",
            "kv_cache: torch.Tensor,",
            REFUSED,
            "forward_mqa takes",
        ),
        (TRITON, r"update = self\.dcp_world_size == 1", "update = True", REFUSED, "something else"),
        (MLA, r"    dcp_tot_seq_lens: torch", "    all_seq_lens: torch", REFUSED, "holds block_table"),
        (MLA, r"supports_dcp_with_varlen: bool = False,", "varlen: bool = False,", REFUSED, "Builder takes"),
        (MLA, r"_device = seq_lens\[:num_decodes\]", "_device = None", REFUSED, "lengths of all ranks"),
        (BACKENDS, r"class_path: str \| None = None", "path: str | None = None", REFUSED, "no class_path"),
    ],
)
def test_dense_decode_on_an_altered_vllm(module, pattern, replacement, state, seen) -> None:
    outcome = registry.judge(dense_decode.PATCH, GB10_DENSE, altered(module, pattern, replacement))
    assert outcome.state is state, outcome.why
    assert seen in outcome.why


@pytest.mark.parametrize(
    ("target", "state"),
    [
        (GB10_DENSE, State.APPLIED),
        (Target("0.33.0", "cuda", (8, 9)), State.APPLIED),
        (GB10_SPARSE, State.NOT_NEEDED),
        (Target("0.33.0", "cuda"), State.NOT_NEEDED),
        (CPU, State.NOT_NEEDED),
    ],
)
def test_where_dense_decode_is_needed(target: Target, state: State) -> None:
    outcome = registry.judge(dense_decode.PATCH, target, installed_code())
    assert outcome.state is state, outcome.why


@pytest.mark.parametrize(
    ("module", "pattern", "replacement", "state", "seen"),
    [
        (SM120 + "_sm120", r"is_sparse = True", "supports_dcp = True", SUPERSEDED, "returns an LSE"),
        (
            SLOTS,
            r"    dcp_rank: int,\n    cp_kv",
            "    rank: int,\n    cp_kv",
            REFUSED,
            "convert_dcp_index takes",
        ),
        (SLOTS, r"def flat_kv_row_view\(\n", "def flat_kv_row_view(\n    x,\n", REFUSED, "something else"),
        (
            SPARSE_MLA,
            r"    req_id_per_token: torch",
            "    req_ids: torch",
            REFUSED,
            "has no req_id_per_token",
        ),
        (SM120, r"supports_dcp_with_varlen=True", "supports_dcp_with_varlen=False", REFUSED, "several rows"),
        (BACKENDS, r"class_path: str \| None = None", "path: str | None = None", REFUSED, "no class_path"),
    ],
)
def test_sparse_decode_on_an_altered_vllm(module, pattern, replacement, state, seen) -> None:
    outcome = registry.judge(sparse_decode.PATCH, GB10_SPARSE, altered(module, pattern, replacement))
    assert outcome.state is state, outcome.why
    assert seen in outcome.why
    for target in (CPU, GB10_DENSE):
        assert registry.judge(sparse_decode.PATCH, target, installed_code()).state is State.NOT_NEEDED
