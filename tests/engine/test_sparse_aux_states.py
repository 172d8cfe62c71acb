"""What a drafter reads from GLM with DSA: the same on two ranks as on one, by vLLM's own forward."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.models.deepseek_v32.nvidia import model

from glmspark.engine.aux_states import staged, summed

HIDDEN, TOKENS, LAYERS = 16, 6, 4
WANTED = (0, 1, 3)
CLOSE = {"atol": 1e-3, "rtol": 1e-3}  # sums in another order, through tanh


class Norm(nn.Module):
    """RMSNorm as vLLM's is called; the residual is written in place, as the kernel does."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None:
            return x / x.pow(2).mean(-1, keepdim=True).sqrt()
        residual += x
        return residual / residual.pow(2).mean(-1, keepdim=True).sqrt(), residual


class Part(nn.Module):
    """A rank's columns of two matrices, as attention and MLP have them: the sum over ranks is the result."""

    def __init__(self, seed: int, rank: int, ranks: int) -> None:
        super().__init__()
        matrices = torch.randn(2, HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(seed))
        share = slice(rank * HIDDEN // ranks, (rank + 1) * HIDDEN // ranks)
        self.first, self.second = matrices[0][:, share], matrices[1][share]

    def forward(self, hidden_states: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        return torch.tanh(hidden_states @ self.first) @ self.second


def decoder(model_class: type[Any], rank: int, ranks: int) -> Any:
    """vLLM's decoder with small stand-ins for its matrices."""
    made = model_class.__new__(model_class)
    nn.Module.__init__(made)
    layers = []
    for number in range(LAYERS):
        layer = model.DeepseekV32DecoderLayer.__new__(model.DeepseekV32DecoderLayer)
        nn.Module.__init__(layer)
        layer.use_sequence_parallel = False
        layer.input_layernorm, layer.post_attention_layernorm = Norm(), Norm()
        layer.self_attn = Part(2 * number, rank, ranks)
        layer.mlp = Part(2 * number + 1, rank, ranks)
        layers.append(layer)
    made.layers, made.norm = nn.ModuleList(layers), Norm()
    made.start_layer, made.end_layer = 0, LAYERS
    made.use_sequence_parallel = made.replicated_embed = False
    made.config = SimpleNamespace(num_hidden_layers=LAYERS, hidden_size=HIDDEN)
    made.embed_tokens = nn.Embedding.from_pretrained(
        torch.randn(32, HIDDEN, generator=torch.Generator().manual_seed(99))
    )
    made.aux_hidden_state_layers = WANTED
    return made


class Ranks:
    """Two ranks as two threads, and the all-reduce between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.count, self.parts = count, {}
        self.barrier = threading.Barrier(count, timeout=30)
        group = SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1)
        fused = "vllm.models.common.ops.fused_allreduce_rms_norm"
        for module in (fused, "glmspark.engine.aux_states"):
            monkeypatch.setattr(f"{module}.tensor_model_parallel_all_reduce", self.sum)
        monkeypatch.setattr(f"{fused}.get_tensor_model_parallel_world_size", lambda: count)
        for name in (model.__name__, "glmspark.engine.aux_states"):
            monkeypatch.setattr(f"{name}.get_pp_group", lambda: group)

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        self.parts[threading.get_ident()] = part
        self.barrier.wait()
        total = torch.stack([self.parts[key] for key in sorted(self.parts)]).sum(0)
        self.barrier.wait()
        return total

    def run(self, model_class: type[Any]) -> list[Any]:
        """Each rank's (result, states)."""
        found: dict[int, Any] = {}

        def work(rank: int) -> None:
            try:
                made = decoder(model_class, rank, self.count)
                with torch.no_grad():
                    found[rank] = made(torch.arange(TOKENS), torch.arange(TOKENS))
            except BaseException:
                self.barrier.abort()
                raise

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[rank] for rank in range(self.count)]


def test_states_on_two_ranks_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        ((wanted, states),) = Ranks(patch, 1).run(model.DeepseekV32Model)
    two = Ranks(monkeypatch, 2)
    for made in (summed(model.DeepseekV32Model), staged(summed(model.DeepseekV32Model))):
        for result, found in two.run(made):
            torch.testing.assert_close(result, wanted, **CLOSE)
            assert len(found) == len(WANTED)
            # Upstream's state before the first layer is overwritten: it is the residual, which norms write.
            torch.testing.assert_close(found[0], decoder(made, 0, 1).embed_tokens.weight[:TOKENS])
            torch.testing.assert_close(torch.stack(found[1:]), torch.stack(states[1:]), **CLOSE)
    for _result, found in two.run(model.DeepseekV32Model):
        assert (found[1] - states[1]).abs().max() > 0.1, "upstream adds its states up: the patch can go"


def test_a_state_behind_the_last_layer_is_refused() -> None:
    made = decoder(summed(model.DeepseekV32Model), 0, 1)
    made.aux_hidden_state_layers = (1, LAYERS)
    with pytest.raises(ValueError, match="after layer 4"):
        made(torch.arange(TOKENS), torch.arange(TOKENS))
