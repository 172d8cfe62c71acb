"""Hidden states for drafters from GLM with DSA, added up over the tensor-parallel ranks."""

from __future__ import annotations

import ast
import sys
from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_weights import on_build
from glmspark.engine.patch import Finding, Patch, Target
from glmspark.engine.patches import dense_attention

_MODEL = "vllm.models.deepseek_v32.nvidia.model"
_OWNER = ("glmspark.engine.sparse_glm", "SparseGlm")


def needed(target: Target) -> str | None:
    """None on CUDA wherever GLM keeps its sparse attention: only that class leaves sums to the next layer."""
    if target.platform != "cuda":
        return (
            f"on {target.platform} GLM runs by the class for dense attention, whose layers hand on whole sums"
        )
    if dense_attention.needed(target) is None:
        return "GLM runs by the class for dense attention, whose layers hand on whole sums"
    return None


def precondition(code: Code) -> Finding:
    """A layer's result is a rank's part of a sum, and a state is taken without adding the parts up."""
    layer = ast.unparse(code.find(_MODEL, "DeepseekV32DecoderLayer"))
    if "reduce_results=False" not in layer or "fused_allreduce_rms_norm(" not in layer:
        return Finding.superseded(f"{_MODEL}: a layer adds its result up before it hands it on")
    forward = code.find(_MODEL, "DeepseekV32Model.forward")
    if (seen := look.parameters(forward)[:5]) != [
        "self",
        "input_ids",
        "positions",
        "intermediate_tensors",
        "inputs_embeds",
    ]:
        return Finding.no(f"{_MODEL}.DeepseekV32Model.forward takes ({', '.join(seen)})")
    text = ast.unparse(forward)
    if (
        "aux_hidden_states.append(hidden_states if residual is None else hidden_states + residual)"
        not in text
    ):
        return Finding.superseded(f"{_MODEL}.DeepseekV32Model.forward takes its states in another way")
    if "layer(positions, hidden_states, residual" not in text:
        return Finding.no(f"{_MODEL}: a layer is not called with (positions, hidden_states, residual)")
    if "return (hidden_states, aux_hidden_states)" not in text:
        return Finding.no(f"{_MODEL}.DeepseekV32Model.forward does not return its states beside the result")
    return Finding.yes("a state is a rank's own part of the sum plus the residual")


def sum_states(vllm_config: Any) -> None:
    """In a worker of several tensor-parallel ranks: have SparseGlm make a decoder that adds its states up.

    With vLLM's sequence parallelism, which exists without stages only, each rank holds whole sums of its own
    tokens, and upstream gathers them.
    """
    parallel = vllm_config.parallel_config
    shares_tokens = parallel.use_sequence_parallel_moe and parallel.pipeline_parallel_size == 1
    if parallel.tensor_parallel_size == 1 or shares_tokens:
        return
    from glmspark.engine.aux_states import SumsAuxStates, summed

    module, name = _OWNER
    owner = getattr(sys.modules.get(module), name, None)
    if owner is not None and not issubclass(owner.model_cls, SumsAuxStates):
        owner.model_cls = summed(owner.model_cls)


def apply() -> None:
    """Register the step before a GLM is built. It stands before pipeline-aux-states', which wraps it."""
    on_build(sum_states)


PATCH = Patch(
    name="sparse-aux-states",
    title="Hidden states for drafters from GLM with DSA on several ranks",
    upstream=(
        "the decoder with DSA leaves the all-reduce of a layer's result to the next layer's norm. The states "
        "for EAGLE-3, DFlash and DSpark drafters are taken before it: a rank's own part plus the residual."
    ),
    reason="each rank's drafter would read other, wrong states: few drafts are accepted, ranks draft apart",
    link="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/models/deepseek_v32/nvidia/model.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
