"""What a DSpark drafter looks like, and its config.json in the format of the `speculators` library.

Reference of the format: DSparkSpeculatorConfig of speculators 0.9.0, and what vLLM 0.33 reads of it
(vllm/transformers_utils/configs/speculators/algos.py, update_dspark). No torch here.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glmspark.errors import GlmsparkError

__all__ = ["FORMAT_VERSION", "DrafterError", "Shape", "read_shape"]

FORMAT_VERSION = "0.9.0"
"""The version of `speculators` whose format is written."""

_COUNTS = (
    "hidden_size", "layers", "heads", "kv_heads", "head_dim", "intermediate_size", "vocab_size", "block_size",
    "markov_rank", "max_positions",
)  # fmt: skip


class DrafterError(GlmsparkError):
    """A drafter, a data set of states or a setting for either is not what is needed."""


@dataclass(frozen=True)
class Shape:
    """A DSpark drafter: a small Qwen3-like decoder that reads the target's states, and two heads.

    hidden_size and vocab_size are the target's: embedding and output matrix are shared with it. aux_layers:
    the target's layers whose states it reads; L stands for the state after L layers. block_size: tokens a
    draft. window: how many of the last positions it sees, None for all of them. With a window a position in
    the block sees those before it, without one it sees the whole block: the format's two ways.
    markov_rank: inner size of the head that adds what usually follows the token before.
    """

    hidden_size: int
    vocab_size: int
    aux_layers: tuple[int, ...]
    mask_token: int
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 512
    block_size: int = 8
    window: int | None = 1024
    markov_rank: int = 64
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-5
    max_positions: int = 8192

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise DrafterError(f"a drafter's {name} must be a whole number above 0, not {value!r}")
        for name in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
                raise DrafterError(f"a drafter's {name} must be a number above 0, not {value!r}")
        if self.window is not None and (not isinstance(self.window, int) or isinstance(self.window, bool)):
            raise DrafterError(f"a drafter's window must be a whole number, not {self.window!r}")
        if not isinstance(self.mask_token, int) or isinstance(self.mask_token, bool):
            raise DrafterError(f"a drafter's mask_token must be a whole number, not {self.mask_token!r}")
        if self.heads % self.kv_heads:
            raise DrafterError(f"{self.heads} heads cannot share {self.kv_heads} key heads evenly")
        if self.head_dim % 8:
            raise DrafterError(f"head_dim {self.head_dim} is no multiple of 8, which attention kernels need")
        if not self.aux_layers or any(not isinstance(n, int) or n < 1 for n in self.aux_layers):
            raise DrafterError("aux_layers names the target's layers, counted from 1")
        if list(self.aux_layers) != sorted(set(self.aux_layers)):
            raise DrafterError(f"aux_layers {list(self.aux_layers)} must rise")
        if not 0 <= self.mask_token < self.vocab_size:
            raise DrafterError(
                f"mask_token {self.mask_token} is not among the target's {self.vocab_size} tokens"
            )
        if self.window is not None and self.window <= self.block_size:
            raise DrafterError(f"a window of {self.window} positions is not more than a block")

    @property
    def causal(self) -> bool:
        """Whether a position in the block sees only those before it."""
        return self.window is not None

    def config(self, target: str, architecture: str = "GlmMoeDsaForCausalLM") -> dict[str, Any]:
        """config.json. target: name or path of the model that it drafts for."""
        kind = "full_attention" if self.window is None else "sliding_attention"
        layer: dict[str, Any] = {
            "model_type": "qwen3",
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "max_position_embeddings": self.max_positions,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
            "use_sliding_window": self.window is not None,
            "sliding_window": self.window,
            "layer_types": [kind] * self.layers,
        }
        return {
            "architectures": ["DSparkSpeculator"],
            "speculators_model_type": "dspark",
            "speculators_version": FORMAT_VERSION,
            "speculators_config": {
                "algorithm": "dspark",
                "default_proposal_method": "greedy",
                "proposal_methods": [
                    {
                        "proposal_type": "greedy",
                        "speculative_tokens": self.block_size,
                        "accept_tolerance": 0.0,
                        "verifier_accept_k": 1,
                    }
                ],
                "verifier": {"name_or_path": target, "architectures": [architecture]},
            },
            "transformer_layer_config": layer,
            "draft_vocab_size": self.vocab_size,
            "block_size": self.block_size,
            "aux_hidden_state_layer_ids": list(self.aux_layers),
            "mask_token_id": self.mask_token,
            "sample_from_anchor": True,
            "sliding_window_non_causal": False,
            "markov_rank": self.markov_rank,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        }

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self) | {"aux_layers": list(self.aux_layers)}


def read_shape(directory: Path) -> Shape:
    """The shape of the drafter in a directory, from its config.json.

    Raises DrafterError where there is none, and for whatever the training here does not do: gated or
    recurrent Markov heads, drafts that begin behind the anchor, a vocabulary of its own, mixed windows.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DrafterError(
            f"no drafter can be read from {directory}",
            step=f"read {path}",
            seen=str(error)[:200],
            next="name a directory that `glmspark speculator export` wrote",
        ) from error
    try:
        return _shape(config)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise DrafterError(
            f"{path} is not a DSpark drafter's configuration as `speculators` writes it",
            step=f"read {path}",
            seen=f"{type(error).__name__}: {str(error)[:200]}",
        ) from error


def _shape(config: dict[str, Any]) -> Shape:
    layer = config["transformer_layer_config"]
    for name, wanted, found in (
        ("speculators_model_type", "dspark", config["speculators_model_type"]),
        ("model_type", "qwen3", layer["model_type"]),
        ("markov_head_type", "vanilla", config.get("markov_head_type", "vanilla")),
        ("sample_from_anchor", True, config.get("sample_from_anchor", True)),
        ("draft_vocab_size", layer["vocab_size"], config["draft_vocab_size"]),
        ("enable_confidence_head", True, config.get("enable_confidence_head", True)),
        ("confidence_head_with_markov", True, config.get("confidence_head_with_markov", True)),
        ("sliding_window_non_causal", False, config.get("sliding_window_non_causal", False)),
    ):
        if found != wanted:
            raise DrafterError(f"a drafter with {name} {found!r} cannot be trained here, only {wanted!r}")
    kinds = set(layer.get("layer_types") or ["full_attention"])
    if len(kinds) > 1:
        raise DrafterError("a drafter with windows in some layers only cannot be trained here")
    rope = layer.get("rope_parameters") or {"rope_theta": layer.get("rope_theta", 1_000_000.0)}
    if rope.get("rope_type", "default") != "default":
        raise DrafterError(f"a drafter with rotary embedding {rope['rope_type']!r} cannot be trained here")
    heads = layer["num_attention_heads"]
    return Shape(
        hidden_size=layer["hidden_size"],
        vocab_size=layer["vocab_size"],
        aux_layers=tuple(config["aux_hidden_state_layer_ids"]),
        mask_token=config["mask_token_id"],
        layers=layer["num_hidden_layers"],
        heads=heads,
        kv_heads=layer["num_key_value_heads"],
        head_dim=layer.get("head_dim") or layer["hidden_size"] // heads,
        intermediate_size=layer["intermediate_size"],
        block_size=config["block_size"],
        window=layer["sliding_window"] if kinds == {"sliding_attention"} else None,
        markov_rank=config["markov_rank"],
        rope_theta=float(rope["rope_theta"]),
        rms_norm_eps=layer["rms_norm_eps"],
        max_positions=layer["max_position_embeddings"],
    )
