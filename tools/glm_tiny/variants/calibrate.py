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

    #: Places of the text that predict a token of an answer.
    answers: int = 0
    #: Per layer and expert: the sum over those places of router weight x norm of the expert's output.
    activation: dict[int, Tensor] = field(default_factory=dict)
    #: Largest absolute input of each linear module, over the whole text.
    input_amax: dict[str, float] = field(default_factory=dict)

    def saliency(self, layer: int) -> list[float]:
        """How much each expert of a layer adds to the answers: router weight x output norm, averaged.

        The product is REAP's (Lasby et al., "REAP the Experts", arXiv 2510.13999). REAP averages it over the
        tokens that reach the expert; averaged over all places that predict an answer, with 0 where the router
        passes the expert by, more of glm-tiny survives (docs/glm-tiny-variants.md).
        """
        return [round(v, 9) for v in (self.activation[layer] / self.answers).tolist()]

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


def conversations(
    source: Path, count: int = CONVERSATIONS, seed: int = SEED
) -> Iterator[tuple[list[int], list[bool]]]:
    """Generated ones as the checkpoint's token ids, and which places predict a token of an answer."""
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    rng = random.Random(seed)
    for _ in range(count):
        rendered = render(conversation(rng))
        ids: list[int] = []
        answer: list[bool] = []
        for piece, learn in zip(rendered.pieces, rendered.learn, strict=True):
            tokens = tokenizer.encode(piece, add_special_tokens=False).ids
            ids += tokens
            answer += [learn] * len(tokens)
        yield ids, [*answer[1:], False]


def reference_model(source: Path) -> Any:
    """transformers' own model of the checkpoint, in float32."""
    from transformers import GlmMoeDsaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # the MTP layer is unexpected to transformers, which has no such module
    return GlmMoeDsaForCausalLM.from_pretrained(source, dtype=torch.float32).eval()


def _watch_experts(observation: Observation, layer: int, experts: nn.Module, answer: list[bool]) -> None:
    """Note each expert's part at every call; `answer` is filled anew with the places that count before it."""
    name = f"model.layers.{layer}.mlp.experts"
    observation.activation[layer] = torch.zeros(experts.num_experts, dtype=torch.float64)

    def hook(_module: nn.Module, arguments: tuple[Tensor, Tensor, Tensor]) -> None:
        hidden, chosen, weights = arguments
        counts = torch.tensor(answer, dtype=torch.float64)
        for expert in range(experts.num_experts):
            token, place = torch.where(chosen == expert)
            inputs = hidden[token]
            gate, up = nn.functional.linear(inputs, experts.gate_up_proj[expert]).chunk(2, dim=-1)
            between = experts.act_fn(gate) * up
            norm = nn.functional.linear(between, experts.down_proj[expert]).double().norm(dim=-1)
            observation.activation[layer][expert] += (counts[token] * weights[token, place] * norm).sum()
            observation.saw(f"{name}.{expert}.gate_proj", inputs)
            observation.saw(f"{name}.{expert}.up_proj", inputs)
            observation.saw(f"{name}.{expert}.down_proj", between)

    experts.register_forward_pre_hook(hook)


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
    answer: list[bool] = []
    for layer in moe_layers(model.config.to_dict()):
        _watch_experts(observation, layer, model.model.layers[layer].mlp.experts, answer)

    def watch(name: str, module: nn.Linear) -> None:
        module.register_forward_pre_hook(lambda _module, inputs: observation.saw(name, inputs[0]))

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            watch(name, module)
    with one_thread():
        for ids, places in conversations(source):
            answer[:] = places
            observation.answers += sum(places)
            model(input_ids=torch.tensor([ids]), use_cache=False)
    return observation
