"""What a calibration text shows: how much each expert adds, and how large each matrix's inputs get."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from tools.glm_tiny.conversation import render
from tools.glm_tiny.corpus import conversation
from tools.glm_tiny.variants import fingerprint
from tools.glm_tiny.variants.names import moe_layers

#: Of the generated corpus, but not a seed that training or the evaluation uses.
SEED = 20_05
CONVERSATIONS = 96


@dataclass
class Observation:
    """Sums over the calibration text. Layers are numbers, modules are named as in the checkpoint."""

    tokens: int = 0
    #: Per layer and expert: the sum of (router weight x norm of the expert's output), and of tokens routed.
    activation: dict[int, Tensor] = field(default_factory=dict)
    routed: dict[int, Tensor] = field(default_factory=dict)
    #: Largest absolute input of each linear module.
    input_amax: dict[str, float] = field(default_factory=dict)

    def saliency(self, layer: int) -> list[float]:
        """REAP's score of each expert of a layer: its router-weighted output norm, averaged over its tokens.

        Lasby et al., "REAP the Experts", arXiv 2510.13999, equation 9. An expert that no token reaches has 0.
        """
        mean = self.activation[layer] / self.routed[layer].clamp(min=1)
        return [round(v, 9) for v in mean.tolist()]

    def saw(self, module: str, inputs: Tensor) -> None:
        """Note the inputs of a module."""
        if inputs.numel():
            self.input_amax[module] = max(self.input_amax.get(module, 0.0), float(inputs.abs().amax()))


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order, so that the result is the same on every machine of a kind."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def token_lists(source: Path, count: int = CONVERSATIONS) -> list[list[int]]:
    """The calibration conversations as token ids of the checkpoint's own tokenizer."""
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    rng = random.Random(SEED)
    texts = ["".join(render(conversation(rng)).pieces) for _ in range(count)]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def reference_model(source: Path) -> Any:
    """transformers' own model of the checkpoint, in float32."""
    from transformers import GlmMoeDsaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # the MTP layer is unexpected to transformers, which has no such module
    return GlmMoeDsaForCausalLM.from_pretrained(source, dtype=torch.float32).eval()


def _watch_experts(observation: Observation, layer: int, experts: nn.Module) -> Any:
    name = f"model.layers.{layer}.mlp.experts"
    count = experts.num_experts
    observation.activation[layer] = torch.zeros(count, dtype=torch.float64)
    observation.routed[layer] = torch.zeros(count, dtype=torch.float64)

    def hook(_module: nn.Module, arguments: tuple[Tensor, Tensor, Tensor]) -> None:
        hidden, chosen, weights = arguments
        for expert in range(count):
            token, place = torch.where(chosen == expert)
            inputs = hidden[token]
            gate, up = nn.functional.linear(inputs, experts.gate_up_proj[expert]).chunk(2, dim=-1)
            between = experts.act_fn(gate) * up
            norm = nn.functional.linear(between, experts.down_proj[expert]).double().norm(dim=-1)
            observation.activation[layer][expert] += (weights[token, place].double() * norm).sum()
            observation.routed[layer][expert] += len(token)
            observation.saw(f"{name}.{expert}.gate_proj", inputs)
            observation.saw(f"{name}.{expert}.up_proj", inputs)
            observation.saw(f"{name}.{expert}.down_proj", between)

    return experts.register_forward_pre_hook(hook)


def observe(source: Path) -> Observation:
    """Run the calibration text through the checkpoint in `source` and watch its experts and linear layers.

    A second look at the same checkpoint in one process costs nothing.
    """
    return _observe(source, fingerprint(source))


@cache
@torch.no_grad()
def _observe(source: Path, _fingerprint: str) -> Observation:
    model = reference_model(source)
    observation = Observation()
    for layer in moe_layers(model.config.to_dict()):
        _watch_experts(observation, layer, model.model.layers[layer].mlp.experts)

    def watch(name: str, module: nn.Linear) -> None:
        module.register_forward_pre_hook(lambda _module, inputs: observation.saw(name, inputs[0]))

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            watch(name, module)
    with one_thread():
        for ids in token_lists(source):
            model(input_ids=torch.tensor([ids]), use_cache=False)
            observation.tokens += len(ids)
    return observation
