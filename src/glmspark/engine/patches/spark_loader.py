"""The load format `spark`: weights read past the page cache, straight to the device."""

from __future__ import annotations

from typing import Any

from glmspark.engine import code as look
from glmspark.engine.code import Code
from glmspark.engine.patch import Finding, Patch, Target

FORMAT = "spark"

_LOADER = "vllm.model_executor.model_loader.default_loader"
_REGISTRY = "vllm.model_executor.model_loader"
_FILTER = "vllm.model_executor.model_loader.ep_weight_filter"
_FILES = "vllm.model_executor.model_loader.weight_utils"

_SOURCE = {
    "model_or_path", "revision", "subfolder", "prefix", "fall_back_to_pt", "allow_patterns_overrides",
    "is_unused_weight",
}  # fmt: skip

_PREPARE = ("model_name_or_path", "subfolder", "revision", "fall_back_to_pt", "allow_patterns_overrides")


def needed(target: Target) -> str | None:
    """None wherever weights are read; a recipe chooses the format."""
    if target.platform in {"cpu", "cuda"}:
        return None
    return f"the loader knows CPU and CUDA, not {target.platform}"


def precondition(code: Code) -> Finding:
    """The base loader hands its source of weights to one method, which a subclass can replace."""
    loader = f"{_LOADER}.DefaultModelLoader"
    for method, wanted in (
        ("_get_weights_iterator", ["self", "source"]),
        (
            "_prepare_weights",
            ["self", *_PREPARE],
        ),
    ):
        seen = look.parameters(code.find(_LOADER, f"DefaultModelLoader.{method}"))
        if seen != wanted:
            return Finding.no(f"{loader}.{method} takes ({', '.join(seen)}), not ({', '.join(wanted)})")
    if missing := sorted(_SOURCE - set(look.fields(code.find(_LOADER, "DefaultModelLoader.Source")))):
        return Finding.no(f"{loader}.Source has no {', '.join(missing)}")
    if look.parameters(code.find(_FILTER, "should_skip_weight")) != ["weight_name", "local_expert_ids"]:
        return Finding.no(f"{_FILTER}.should_skip_weight takes other arguments")
    code.find(_FILES, "_natural_sort_key")
    formats = code.source(_REGISTRY)
    if "_LOAD_FORMAT_TO_MODEL_LOADER" not in formats:
        return Finding.no(f"{_REGISTRY} keeps no _LOAD_FORMAT_TO_MODEL_LOADER")
    if f'"{FORMAT}"' in formats:
        return Finding.superseded(f"{_REGISTRY} has a load format {FORMAT} of its own")
    return Finding.yes("loaders are registered by format, and one method of the base class reads")


def apply() -> None:
    """Register the format. The class itself is imported when a rank loads."""
    from vllm.model_executor import model_loader

    # Straight into the registry: `register_model_loader` wants the class, and with it the imports, now.
    model_loader._LOAD_FORMAT_TO_MODEL_LOADER[FORMAT] = _spark_loader


def _spark_loader(load_config: Any) -> Any:
    from glmspark.engine.loader.spark import SparkLoader

    return SparkLoader(load_config)


PATCH = Patch(
    name="spark-loader",
    title="Weights without page cache: --load-format spark",
    upstream=(
        "the default loader maps each file: its pages stay in the cache while any tensor of the file lives, "
        "and afterwards. Evicting them is left to the user, and does nothing to pages that are still mapped."
    ),
    reason=(
        "on unified memory the cache takes what CUDA needs: 37 GiB of cache leave 74 of 121 GiB; and mapped "
        "reads reach a fraction of an NVMe disk's rate there"
    ),
    link="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/model_loader/default_loader.py",
    versions=">=0.32,<0.34",
    needed=needed,
    precondition=precondition,
    apply=apply,
)
