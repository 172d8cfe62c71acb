"""vLLM's loader class for the load format `spark`. Imported when a rank loads its weights."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight
from vllm.platforms import current_platform

from glmspark.engine.loader.files import Mode, forget_file
from glmspark.engine.loader.pieces import pieces_of
from glmspark.engine.loader.progress import Progress
from glmspark.engine.loader.reader import MIB, Reader, Settings, anonymous_memory
from glmspark.engine.loader.tensors import pinned_memory, tensors
from glmspark.engine.shards import Stored, read_header

logger = logging.getLogger("vllm.glmspark.loader")

_OPTIONS = {"mode", "threads", "block_mib", "piece_mib", "buffers"}
_MODES = {"auto": None, "direct": Mode.DIRECT, "buffered": Mode.BUFFERED}


def settings_of(options: dict[str, Any]) -> Settings:
    """Settings from `--model-loader-extra-config`. Raises ValueError naming the option that is wrong."""
    if unknown := sorted(set(options) - _OPTIONS):
        raise ValueError(
            f"load format spark has no option {unknown[0]!r}; it has {', '.join(sorted(_OPTIONS))}"
        )
    mode = options.get("mode", "auto")
    if mode not in _MODES:
        raise ValueError(f"mode is auto, direct or buffered, not {mode!r}")
    for name in _OPTIONS - {"mode"}:
        value = options.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is a positive integer, not {value!r}")
    default = Settings()
    return Settings(
        threads=options.get("threads", default.threads),
        block=options.get("block_mib", default.block // MIB) * MIB,
        piece=options.get("piece_mib", default.piece // MIB) * MIB,
        buffers=options.get("buffers", default.buffers),
        mode=_MODES[mode],
    )


class SparkLoader(DefaultModelLoader):
    """Reads the tensors that this rank's part of the model takes, and nothing else, past the page cache."""

    def __init__(self, load_config: LoadConfig) -> None:
        self.settings = settings_of(dict(load_config.model_loader_extra_config or {}))
        # The base class knows its own formats and options only.
        super().__init__(
            dataclasses.replace(load_config, load_format="safetensors", model_loader_extra_config={})
        )

    def _get_weights_iterator(
        self, source: DefaultModelLoader.Source
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        _, files, _, _ = self._prepare_weights(
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        present = [tensor for file in in_order(files) for tensor in read_header(file)]
        unused = source.is_unused_weight or (lambda _name: False)
        wanted = [
            tensor
            for tensor in present
            if not unused(tensor.name) and not should_skip_weight(tensor.name, self.local_expert_ids)
        ]
        device = torch.device(current_platform.device_type)
        for stored, tensor in read_tensors(wanted, device, self.settings, left=size_of(present)):
            yield source.prefix + stored.name, tensor
        for file in files:  # also those that only others, before this loader, have looked into
            forget_file(Path(file))


def in_order(files: Iterable[str]) -> list[Path]:
    """As the base class's iterators order them: shard 2 before shard 10."""
    from vllm.model_executor.model_loader.weight_utils import _natural_sort_key

    return [Path(file) for file in sorted(files, key=_natural_sort_key)]


def size_of(stored: Iterable[Stored]) -> int:
    """Bytes of all of them."""
    return sum(tensor.nbytes for tensor in stored)


def read_tensors(
    wanted: list[Stored], device: torch.device, settings: Settings, *, left: int | None = None
) -> Iterator[tuple[Stored, torch.Tensor]]:
    """Read `wanted` onto `device`, with progress in the log. left: bytes of the checkpoint, to say the share.

    Raises ReadError, naming file and offset, where a file cannot be read.
    """
    memory = pinned_memory if device.type == "cuda" else anonymous_memory
    reader = Reader(pieces_of(wanted, settings.piece), settings, memory)
    total = size_of(wanted)
    progress = Progress(_rank(), total)
    for stored, tensor in tensors(reader.loaded(), device):
        yield stored, tensor
        del tensor
        progress.add(stored.nbytes)
    share = f", {total / left:.0%} of the checkpoint's {left / 1e9:.2f} GB" if left else ""
    progress.finish(f"{_how(reader)}, {len(wanted)} tensors{share}")


def _how(reader: Reader) -> str:
    settings, choice = reader.settings, reader.choice
    text = f"{choice.mode}, {settings.threads} x {settings.block // MIB} MiB"
    if choice.measured:
        direct, buffered = (choice.rate(mode) / 1e9 for mode in (Mode.DIRECT, Mode.BUFFERED))
        text += f"; {choice.probe_seconds:.2f} s decided; {direct:.2f} GB/s O_DIRECT, {buffered:.2f} buffered"
        if choice.changes:
            text += f"; way changed {choice.changes}x since"
    return text


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
