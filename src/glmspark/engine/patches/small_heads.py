"""Dense attention of a GLM with small heads on CUDA: FlashAttention prefill with padded values."""

from __future__ import annotations

from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_weights import on_build
from glmspark.engine.patch import Finding, Patch, Target
from glmspark.engine.patches import dense_attention

HEADS = (64, 64, 64)
"""glm-tiny's qk_nope_head_dim, qk_rope_head_dim and v_head_dim."""

_PREFILL = "vllm.v1.attention.backends.mla.prefill.flash_attn"
_BACKEND = "FlashAttnPrefillBackend"
_PADS = "torch.nn.functional.pad(v, [0, q.shape[-1] - v.shape[-1]], value=0)"


def needed(target: Target) -> str | None:
    """None where GLM runs densely on CUDA."""
    if target.platform != "cuda":
        return f"{target.platform} has a prefill of its own"
    if reason := dense_attention.needed(target):
        return f"attention is not dense here: {reason}"
    return None


def precondition(code: Code) -> Finding:
    """A list of dimensions decides, and values are padded to the keys' size where the backend says so."""
    allowed = look.text(code.find(_PREFILL, f"{_BACKEND}.supports_mla_dimensions"))
    if "mla_dimensions in [" not in allowed:
        return Finding.superseded(f"{_PREFILL} does not decide by a list of dimensions any more")
    dims = "MLADimensions(qk_nope_head_dim={}, qk_rope_head_dim={}, v_head_dim={})".format(*HEADS)
    if dims in allowed:
        return Finding.superseded(f"{_PREFILL} takes heads of {HEADS} itself")
    if not look.assigns_attribute(code.find(_PREFILL, f"{_BACKEND}.__init__"), "requires_v_padding"):
        return Finding.no(f"{_PREFILL}.{_BACKEND} has no requires_v_padding any more")
    run = look.text(code.find(_PREFILL, f"{_BACKEND}._flash_attn_varlen_diff_headdims"))
    if "if self.requires_v_padding:" not in run or _PADS not in run:
        return Finding.no(f"{_PREFILL} does not pad values where requires_v_padding is set")
    out = look.text(code.find(_PREFILL, f"{_BACKEND}.supports_out"))
    if "return not self.requires_v_padding" not in out:
        return Finding.no(f"{_PREFILL} does not say that padded values need a cut output")
    return Finding.yes("a list of dimensions decides, and padding the values is a path of its own")


def admit(backend: Any) -> None:
    """Let the backend class take `HEADS`, with its values padded. Does nothing the second time.

    FlashAttention 3 takes values of another size than the keys for some pairs only, and 128 with 64 is none
    of them; padded ones are of one size, which every version takes.
    """
    if getattr(backend, "glmspark_small_heads", False):
        return
    upstream_supports = backend.supports_mla_dimensions.__func__
    upstream_init = backend.__init__

    def supports_mla_dimensions(cls: Any, mla_dimensions: Any) -> bool:
        found = (
            mla_dimensions.qk_nope_head_dim,
            mla_dimensions.qk_rope_head_dim,
            mla_dimensions.v_head_dim,
        )
        return found == HEADS or bool(upstream_supports(cls, mla_dimensions))

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        upstream_init(self, *args, **kwargs)
        if (self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim) == HEADS:
            self.requires_v_padding = True

    backend.supports_mla_dimensions = classmethod(supports_mla_dimensions)
    backend.__init__ = init
    backend.glmspark_small_heads = True


def on_worker(_vllm_config: Any) -> None:
    """Change the backend in the process that builds the model."""
    from vllm.v1.attention.backends.mla.prefill.flash_attn import FlashAttnPrefillBackend

    admit(FlashAttnPrefillBackend)


def apply() -> None:
    """Register the change."""
    on_build(on_worker)


PATCH = Patch(
    name="small-heads",
    title="Dense prefill of glm-tiny on CUDA",
    upstream=(
        "FLASH_ATTN, the one dense MLA prefill that runs on every CUDA device, takes four head layouts of "
        "published models by a list; glm-tiny's (64, 64, 64) is none of them, and no backend is left."
    ),
    reason="glm-tiny stands for GLM on GPUs, too, and its dense attention is what DCP and REAP recipes run",
    link="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/attention/backends/mla/prefill/flash_attn.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
