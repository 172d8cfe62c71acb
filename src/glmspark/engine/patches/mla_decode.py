"""MLA decoding with an fp8 KV cache on GPUs that give a block 99 KiB of shared memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.model_weights import on_build
from glmspark.engine.patch import Finding, Patch, Target

logger = logging.getLogger("vllm.glmspark.mla_decode")

_OPS = "vllm.v1.attention.ops.triton_decode_attention"
KERNEL = "_fwd_grouped_kernel_stage1"

SHARED_MEMORY = {(32, 2): 102_400, (32, 1): 83_968, (16, 2): 60_416, (16, 1): 51_200}
"""Bytes of shared memory the kernel takes for MLA with fp8 keys, by (BLOCK_N, stages): upstream's choice
first, then from fast to slow. From compiling it for sm_121 (tests/engine/test_mla_decode.py); with bf16 keys
every one of them takes less than 64 KiB."""

MEASURED = {"0.32.0": "7e7f776f94e547d0", "0.33.0": "275ecc1227780889"}
"""Fingerprints of the kernel's text for which the table holds."""

SMALL_CAPABILITIES = frozenset({(8, 6), (8, 9), (12, 0), (12, 1)})
"""Compute capabilities that give a block 99 KiB (CUDA C++ Programming Guide, "Compute Capabilities")."""

WIDE = 512
"""BLOCK_DMODEL of MLA's latent, from which on the table holds."""


def needed(target: Target) -> str | None:
    """None on CUDA devices with 99 KiB of shared memory a block."""
    if target.platform != "cuda":
        return f"{target.platform} has another kernel"
    if target.capability is None:
        return "no CUDA device is visible"
    if target.capability in SMALL_CAPABILITIES:
        return None
    return "compute capability {}.{} gives a block more shared memory".format(*target.capability)


def precondition(code: Code) -> Finding:
    """The kernel is one whose memory is known, and is launched by its module's name with stages and block."""
    launch = look.text(code.find(_OPS, "_decode_grouped_att_m_fwd"))
    if "BLOCK_DMODEL >= 512" in launch or "shared_mem" in launch:
        return Finding.superseded(f"{_OPS} chooses its stages for small shared memory itself")
    for part in (
        f"{KERNEL}[grid](",
        "num_stages = 2",
        "BLOCK = 32",
        "BLOCK_N=BLOCK",
        "num_stages=num_stages",
    ):
        if part not in launch:
            return Finding.no(f"{_OPS}._decode_grouped_att_m_fwd does not say {part!r} any more")
    found = look.fingerprint(code.segment(_OPS, KERNEL))
    if found not in MEASURED.values():
        return Finding.no(f"{_OPS}.{KERNEL} is another kernel ({found}) than those whose memory was measured")
    return Finding.yes("the kernel takes 102,400 bytes with fp8 keys in upstream's two stages")


def choose(limit: int) -> tuple[int, int] | None:
    """(BLOCK_N, stages) for a device that gives a block `limit` bytes; None where nothing fits.

    >>> choose(101_376)
    (32, 1)
    """
    return next((choice for choice, size in SHARED_MEMORY.items() if size <= limit), None)


class FittedKernel:
    """The kernel, launched with stages and block that fit the device. Everything else is the kernel's own."""

    def __init__(self, kernel: Any, limit: int) -> None:
        self._kernel = kernel
        self.choice = choose(limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        launch = self._kernel[grid]

        def fitted(*args: Any, **kwargs: Any) -> Any:
            keys = args[1]
            if self.choice is not None and keys.element_size() == 1 and kwargs["BLOCK_DMODEL"] >= WIDE:
                kwargs["BLOCK_N"], kwargs["num_stages"] = self.choice
            return launch(*args, **kwargs)

        return fitted


def on_worker(_vllm_config: Any) -> None:
    """Put the fitted kernel in place in the process that builds the model."""
    import torch
    from vllm.v1.attention.ops import triton_decode_attention as ops

    kernel = getattr(ops, KERNEL)
    if isinstance(kernel, FittedKernel):
        return
    limit = torch.cuda.get_device_properties(torch.cuda.current_device()).shared_memory_per_block_optin
    fitted = FittedKernel(kernel, limit)
    setattr(ops, KERNEL, fitted)
    logger.info("MLA decode with fp8 keys: (BLOCK_N, stages) %s fit %d bytes", fitted.choice, limit)


def apply() -> None:
    """Register the change."""
    on_build(on_worker)


PATCH = Patch(
    name="mla-decode",
    title="MLA decoding with fp8 KV cache on 99 KiB of shared memory",
    upstream=(
        "the Triton decode kernel runs in two stages unless a head is wider than MLA's; with fp8 keys that "
        "takes 102,400 bytes of shared memory a block, where sm_121 gives 101,376."
    ),
    reason="dense MLA (DCP, the REAP recipe) decodes by this kernel on a Spark, and fp8 halves its KV cache",
    link="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/attention/ops/triton_decode_attention.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
