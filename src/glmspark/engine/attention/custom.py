"""The name CUSTOM for a backend of ours, where the recipe chose it and its kernel is right on this device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from glmspark.engine.patch import PatchRefusedError

logger = logging.getLogger("vllm.glmspark.attention")


def take_name(
    vllm_config: Any, kind: str, backend: str, judge: Callable[[torch.device], str | None], way_out: str
) -> None:
    """Register `backend` (a class path) as CUSTOM, after its kernel was tried on this device.

    kind: the attention it does, as people call it. judge: what is wrong on a device, None for nothing.
    Raises PatchRefusedError, with the way out, where something is.
    """
    if vllm_config.attention_config.backend is not AttentionBackendEnum.CUSTOM:
        return
    if seen := judge(torch.device("cuda", torch.cuda.current_device())):
        raise PatchRefusedError(
            f"glmspark's {kind} attention is not right on this device: {seen}\n  next: {way_out}"
        )
    register_backend(AttentionBackendEnum.CUSTOM, backend)
    logger.info("%s MLA decode by glmspark's kernel, which agrees with float64 on this device", kind)
