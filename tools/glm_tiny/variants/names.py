"""What a tensor's name says in a GLM-5.2 checkpoint, and which group size its matrices allow. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """The part of the model that a tensor belongs to."""

    EXPERT = "expert"
    SHARED = "shared"
    DENSE = "dense"
    ATTENTION = "attention"
    INDEXER = "indexer"
    ROUTER = "router"
    MTP_JOIN = "mtp-join"
    NORM = "norm"
    EMBEDDING = "embedding"
    HEAD = "head"


#: Matrices that vLLM joins into one, so that both must have the same scheme and, for NVFP4, one global scale.
FUSED = {
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj",
    "kv_a_proj_with_mqa": "fused_qkv_a_proj",
}
#: Matrices whose input dimension tensor parallelism splits.
ROW_PARALLEL = frozenset({"o_proj", "down_proj"})
#: The linear layers of MLA attention (the indexer's are a role of their own).
MLA_PROJECTIONS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.((?:gate|up|down)_proj)")
_MLP = re.compile(r"mlp\.(shared_experts\.)?((?:gate|up|down)_proj)")


@dataclass(frozen=True)
class Module:
    """A module of the checkpoint: `name` without the parameter; `layer` is None outside the layers."""

    name: str
    role: Role
    layer: int | None = None
    expert: int | None = None

    @property
    def projection(self) -> str:
        """The last part of the name, as in `down_proj`."""
        return self.name.rpartition(".")[2]

    @property
    def fusion(self) -> str:
        """One name for all modules that vLLM joins with this one."""
        parent, _, last = self.name.rpartition(".")
        return f"{parent}.{FUSED[last]}" if last in FUSED else self.name


def module_of(tensor: str) -> Module:
    """The module a tensor belongs to; raises ValueError for a name that no GLM-5.2 checkpoint has."""
    name, _, parameter = tensor.rpartition(".")
    if parameter == "e_score_correction_bias":
        return module_of(f"{name}.weight")
    if name == "lm_head":
        return Module(name, Role.HEAD)
    if name == "model.embed_tokens":
        return Module(name, Role.EMBEDDING)
    if name == "model.norm":
        return Module(name, Role.NORM)
    if not (found := _LAYER.fullmatch(name)):
        raise ValueError(f"{tensor}: no tensor of a GLM-5.2 checkpoint has this name")
    layer, rest = int(found[1]), found[2]
    if expert := _EXPERT.fullmatch(rest):
        return Module(name, Role.EXPERT, layer, int(expert[1]))
    if mlp := _MLP.fullmatch(rest):
        return Module(name, Role.SHARED if mlp[1] else Role.DENSE, layer)
    roles = {"mlp.gate": Role.ROUTER, "eh_proj": Role.MTP_JOIN, "embed_tokens": Role.EMBEDDING}
    roles |= {"shared_head.head": Role.HEAD, "shared_head.norm": Role.NORM}
    if rest in roles:
        return Module(name, roles[rest], layer)
    if rest.startswith("self_attn.indexer."):
        return Module(name, Role.INDEXER, layer)
    if rest.endswith("norm"):
        return Module(name, Role.NORM, layer)
    if rest.startswith("self_attn.") and rest.removeprefix("self_attn.") in MLA_PROJECTIONS:
        return Module(name, Role.ATTENTION, layer)
    raise ValueError(f"{tensor}: no tensor of a GLM-5.2 checkpoint has this name")


def main_layers(config: dict[str, Any]) -> range:
    """Numbers of the model's own layers."""
    return range(config["num_hidden_layers"])


def mtp_layers(config: dict[str, Any]) -> range:
    """Numbers of the MTP layers, which stand after the model's own; empty if the config declares none."""
    first = config["num_hidden_layers"]
    return range(first, first + int(config.get("num_nextn_predict_layers") or 0))


def moe_layers(config: dict[str, Any]) -> range:
    """Numbers of the model's own layers that have experts."""
    return range(config["first_k_dense_replace"], config["num_hidden_layers"])


def group_size(inputs: Iterable[tuple[Module, int]], tp: int, limit: int = 128) -> int:
    """The largest power of two up to `limit` that divides every matrix's input dimension on each rank.

    `inputs` gives modules with their input dimension. A scale covers `group_size` neighbouring inputs of one
    output. Tensor parallelism cuts the inputs of `ROW_PARALLEL` matrices into `tp` equal pieces, and vLLM
    refuses a group that lies on two ranks. GLM-5.2 allows 128 (2,048 expert inputs / TP4 = 512); at toy size
    the experts' down_proj with 64 inputs leaves 32 at TP2. Raises ValueError where `tp` does not divide.
    """
    common = limit
    for module, size in inputs:
        pieces = tp if module.projection in ROW_PARALLEL else 1
        if size % pieces:
            raise ValueError(f"{module.name} has {size} inputs, which {tp} ranks cannot share evenly")
        common = math.gcd(common, size // pieces)
    return common
