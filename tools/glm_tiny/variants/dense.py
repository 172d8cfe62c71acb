"""A quantized variant as bf16 again, by compressed-tensors' own readers: what a loader must compute with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import NVFP4PackedCompressor
from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer, ModelOptNvfp4Converter
from compressed_tensors.quantization import preset_name_to_scheme
from torch import Tensor

from tools.glm_tiny.variants import VariantError
from tools.glm_tiny.variants.checkpoint import Checkpoint, read


def _from_modelopt(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """ModelOpt's tensors in bf16. Activation scales go: they are about inputs, not about weights."""
    quantized = {name.rpartition(".")[0] for name in tensors if name.endswith(".weight_scale_2")}
    left = {n: t for n, t in tensors.items() if n.rpartition(".")[0] not in quantized}
    converter = ModelOptNvfp4Converter(targets=sorted(quantized))
    renamed = converter.process({n: t for n, t in tensors.items() if n not in left})
    scheme = preset_name_to_scheme("NVFP4A16", targets=["Linear"])
    for module in sorted(quantized):
        names = NVFP4PackedCompressor.compression_param_names(scheme)
        state = {name: renamed[f"{module}.{name}"] for name in names}
        left[f"{module}.weight"] = NVFP4PackedCompressor.decompress(state, scheme)["weight"]
    return left


def derive(source: Path) -> Checkpoint:
    """The checkpoint in `source` without its quantization; raises VariantError if it has no known one."""
    checkpoint = read(source, quantized=True)
    config: dict[str, Any] = {**checkpoint.config}
    method = config.pop("quantization_config", {}).get("quant_method")
    if method == "compressed-tensors":
        tensors = CompressedTensorsDequantizer(source, dtype=torch.bfloat16).process(checkpoint.tensors)
    elif method == "modelopt":
        tensors = _from_modelopt(checkpoint.tensors)
    else:
        raise VariantError(
            f"{source}: quant_method {method!r}; only compressed-tensors and modelopt are known"
        )
    return Checkpoint(config, dict(sorted(tensors.items())), checkpoint.files)
