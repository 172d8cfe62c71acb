"""Where the plugin meets a GLM in a worker: when its class is built, and when it takes its weights.

vLLM's loaders ask a model two things: `load_weights(stream)`, and, before reading a file,
`is_unused_checkpoint_weight(name)`. `GlmWeights` answers both with the patches' steps and rules first and
the upstream class after them. So every loader profits, and no loader is changed. Building it is the moment
for changes to code that only a worker imports: kernels and attention backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from glmspark.engine.model_config import ARCHITECTURE

MTP_ARCHITECTURE = "DeepseekV32MTPModel"

Weights = Iterable[tuple[str, Any]]
Step = Callable[[Any, Weights], Iterator[tuple[str, Any]]]
NameRule = Callable[[Any, str], bool]
Build = Callable[[Any], None]

_SPARSE = {
    ARCHITECTURE: "glmspark.engine.sparse_glm:SparseGlm",
    MTP_ARCHITECTURE: "glmspark.engine.sparse_glm:SparseGlmMTP",
}

_steps: list[Step] = []
_unused: list[NameRule] = []
_builds: list[Build] = []
_loaded: list[Build] = []
_chosen: set[str] = set()


class GlmWeights:
    """First base of our model classes, before vLLM's own.

    Attributes the steps and rules use: `weights_directory`, where the model's checkpoint lies (or its name on
    a hub), and `drafts`, whether this is the MTP layer.
    """

    drafts = False
    weights_directory: str

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        for build in _builds:
            build(vllm_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self.weights_directory = str(vllm_config.model_config.model)

    def load_weights(self, weights: Weights) -> set[str]:
        """The patches' steps in the order of their registration, then vLLM's loading."""
        for step in _steps:
            weights = step(self, weights)
        loaded: set[str] = super().load_weights(weights)  # type: ignore[misc]
        for act in _loaded:
            act(self)
        return loaded

    def is_unused_checkpoint_weight(self, name: str) -> bool:
        """Whether this rank needs no tensor of that name: files with none that it needs are not read."""
        upstream = getattr(super(), "is_unused_checkpoint_weight", None)
        return any(rule(self, name) for rule in _unused) or (upstream is not None and bool(upstream(name)))


def choose_classes(paths: dict[str, str]) -> None:
    """Register our classes ("module:Class") for architectures. Imports no model code."""
    from vllm import ModelRegistry

    for architecture, path in paths.items():
        ModelRegistry.register_model(architecture, path)
        _chosen.add(architecture)


def on_weights(step: Step) -> None:
    """Have `step(model, weights)` stand between loader and model. GLM gets a class of ours if it has none."""
    _ensure_classes()
    _steps.append(step)


def on_names(rule: NameRule) -> None:
    """Have files left unread that hold only names for which `rule(model, name)` is true."""
    _ensure_classes()
    _unused.append(rule)


def on_build(build: Build) -> None:
    """Have `build(vllm_config)` called in a worker right before a GLM is built there."""
    _ensure_classes()
    _builds.append(build)


def on_loaded(act: Build) -> None:
    """Have `act(model)` called when it has its weights, before they are put into their kernels' format."""
    _ensure_classes()
    _loaded.append(act)


def _ensure_classes() -> None:
    choose_classes({name: path for name, path in _SPARSE.items() if name not in _chosen})


def local_directory(model: str, revision: str | None = None) -> Path | None:
    """Where a model's files lie on this machine; None for a name that was not downloaded yet."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
