"""glm-tiny for training: the same function as transformers' GlmMoeDsaForCausalLM, written to train fast.

Differences that do not change the function: all experts are computed for every token and the unchosen ones
weighted with zero (eight small experts cost less than sorting tokens); attention is dense while the trunk
trains, and the indexer is distilled to it afterwards (DeepSeek-V3.2, arXiv 2512.02556, section 2.1). The
MTP layer, which transformers leaves out, follows DeepSeek-V3 (arXiv 2412.19437, section 2.2) and vLLM's
reading of it. Parameter names are the checkpoint's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.glm_tiny.config import SHAPE


class Shape:
    """SHAPE with attribute access."""

    def __init__(self, values: dict[str, Any] = SHAPE):
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


def rotary(length: int, dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, [length, dim / 2], float32."""
    frequencies = theta ** -(torch.arange(0, dim, 2, device=device).float() / dim)
    angles = torch.arange(length, device=device).float()[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Interleaved RoPE on [B, T, heads, dim]; pairs are (0, 1), (2, 3), ...; the result is half-split."""
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Indexer(nn.Module):
    """Scores every earlier token for each query; the highest 2,048 are attended to."""

    def __init__(self, c: Shape):
        super().__init__()
        self.heads, self.dim, self.rope = c.index_n_heads, c.index_head_dim, c.qk_rope_head_dim
        self.wq_b = nn.Linear(c.q_lora_rank, self.heads * self.dim, bias=False)
        self.wk = nn.Linear(c.hidden_size, self.dim, bias=False)
        self.k_norm = nn.LayerNorm(self.dim, eps=1e-6)
        self.weights_proj = nn.Linear(c.hidden_size, self.heads, bias=False)

    def forward(self, x: Tensor, q_latent: Tensor, cos: Tensor, sin: Tensor, rows: Tensor) -> Tensor:
        """Scores [B, rows, T] (not masked) of the query positions `rows` [R] for all T tokens."""
        batch, length, _ = x.shape
        q = self.wq_b(q_latent[:, rows]).view(batch, len(rows), self.heads, self.dim)
        q = torch.cat((rotate(q[..., : self.rope], cos[rows], sin[rows]), q[..., self.rope :]), -1)
        k = self.k_norm(self.wk(x)).view(batch, length, 1, self.dim)
        k = torch.cat((rotate(k[..., : self.rope], cos, sin), k[..., self.rope :]), -1)[:, :, 0]
        scores = torch.relu(torch.einsum("brhd,btd->brht", q, k) * self.dim**-0.5)
        weights = self.weights_proj(x[:, rows]).float() * self.heads**-0.5
        return torch.einsum("brh,brht->brt", weights, scores.float())


class Attention(nn.Module):
    """Multi-head latent attention, expanded; its latent is what an engine caches."""

    def __init__(self, c: Shape, indexer: bool):
        super().__init__()
        self.c = c
        self.qk = c.qk_nope_head_dim + c.qk_rope_head_dim
        heads = c.num_attention_heads
        self.q_a_proj = nn.Linear(c.hidden_size, c.q_lora_rank, bias=False)
        self.q_a_layernorm = RMSNorm(c.q_lora_rank, c.rms_norm_eps)
        self.q_b_proj = nn.Linear(c.q_lora_rank, heads * self.qk, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(c.hidden_size, c.kv_lora_rank + c.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(c.kv_lora_rank, c.rms_norm_eps)
        self.kv_b_proj = nn.Linear(c.kv_lora_rank, heads * (c.qk_nope_head_dim + c.v_head_dim), bias=False)
        self.o_proj = nn.Linear(heads * c.v_head_dim, c.hidden_size, bias=False)
        self.indexer = Indexer(c) if indexer else None

    def qkv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Latent query [B, T, q_lora] and q, k, v, each [B, heads, T, dim]."""
        c, (batch, length, _) = self.c, x.shape
        heads, nope = c.num_attention_heads, c.qk_nope_head_dim
        latent = self.q_a_layernorm(self.q_a_proj(x))
        q = self.q_b_proj(latent).view(batch, length, heads, self.qk)
        q = torch.cat((q[..., :nope], rotate(q[..., nope:], cos, sin)), -1)
        kv = self.kv_a_proj_with_mqa(x)
        k_rope = rotate(kv[..., c.kv_lora_rank :].unsqueeze(2), cos, sin).expand(-1, -1, heads, -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(kv[..., : c.kv_lora_rank]))
        kv = kv.view(batch, length, heads, nope + c.v_head_dim)
        k = torch.cat((kv[..., :nope], k_rope), -1)
        return latent, q.transpose(1, 2), k.transpose(1, 2), kv[..., nope:].transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """`mask` [B, 1, T, T] true where attention is allowed, or None for plain causal."""
        _, q, k, v = self.qkv(x, cos, sin)
        v = F.pad(v, (0, q.shape[-1] - v.shape[-1]))  # fused kernels want one head dimension
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        o = o[..., : self.c.v_head_dim].transpose(1, 2).flatten(2)
        return self.o_proj(o)


class MLP(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MoE(nn.Module):
    """Sigmoid router with a correction bias that only chooses (arXiv 2408.15664), and a shared expert."""

    def __init__(self, c: Shape):
        super().__init__()
        self.c = c
        n, inner, width = c.n_routed_experts, c.moe_intermediate_size, c.hidden_size
        self.router = nn.Parameter(torch.empty(n, width))
        self.register_buffer("bias", torch.zeros(n))
        self.register_buffer("load", torch.zeros(n))
        self.gate_up = nn.Parameter(torch.empty(n, 2 * inner, width))
        self.down = nn.Parameter(torch.empty(n, width, inner))
        self.shared_experts = MLP(width, inner * c.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        c, n = self.c, self.c.n_routed_experts
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.router.float()).sigmoid()
        chosen = (scores + self.bias).topk(c.num_experts_per_tok, -1).indices
        picked = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        if self.training:
            self.load += picked.detach().flatten(0, -2).sum(0)
        weights = scores * picked
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor
        hidden = F.linear(x, self.gate_up.flatten(0, 1)).unflatten(-1, (n, 2, -1))
        hidden = F.silu(hidden[..., 0, :]) * hidden[..., 1, :] * weights.to(x.dtype).unsqueeze(-1)
        routed = F.linear(hidden.flatten(-2), self.down.transpose(0, 1).flatten(1))
        return routed + self.shared_experts(x)

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Nudge the correction bias towards experts that were chosen too rarely."""
        self.bias += rate * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class Layer(nn.Module):
    def __init__(self, c: Shape, index: int):
        super().__init__()
        mtp = index >= c.num_hidden_layers
        self.self_attn = Attention(c, mtp or c.index_topk_pattern[index] == "F")
        dense = index < c.first_k_dense_replace
        self.mlp = MLP(c.hidden_size, c.intermediate_size) if dense else MoE(c)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class MTP(nn.Module):
    """Predicts the token after next from the trunk's last hidden state and the next token."""

    def __init__(self, c: Shape):
        super().__init__()
        self.enorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.hnorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.block = Layer(c, c.num_hidden_layers)
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def join(self, hidden: Tensor, embedded_next: Tensor) -> Tensor:
        # vLLM zeroes the embedding at position 0
        embedded_next = torch.cat((torch.zeros_like(embedded_next[:, :1]), embedded_next[:, 1:]), 1)
        return self.eh_proj(torch.cat((self.enorm(embedded_next), self.hnorm(hidden)), -1))

    def forward(
        self, hidden: Tensor, embedded_next: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None
    ) -> Tensor:
        return self.norm(self.block(self.join(hidden, embedded_next), cos, sin, mask))


class GlmTiny(nn.Module):
    def __init__(self, c: Shape | None = None):
        super().__init__()
        self.c = c = c or Shape()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.mtp = MTP(c)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                fan_in = p.shape[-1]
                scale = 0.5 if name.endswith(("o_proj.weight", "down_proj.weight", "down")) else 1.0
                nn.init.normal_(p, std=0.02 if "embed" in name else scale * fan_in**-0.5)

    def rope(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        return rotary(length, self.c.qk_rope_head_dim, self.c.rope_parameters["rope_theta"], device)

    def forward(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Hidden states after the final norm, of the trunk and of the MTP layer, each [B, T, hidden].

        `ids` is [B, T]. Position t of the trunk predicts token t + 1, of the MTP layer token t + 2. The MTP
        layer learns from the trunk without changing it.
        """
        cos, sin = self.rope(ids.shape[1], ids.device)
        embedded = self.embed_tokens(ids)
        x = embedded
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        x = self.norm(x)
        following = torch.roll(embedded.detach(), -1, 1)
        return x, self.mtp(x.detach(), following, cos, sin, mask)

    def moes(self) -> list[MoE]:
        return [m for m in self.modules() if isinstance(m, MoE)]


def checkpoint_tensors(model: GlmTiny) -> dict[str, Tensor]:
    """The model's tensors under the names GLM-5.2 checkpoints use; the MTP layer is layer 4."""
    out: dict[str, Tensor] = {}
    n = model.c.num_hidden_layers
    inner = model.c.moe_intermediate_size
    for name, tensor in model.state_dict().items():
        if name.endswith(".load"):
            continue
        if name.startswith("mtp."):
            name = name.removeprefix("mtp.")
            name = f"layers.{n}.shared_head.norm.weight" if name == "norm.weight" else f"layers.{n}." + name
            name = name.replace(".block.", ".")
        if not name.startswith("lm_head"):
            name = "model." + name
        if name.endswith(".mlp.router"):
            out[name.removesuffix("router") + "gate.weight"] = tensor
        elif name.endswith(".mlp.bias"):
            out[name.removesuffix("bias") + "gate.e_score_correction_bias"] = tensor
        elif name.endswith(".mlp.gate_up"):
            for i, expert in enumerate(tensor):
                stem = name.removesuffix("gate_up") + f"experts.{i}."
                out[stem + "gate_proj.weight"] = expert[:inner]
                out[stem + "up_proj.weight"] = expert[inner:]
        elif name.endswith(".mlp.down"):
            for i, expert in enumerate(tensor):
                out[name.removesuffix("down") + f"experts.{i}.down_proj.weight"] = expert
        else:
            out[name] = tensor
    return out
