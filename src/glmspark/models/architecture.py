"""What a checkpoint's config.json says about the model, as numbers the planner can compute with.

An `Architecture` lists its layers and, in `specs`, every weight it must have with shape and class;
parameter counts and the checkpoint check both come from that one list, so they cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

__all__ = ["Architecture", "Kind", "Layer", "LinearAttention", "TensorSpec"]

Kind = Literal[
    "embedding",
    "lm_head",
    "norm",
    "attention",
    "indexer",
    "router",
    "routed_experts",
    "shared_experts",
    "dense_mlp",
    "linear_attention",
    "hyper_connections",
    "vision",
    "mtp",
]


@dataclass(frozen=True)
class Layer:
    """One decoder layer. indexer: "full" has its own DSA indexer, "shared" reuses the choice of the last
    full layer, None has none. mtp: it belongs to the multi-token-prediction head, after the trunk. linear:
    its attention is linear (KDA), with a state of fixed size instead of a cache entry a token."""

    index: int
    moe: bool
    indexer: Literal["full", "shared"] | None
    mtp: bool = False
    linear: bool = False


@dataclass(frozen=True)
class TensorSpec:
    """One weight the architecture has, or one per routed expert.

    name: as in the checkpoint; `{expert}` stands for the expert's number where experts > 1. shape: of one.
    kind: its class within the trunk (MTP weights keep it too; `layer` tells them). tp: whether tensor
    parallelism splits it; the others lie whole on every rank.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    layer: Layer | None
    tp: bool
    experts: int = 1

    @property
    def parameters(self) -> int:
        """Number of elements, over all experts."""
        return prod(self.shape) * self.experts

    @property
    def module(self) -> str:
        """The name without its last part: what stays when a quantized format renames `weight`."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class LinearAttention:
    """Sizes of KDA layers. width: of one head. kernel: tokens that the short convolution looks at."""

    heads: int
    width: int
    kernel: int


@dataclass(frozen=True)
class Architecture:
    """A GLM model's dimensions, in elements. layers: the trunk; mtp_layers: the draft head's."""

    name: str
    model_type: str
    vocab_size: int
    hidden_size: int
    layers: tuple[Layer, ...]
    mtp_layers: tuple[Layer, ...]
    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    experts: int
    experts_per_token: int
    shared_experts: int
    index_topk: int | None
    index_heads: int
    index_head_dim: int
    max_position: int
    tied_embeddings: bool
    attention_bias: bool
    dtype: str | None
    quantization: str | None

    specs: tuple[TensorSpec, ...] = field(repr=False)
    """Every weight of trunk and MTP head. The MTP layer's own copies of embedding and lm_head, which some
    checkpoints carry, are not listed: the engine shares those of the trunk."""

    linear: LinearAttention | None = None
    """Of the layers with linear attention, None where there are none."""

    index_pool: int = 1
    """Tokens whose indexer keys are kept as one (`index_kpool`)."""

    @cached_property
    def parameters(self) -> Mapping[Kind, int]:
        """Parameters by class. "mtp" holds all of the MTP layers; the other classes are the trunk."""
        counts: Counter[Kind] = Counter()
        for spec in self.specs:
            kind: Kind = "mtp" if spec.layer is not None and spec.layer.mtp else spec.kind
            counts[kind] += spec.parameters
        return dict(counts)

    @property
    def trunk_parameters(self) -> int:
        """All parameters without the MTP head."""
        return sum(count for kind, count in self.parameters.items() if kind != "mtp")

    @property
    def active_parameters(self) -> int:
        """Parameters one token of text passes through in the trunk: everything but the embedding table, the
        vision tower and the routed experts that are not chosen."""
        routed = self.parameters.get("routed_experts", 0)
        unused = routed - routed * self.experts_per_token // self.experts if routed else 0
        unused += self.parameters["embedding"] + self.parameters.get("vision", 0)
        return self.trunk_parameters - unused

    @property
    def kv_latent(self) -> int:
        """Elements per token and layer in the MLA cache: the latent and the rotary key. It is whole on every
        tensor-parallel rank."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def indexed_layers(self) -> tuple[Layer, ...]:
        """Trunk layers with their own indexer, and so with an indexer key cache."""
        return tuple(layer for layer in self.layers if layer.indexer == "full")
