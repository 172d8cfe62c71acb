"""A DSpark drafter in plain torch: what vLLM's Qwen3DSparkForCausalLM computes, for training and judging.

The target's states of the chosen layers are projected (`fc`) and normed; each layer makes keys and values of
them. A block of `block_size` queries stands behind the last known token, the anchor: the anchor's embedding
first, then embeddings of the mask token. Query k at position p + k guesses token p + k + 1. The Markov head
adds to its logits what usually follows the token before (the true one in training, its own draft when
drafting), and the confidence head guesses whether the target will accept.

Written after vLLM 0.33's qwen3_dflash.py and qwen3_dspark.py; names of parameters are the format's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from glmspark.speculator.shape import Shape

__all__ = ["Block", "Drafter", "Shared"]


@dataclass(frozen=True)
class Shared:
    """What a drafter takes from its target, [vocabulary, hidden size] each; not trained, not stored."""

    embedding: Tensor
    head: Tensor


@dataclass(frozen=True)
class Block:
    """What a drafter makes of blocks: hidden [rows, anchors, block, hidden size] and logits [..., vocabulary]
    without the Markov head's part."""

    hidden: Tensor
    logits: Tensor


class Norm(nn.Module):
    """RMSNorm over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x of any type; the same shape and type."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (normed * self.weight).to(x.dtype)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of x [rows, tokens, heads, size] at positions [rows, tokens], halves paired as Qwen3
    does it."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, device=x.device, dtype=torch.float32)
    angle = positions[..., None].float() * theta ** (-steps / half)
    cos, sin = angle.cos()[:, :, None], angle.sin()[:, :, None]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Attention of a block's queries to the context's keys and to the block's own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        size, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(size, shape.hidden_size, bias=False)
        self.q_norm = Norm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = Norm(shape.head_dim, shape.rms_norm_eps)

    def forward(
        self, block: Tensor, context: Tensor, positions: Tensor, context_positions: Tensor, mask: Tensor
    ) -> Tensor:
        """block [rows, queries, hidden], context [rows, tokens, hidden]; mask [rows, queries, tokens +
        queries] says what is seen. The result is as block."""
        theta = self.shape.rope_theta
        rows, queries = block.shape[:2]
        query = self.q_norm(self.q_proj(block).view(rows, queries, -1, self.shape.head_dim))
        query = rotate(query, positions, theta)
        both = torch.cat((context, block), dim=1)
        key = self.k_norm(self.k_proj(both).view(rows, both.shape[1], -1, self.shape.head_dim))
        key = rotate(key, torch.cat((context_positions, positions), dim=1), theta)
        value = self.v_proj(both).view(rows, both.shape[1], -1, self.shape.head_dim)
        share = self.shape.heads // self.shape.kv_heads
        key, value = (x.repeat_interleave(share, dim=2).transpose(1, 2) for x in (key, value))
        found = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key, value, attn_mask=mask[:, None]
        )
        return self.o_proj(found.transpose(1, 2).reshape(rows, queries, -1))


class Mlp(nn.Module):
    """Gated MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden size]; the same shape."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), Mlp(shape)
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(
        self, block: Tensor, context: Tensor, positions: Tensor, context_positions: Tensor, mask: Tensor
    ) -> Tensor:
        """As `Attention.forward`. The context is not normed here: its norm is common to all layers."""
        block = block + self.self_attn(
            self.input_layernorm(block), context, positions, context_positions, mask
        )
        return block + self.mlp(self.post_attention_layernorm(block))


class MarkovHead(nn.Module):
    """What usually follows a token, as logits: a matrix [vocabulary, vocabulary] of low rank."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(shape.vocab_size, shape.markov_rank)
        self.markov_w2 = nn.Linear(shape.markov_rank, shape.vocab_size, bias=False)


class ConfidenceHead(nn.Module):
    """The logit of a draft's being accepted, from its hidden state and the token before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.proj = nn.Linear(shape.hidden_size + shape.markov_rank, 1)


class Drafter(nn.Module):
    """The drafter's own parameters; what it shares with the target is given to each call."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        states = shape.hidden_size * len(shape.aux_layers)
        self.fc = nn.Linear(states, shape.hidden_size, bias=False)
        self.hidden_norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.markov_head = MarkovHead(shape)
        self.confidence_head = ConfidenceHead(shape)
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                # 0.02 is the initializer_range of Qwen3 and GLM configurations.
                with torch.no_grad():
                    module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * 0.02)
        nn.init.zeros_(self.confidence_head.proj.bias)

    def context(self, states: Tensor) -> Tensor:
        """What the layers make keys and values of. states [rows, tokens, layers * hidden size]."""
        return self.hidden_norm(self.fc(states.to(self.fc.weight.dtype)))

    def blocks(
        self, shared: Shared, states: Tensor, tokens: Tensor, anchors: Tensor, lengths: Tensor, start: Tensor
    ) -> Block:
        """All blocks that stand at the given anchors.

        states [rows, tokens, layers * hidden size] and tokens [rows, tokens] are sequences from position
        start [rows] on, padded; lengths [rows] says how long they are. anchors [rows, n] are indices into
        them: a block sees the states before its anchor, and no other block.
        """
        rows, count = anchors.shape
        size = self.shape.block_size
        steps = torch.arange(size, device=anchors.device)
        inside = (anchors[..., None] + steps).view(rows, count * size)  # index of each query in its sequence
        context_inside = torch.arange(tokens.shape[1], device=anchors.device).expand(rows, -1)
        ids = torch.full((rows, count, size), self.shape.mask_token, device=tokens.device)
        ids[:, :, 0] = tokens.gather(1, anchors)
        block = functional.embedding(ids.view(rows, -1), shared.embedding).to(self.fc.weight.dtype)
        mask = self._mask(anchors, lengths, context_inside)
        context = self.context(states)
        for layer in self.layers:
            block = layer(block, context, inside + start[:, None], context_inside + start[:, None], mask)
        hidden = self.norm(block).view(rows, count, size, -1)
        return Block(hidden, functional.linear(hidden, shared.head.to(hidden.dtype)))

    def _mask(self, anchors: Tensor, lengths: Tensor, context: Tensor) -> Tensor:
        """[rows, queries, tokens + queries]: context before the anchor and in the window, and the block."""
        size, count = self.shape.block_size, anchors.shape[1]
        block = torch.arange(count, device=anchors.device).repeat_interleave(size)
        step = torch.arange(size, device=anchors.device).repeat(count)
        anchor = anchors.repeat_interleave(size, dim=1)[..., None]
        seen = (context[:, None] < anchor) & (context[:, None] < lengths[:, None, None])
        own = block[:, None] == block[None]
        if self.shape.window is not None:
            seen &= context[:, None] > anchor + step[None, :, None] - self.shape.window
            own &= step[:, None] >= step[None]
        return torch.cat((seen, own.expand(anchors.shape[0], -1, -1)), dim=2)

    def bias(self, before: Tensor) -> tuple[Tensor, Tensor]:
        """The Markov head's part of the logits behind tokens [...]: (their embedding, the logits)."""
        embedded = self.markov_head.markov_w1(before)
        return embedded, self.markov_head.markov_w2(embedded)

    def confidence(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Logits [...] of being accepted, in float32."""
        features = torch.cat((hidden, embedded.to(hidden.dtype)), dim=-1).float()
        with torch.autocast(features.device.type, enabled=False):
            return self.confidence_head.proj(features).squeeze(-1)

    @torch.no_grad()
    def draft(self, block: Block, anchor_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Greedy drafts [rows, anchors, block] behind the anchors' tokens [rows, anchors], as vLLM makes
        them one after the other, and the confidence in each."""
        before, drafts, confidence = anchor_tokens, [], []
        for step in range(self.shape.block_size):
            embedded, bias = self.bias(before)
            before = (block.logits[:, :, step] + bias).argmax(-1)
            drafts.append(before)
            confidence.append(self.confidence(block.hidden[:, :, step], embedded).sigmoid())
        return torch.stack(drafts, dim=2), torch.stack(confidence, dim=2)
