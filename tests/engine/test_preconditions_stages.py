"""The patches for pipeline stages, shown an altered vLLM."""

from __future__ import annotations

import pytest

from glmspark.engine import registry
from glmspark.engine.patch import State, Target
from glmspark.engine.patches import pipeline_aux_states, pipeline_speculation, sparse_aux_states
from tests.engine.test_preconditions import (
    CPU,
    DEEPSEEK,
    GB10_DENSE,
    GB10_SPARSE,
    GPU_RUNNER,
    REFUSED,
    SUPERSEDED,
    altered,
)

VLLM_CONFIG = "vllm.config.vllm"
INTERFACES = "vllm.model_executor.models.interfaces"
EAGLE3 = "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils"
WORKER = "vllm.v1.worker.gpu_worker"
SPARSE = "vllm.models.deepseek_v32.nvidia.model"


@pytest.mark.parametrize(
    ("patch", "module", "pattern", "replacement", "state", "seen"),
    [
        (
            pipeline_speculation,
            VLLM_CONFIG,
            r"pp_size = self\.parallel_config\.pipeline_parallel_size\n",
            "pp_size = self.stages\n",
            REFUSED,
            "does not go by the number of stages",
        ),
        (
            pipeline_speculation,
            VLLM_CONFIG,
            r"        # PP requires PP-size concurrent batches",
            "        if self.speculative_config: return 1\n        # PP requires",
            SUPERSEDED,
            "asks whether tokens are drafted",
        ),
        (
            pipeline_speculation,
            "vllm.v1.engine.core",
            r"vllm_config\.max_concurrent_batches",
            "self.batches",
            REFUSED,
            "does not take its number of batches",
        ),
        (pipeline_speculation, GPU_RUNNER, r"new_token_ids\[-1\]", "last(ids)", REFUSED, "does not read"),
        (pipeline_speculation, GPU_RUNNER, r"\.is_last_rank", ".is_last", REFUSED, "makes its drafter"),
        (pipeline_speculation, WORKER, r"load_model\(self, ", "load_model(self, x, ", REFUSED, "(self, x"),
        (
            pipeline_aux_states,
            DEEPSEEK,
            r"    fall_back_to_pt_during_load = False\n",
            "    supports_aux_hidden_states_over_pp = True\n",
            SUPERSEDED,
            "says that it carries",
        ),
        (
            pipeline_aux_states,
            DEEPSEEK,
            r"if idx in self\.aux_hidden_state_layers:",
            "if idx + 1 in self.aux_hidden_state_layers:",
            REFUSED,
            "collects auxiliary states before its layers",
        ),
        (
            pipeline_aux_states,
            DEEPSEEK,
            r"positions, hidden_states, residual, llama_4_scaling",
            "hidden_states, positions, residual, llama_4_scaling",
            REFUSED,
            "calls a layer with",
        ),
        (pipeline_aux_states, DEEPSEEK, r"self\.model_cls\(", "make(", REFUSED, "does not make its decoder"),
        (
            pipeline_aux_states,
            DEEPSEEK,
            r"self\.model\.aux_hidden_state_layers = layers",
            "self.model.want(layers)",
            REFUSED,
            "does not make its decoder",
        ),
        (pipeline_aux_states, INTERFACES, "def _cache_aux_pp_layout", "def _layout", REFUSED, "has no Eagle"),
        (
            pipeline_aux_states,
            EAGLE3,
            '"supports_aux_hidden_states_over_pp"',
            '"aux_over_pp"',
            REFUSED,
            "does not ask",
        ),
    ],
)
def test_an_altered_vllm(patch, module, pattern, replacement, state, seen) -> None:
    outcome = registry.judge(patch.PATCH, CPU, altered(module, pattern, replacement))
    assert outcome.state is state, outcome.why
    assert seen in outcome.why


@pytest.mark.parametrize(
    ("pattern", "replacement", "state", "seen"),
    [
        (r"reduce_results=False", "reduce_results=True", SUPERSEDED, "adds its result up"),
        (r"else hidden_states \+ residual", "else whole(hidden_states, residual)", SUPERSEDED, "another way"),
        (
            r"layer\(positions, hidden_states, residual",
            "layer(hidden_states, residual",
            REFUSED,
            "not called",
        ),
        (r"return hidden_states, aux_hidden_states", "return aux_hidden_states", REFUSED, "does not return"),
        (
            r"input_ids: torch\.Tensor \| None,\n        positions",
            "ids: torch.Tensor,\n        positions",
            REFUSED,
            "takes (self, ids",
        ),
    ],
)
def test_an_altered_decoder_with_dsa(pattern: str, replacement: str, state: State, seen: str) -> None:
    outcome = registry.judge(sparse_aux_states.PATCH, GB10_SPARSE, altered(SPARSE, pattern, replacement))
    assert outcome.state is state, outcome.why
    assert seen in outcome.why


@pytest.mark.parametrize("target", [CPU, GB10_DENSE, Target("0.33.0", "cuda", (8, 0))], ids=str)
def test_whole_sums_need_no_adding_up(target: Target) -> None:
    assert "whole sums" in (sparse_aux_states.PATCH.needed(target) or "")
