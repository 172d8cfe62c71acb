"""The patches about weights, shown an altered vLLM: each refuses, or says that upstream does it now."""

from __future__ import annotations

import pytest

from glmspark.engine import registry
from glmspark.engine.code import installed_code
from glmspark.engine.patch import State, Target
from glmspark.engine.patches import pruned_experts, rank_loading, spark_loader
from tests.engine.altered import altered

CPU = Target("0.32.0", "cpu")

DEEPSEEK = "vllm.model_executor.models.deepseek_v2"
CONFIG = "vllm.model_executor.models.config"
MODELS = "vllm.model_executor.models.utils"
LOADER = "vllm.model_executor.model_loader.default_loader"
LOADERS = "vllm.model_executor.model_loader"
FILES = "vllm.model_executor.model_loader.weight_utils"
FILTER = "vllm.model_executor.model_loader.ep_weight_filter"

REFUSED, SUPERSEDED = State.REFUSED, State.SUPERSEDED
HOOK = "    def is_unused_checkpoint_weight(self, name):\n        return False\n\n"


@pytest.mark.parametrize("patch", [pruned_experts, rank_loading, spark_loader])
def test_it_fits_the_installed_vllm_and_no_other_platform(patch) -> None:
    assert registry.judge(patch.PATCH, CPU, installed_code()).state is State.APPLIED
    assert registry.judge(patch.PATCH, Target("0.33.0", "rocm"), installed_code()).state is State.NOT_NEEDED


@pytest.mark.parametrize(
    ("patch", "module", "pattern", "replacement", "state", "seen"),
    [
        (
            pruned_experts,
            DEEPSEEK,
            "fused_moe_make_expert_params_mapping",
            "experts_of",
            REFUSED,
            "not found by",
        ),
        (
            pruned_experts,
            DEEPSEEK,
            r"def load_weights\(self, weights:",
            "def load_weights(self, w:",
            REFUSED,
            "w)",
        ),
        (pruned_experts, FILTER, "weight_name: str", "name: str", REFUSED, "does not go by names"),
        (pruned_experts, LOADER, "enable_ep_weight_filter", "enable_filter", REFUSED, "does not read"),
        (pruned_experts, CONFIG, '"GlmMoeDsaForCausalLM": Glm', '"Other": Glm', REFUSED, "no entry"),
        (rank_loading, LOADER, "is_unused_checkpoint_weight", "unused", REFUSED, "does not ask the model"),
        (rank_loading, FILES, "is_unused_weight", "unused", REFUSED, "does not take is_unused_weight"),
        (
            rank_loading,
            MODELS,
            "def is_pp_missing_parameter",
            "def missing",
            REFUSED,
            "is_pp_missing_parameter",
        ),
        (
            rank_loading,
            MODELS,
            r'config: "PreTrainedConfig", weight_name: str',
            "weight_name: str",
            REFUSED,
            "takes (weight_name)",
        ),
        (
            rank_loading,
            DEEPSEEK,
            r"    def set_aux_hidden_state_layers",
            HOOK + "    def set_aux_hidden_state_layers",
            SUPERSEDED,
            "itself",
        ),
        (
            spark_loader,
            LOADER,
            r"self, source: Source\n",
            "self, source, rank\n",
            REFUSED,
            "takes (self, source, rank)",
        ),
        (spark_loader, LOADER, r"fall_back_to_pt: bool,\n", "pt: bool,\n", REFUSED, "_prepare_weights takes"),
        (
            spark_loader,
            LOADER,
            r"is_unused_weight: Callable",
            "unused: Callable",
            REFUSED,
            "no is_unused_weight",
        ),
        (spark_loader, FILTER, "def should_skip_weight", "def skip", REFUSED, "should_skip_weight"),
        (spark_loader, FILES, "def _natural_sort_key", "def _sort_key", REFUSED, "_natural_sort_key"),
        (spark_loader, LOADERS, "_LOAD_FORMAT_TO_MODEL_LOADER", "_LOADERS", REFUSED, "keeps no"),
        (
            spark_loader,
            LOADERS,
            '"pt": DefaultModelLoader',
            '"spark": DefaultModelLoader',
            SUPERSEDED,
            "of its own",
        ),
    ],
)
def test_an_altered_vllm(patch, module, pattern, replacement, state, seen) -> None:
    outcome = registry.judge(patch.PATCH, CPU, altered(module, pattern, replacement))
    assert outcome.state is state, outcome.why
    assert seen in outcome.why
