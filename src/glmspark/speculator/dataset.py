"""A data set of a target's hidden states: shards of whole sequences, and a manifest that says where from.

A shard is one safetensors file: `tokens` int32 [n], `states` [n, layers * hidden size] and `last` [n, hidden
size] in the engine's type, and for its s sequences `lengths`, `prompts` (tokens of the prompt) and `kinds`,
int64 [s]. `last` is what the target's output matrix is applied to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from glmspark.config.files import make_dir, read_json, write_atomic, write_json
from glmspark.errors import StateError
from glmspark.speculator.shape import DrafterError

__all__ = ["MANIFEST", "Dataset", "Sequence", "Writer"]

MANIFEST = "dataset.json"
VERSION = 1
HELD_OUT = 20
"""Every so manieth sequence is kept out of training, to judge by."""


@dataclass(frozen=True)
class Sequence:
    """One prompt with its answer: tokens [n], states [n, layers * hidden size], last [n, hidden size]."""

    tokens: torch.Tensor
    states: torch.Tensor
    last: torch.Tensor
    prompt: int
    kind: str

    @property
    def answer(self) -> int:
        """Tokens of the answer."""
        return len(self.tokens) - self.prompt


class Writer:
    """Writes a data set shard by shard; the manifest is rewritten after each, so that what is there counts.

    Raises DrafterError where the directory holds another data set already.
    """

    def __init__(self, directory: Path, aux_layers: list[int], provenance: dict[str, Any]) -> None:
        self.directory, self.kinds, self.shards = directory, [], []  # type: ignore[var-annotated]
        self.head = {"version": VERSION, "aux_layers": aux_layers, "provenance": provenance}
        make_dir(directory, mode=0o755)
        if (directory / MANIFEST).exists():
            raise DrafterError(
                f"{directory} holds a data set already",
                step="write the captured states",
                next="name another directory, or remove it",
            )

    def add(self, sequences: list[Sequence]) -> int:
        """Write a shard of these; returns its bytes."""
        for sequence in sequences:
            if sequence.kind not in self.kinds:
                self.kinds.append(sequence.kind)
        data = save(
            {
                "tokens": torch.cat([s.tokens for s in sequences]).to(torch.int32),
                "states": torch.cat([s.states for s in sequences]),
                "last": torch.cat([s.last for s in sequences]),
                "lengths": torch.tensor([len(s.tokens) for s in sequences]),
                "prompts": torch.tensor([s.prompt for s in sequences]),
                "kinds": torch.tensor([self.kinds.index(s.kind) for s in sequences]),
            }
        )
        name = f"states-{len(self.shards):05d}.safetensors"
        write_atomic(self.directory / name, data)
        tokens = sum(len(s.tokens) for s in sequences)
        self.shards.append(
            {
                "file": name,
                "sequences": len(sequences),
                "tokens": tokens,
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        )
        write_json(
            self.directory / MANIFEST, self.head | {"kinds": self.kinds, "shards": self.shards}, mode=0o644
        )
        return len(data)


@dataclass
class Dataset:
    """A data set as written."""

    directory: Path
    aux_layers: tuple[int, ...]
    kinds: list[str]
    shards: list[dict[str, Any]]
    provenance: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, directory: Path) -> Dataset:
        """Read the manifest. Raises DrafterError where there is none that is whole."""
        try:
            value = read_json(directory / MANIFEST)
            if value["version"] != VERSION:
                raise DrafterError(f"{directory} is a data set of version {value['version']}, not {VERSION}")
            found = cls(
                directory,
                tuple(int(n) for n in value["aux_layers"]),
                [str(kind) for kind in value["kinds"]],
                [{**shard, "file": Path(shard["file"]).name} for shard in value["shards"]],
                dict(value["provenance"]),
            )
        except (StateError, KeyError, TypeError, ValueError) as error:
            raise DrafterError(
                f"{directory} holds no data set of states",
                step=f"read {directory / MANIFEST}",
                seen=str(error)[:200],
                next="name a directory that `glmspark speculator capture` wrote",
            ) from error
        if not found.shards:
            raise DrafterError(f"the data set in {directory} is empty")
        return found

    @property
    def digest(self) -> str:
        """A name for its contents."""
        return hashlib.sha256(json.dumps(self.shards, sort_keys=True).encode()).hexdigest()

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return sum(int(shard["tokens"]) for shard in self.shards)

    def sequences(self, *, held_out: bool | None = None) -> Iterator[Sequence]:
        """The sequences in order: all, those held out, or the others. Reads one shard at a time.

        Raises DrafterError for a shard that cannot be read or is not what the manifest says.
        """
        number = 0
        for shard in self.shards:
            for sequence in self._shard(shard):
                if held_out is None or held_out == (number % HELD_OUT == HELD_OUT - 1):
                    yield sequence
                number += 1

    def _shard(self, shard: dict[str, Any]) -> Iterator[Sequence]:
        path = self.directory / shard["file"]
        try:
            found = load_file(path)
            lengths = found["lengths"].tolist()
            tokens, states, last = (found[name].split(lengths) for name in ("tokens", "states", "last"))
            prompts, kinds = found["prompts"].tolist(), [self.kinds[n] for n in found["kinds"].tolist()]
            if not len(lengths) == len(prompts) == len(kinds) == shard["sequences"]:
                raise ValueError(f"{len(lengths)} sequences instead of {shard['sequences']}")
        except (OSError, SafetensorError, KeyError, ValueError, IndexError, RuntimeError) as error:
            raise DrafterError(
                f"{path} is not the shard that the manifest describes",
                step="read the captured states",
                seen=str(error)[:200],
                next="capture the data set anew",
            ) from error
        for row in zip(tokens, states, last, prompts, kinds, strict=True):
            yield Sequence(row[0].long(), *row[1:])
