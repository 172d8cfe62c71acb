"""Drafters that read hidden states, with pipeline stages."""

from __future__ import annotations

import ast
import sys
from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_weights import on_build
from glmspark.engine.patch import Finding, Patch, Target

_GENERIC = "vllm.model_executor.models.deepseek_v2"
_INTERFACES = "vllm.model_executor.models.interfaces"
_V2 = "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils"
_OWNERS = (("glmspark.engine.dense_glm", "DenseGlm"), ("glmspark.engine.sparse_glm", "SparseGlm"))
_FLAG = "supports_aux_hidden_states_over_pp"


def needed(_target: Target) -> str | None:
    """None: on every platform a stage keeps its states to itself."""
    return None


def precondition(code: Code) -> Finding:
    """The decoder collects states before its layers and drops them on all stages but the last; vLLM has a
    protocol to carry them, which this class does not speak."""
    model = code.find(_GENERIC, "DeepseekV2Model")
    if _FLAG in ast.unparse(model):
        return Finding.superseded(f"{_GENERIC}.DeepseekV2Model says that it carries auxiliary states")
    forward = code.find(_GENERIC, "DeepseekV2Model.forward")
    if (seen := look.parameters(forward)[:5]) != [
        "self",
        "input_ids",
        "positions",
        "intermediate_tensors",
        "inputs_embeds",
    ]:
        return Finding.no(f"{_GENERIC}.DeepseekV2Model.forward takes ({', '.join(seen)})")
    text = ast.unparse(forward)
    for part, what in (
        ("if idx in self.aux_hidden_state_layers:", "collects auxiliary states before its layers"),
        (
            "IntermediateTensors({'hidden_states': hidden_states, 'residual': residual})",
            "sends hidden_states and residual",
        ),
        (
            "layer(positions, hidden_states, residual",
            "calls a layer with (positions, hidden_states, residual)",
        ),
        ("return (hidden_states, aux_hidden_states)", "returns its states beside the result"),
    ):
        if part not in text:
            return Finding.no(f"{_GENERIC}.DeepseekV2Model.forward is not the one that {what}")
    owner = code.find(_GENERIC, "DeepseekV2ForCausalLM")
    if "self.model_cls(" not in ast.unparse(owner) or "self.model.aux_hidden_state_layers = layers" not in (
        ast.unparse(owner)
    ):
        return Finding.no(
            f"{_GENERIC}.DeepseekV2ForCausalLM does not make its decoder from model_cls any more"
        )
    for method in (
        "_cache_aux_pp_layout",
        "pack_local_aux_hidden_states",
        "collect_remote_aux_hidden_states",
    ):
        code.find(_INTERFACES, f"EagleModelMixin.{method}")
    if f"'{_FLAG}'" not in ast.unparse(code.find(_V2, "verify_supports_aux_hidden_states_over_pp")):
        return Finding.no(f"{_V2} does not ask for {_FLAG} any more")
    return Finding.yes("DeepseekV2Model drops the auxiliary states of all stages but the last")


def carry_states(vllm_config: Any) -> None:
    """In a worker of several stages: have GLM's classes make a decoder that carries the states."""
    if vllm_config.parallel_config.pipeline_parallel_size == 1:
        return
    from glmspark.engine.aux_states import CarriesAuxStates, staged

    for module, name in _OWNERS:
        # Whichever of them is being built has been imported; the other cannot be, on this platform.
        owner = getattr(sys.modules.get(module), name, None)
        if owner is not None and not issubclass(owner.model_cls, CarriesAuxStates):
            owner.model_cls = staged(owner.model_cls)


def apply() -> None:
    """Register the step before a GLM is built."""
    on_build(carry_states)


PATCH = Patch(
    name="pipeline-aux-states",
    title="Drafters that read hidden states, with pipeline stages",
    upstream=(
        "GLM's decoder collects the hidden states that EAGLE-3, DFlash and DSpark drafters read on its own "
        "stage only, so verify_supports_aux_hidden_states_over_pp refuses them with stages."
    ),
    reason="layouts with stages could use no drafter but n-gram, suffix and MTP",
    link="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/model_executor/models/interfaces.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
