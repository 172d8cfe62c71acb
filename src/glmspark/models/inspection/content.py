"""What lies in a checkpoint's files: config, index and every shard's header, however broken."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmspark.models.errors import CheckpointError
from glmspark.models.files import CheckpointFiles
from glmspark.models.inspection.problem import Problem, Severity, some
from glmspark.models.safetensors import TensorInfo, check_layout, header_length, parse_header

__all__ = ["INDEX", "MARK", "Content", "Shard", "read_content", "read_json"]

INDEX = "model.safetensors.index.json"
MARK = "glmspark"
"""The index's metadata under this name says of what the directory is a part (`fetch --only-needed`)."""
_FIRST = 1 << 16
"""Bytes of a shard that are read at first: its header's length and, mostly, all of a small header."""
_MAX_HEADERS = 128 * 2**20
"""Bytes of all shards' headers together; the largest GLM checkpoint has a fifth of that. Parsed they take ten
times as much memory."""
_MAX_JSON = 64 * 2**20
_MAX_LISTS = 3_000_000
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}\.safetensors", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """A shard whose header can be read. data: where its tensors' bytes begin in the file. header: SHA-256 of
    what lies before them."""

    size: int
    data: int
    tensors: Mapping[str, TensorInfo]
    header: str = ""


@dataclass
class Content:
    """tensors: name -> (shard, TensorInfo), of those that count. broken: shards that cannot be used at all.
    index: tensor -> shard, as the index says, or None without one. part: whose part of the model this is, in
    words, None for all of it."""

    config: dict[str, Any]
    shards: dict[str, Shard] = field(default_factory=dict)
    tensors: dict[str, tuple[str, TensorInfo]] = field(default_factory=dict)
    index: dict[str, str] | None = None
    part: str | None = None
    broken: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    @property
    def lost(self) -> set[str]:
        """Tensors that the index places in a shard that is broken or missing: they are not missing too."""
        return {name for name, shard in (self.index or {}).items() if shard not in self.shards}


def read_json(files: CheckpointFiles, name: str, limit: int = _MAX_JSON) -> dict[str, Any]:
    """A JSON object from one of the files. Raises CheckpointError for anything else, and for what would
    take an unreasonable amount of memory."""

    def broken(reason: str) -> CheckpointError:
        return CheckpointError(
            f"{files.where}: {name} {reason}", step=f"read {name}", next=f"fetch {name} again"
        )

    entry = files.entries().get(name)
    if entry is None:
        raise broken("does not exist")
    if entry.wrong:
        raise broken(entry.wrong)
    if entry.size > limit:
        raise broken(f"is larger than {limit // 2**20} MiB")
    (raw,) = files.read(name, [(0, entry.size)])
    if not raw.strip():
        raise broken("is empty")
    if raw.count(b"[") + raw.count(b"{") > _MAX_LISTS:
        raise broken(f"holds more than {_MAX_LISTS} lists")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise broken(f"is not JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise broken("is not a JSON object")
    return value


def read_content(files: CheckpointFiles) -> Content:
    """Everything but the weights.

    Raises CheckpointError only where there is no config.json to go by; all else that is wrong becomes a
    problem.
    """
    content = Content(read_json(files, "config.json", 16 * 2**20))
    content.index = _index(files, content)
    present = sorted(name for name in files.entries() if name.endswith(".safetensors"))
    named = set((content.index or {}).values())
    _missing_shards(content, named, present)
    wanted = [name for name in present if content.index is None or name in named]
    if content.index is not None and (stray := [name for name in present if name not in named]):
        content.problems.append(
            Problem(
                Severity.WARNING, "stray-shard",
                f"{len(stray)} *.safetensors are not in the index",
                "vLLM leaves them out; tools that read every file take them for weights",
                "remove them if they are left over from another revision",
                some(stray),
            )
        )  # fmt: skip
    room = _Room(_MAX_HEADERS)
    with ThreadPoolExecutor(8) as pool:
        for name, found in zip(wanted, pool.map(lambda one: _shard(files, one, room), wanted), strict=True):
            shard, problem = found
            if problem is not None:
                content.problems.append(problem)
            if shard is not None:
                content.shards[name] = shard
            else:
                content.broken.add(name)
    if not present:
        content.problems.append(
            Problem(
                Severity.ERROR, "no-shards", "there is no *.safetensors file",
                "nothing can be loaded", "fetch the model's weights; other formats are not read",
            )
        )  # fmt: skip
    _place(content)
    return content


def _index(files: CheckpointFiles, content: Content) -> dict[str, str] | None:
    if INDEX not in files.entries():
        return None
    try:
        whole = read_json(files, INDEX)
    except CheckpointError as error:
        content.problems.append(_of_error("index-broken", error, "the engine stops before it loads"))
        return None
    weight_map = whole.get("weight_map")
    content.part = _part(whole.get("metadata"))
    good = isinstance(weight_map, dict) and all(isinstance(shard, str) for shard in weight_map.values())
    if not isinstance(weight_map, dict) or not weight_map or not good:
        content.problems.append(
            Problem(
                Severity.ERROR, "index-broken", "weight_map is not a map from tensors to shards",
                "the engine stops before it loads", "fetch the index again", INDEX,
            )
        )  # fmt: skip
        return None
    return weight_map


def _part(metadata: Any) -> str | None:
    said = metadata.get(MARK) if isinstance(metadata, dict) else None
    if not isinstance(said, dict) or not isinstance(said.get("of"), dict):
        return None
    return f"what rank {said.get('rank')} of TP{said.get('tp')} PP{said.get('pp')} needs"[:100]


def _missing_shards(content: Content, named: set[str], present: list[str]) -> None:
    foreign = sorted(shard for shard in named if not _SHARD.fullmatch(shard))
    if foreign:
        content.problems.append(
            Problem(
                Severity.ERROR, "index-foreign",
                "the index names shards that are no plain file names of this directory",
                "a loader would read files outside of the checkpoint",
                "fetch the index again; do not use it if it came so",
                some([repr(name) for name in foreign]),
            )
        )  # fmt: skip
    gone = sorted(named - set(present) - set(foreign))
    if gone:
        tensors = sum(shard in gone for shard in (content.index or {}).values())
        content.problems.append(
            Problem(
                Severity.ERROR, "index-missing-shard",
                f"the index names {len(gone)} shards that do not exist, with {tensors} tensors",
                "the engine stops while loading, or runs with weights that were never set",
                f"fetch {some(gone)}",
                some(gone),
            )
        )  # fmt: skip


def _of_error(rule: str, error: CheckpointError, effect: str, where: str = "") -> Problem:
    return Problem(Severity.ERROR, rule, error.message, effect, error.next or "fetch it again", where)


class _Room:
    """Bytes of headers that may still be read."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._lock = threading.Lock()

    def take(self, count: int, name: str) -> None:
        """Raises CheckpointError where there is not so much."""
        with self._lock:
            if count > self._left:
                raise CheckpointError(
                    f"{name}'s header is not read: those of all shards are larger than {_MAX_HEADERS} bytes",
                    next="no GLM checkpoint has that many tensors: do not use it",
                )
            self._left -= count


def _shard(files: CheckpointFiles, name: str, room: _Room) -> tuple[Shard | None, Problem | None]:
    """A shard's header and what is wrong with it: both, where it says what a truncated shard should hold."""
    entry = files.entries()[name]
    if entry.wrong:
        return None, Problem(
            Severity.ERROR,
            "dangling-link" if "link" in entry.wrong else "shard-unreadable",
            f"{name} {entry.wrong}",
            "the engine stops while loading, after minutes",
            "copy the link's target too (rsync -aL, cp -L), or download the file again",
            name,
        )
    path = Path(name)
    try:
        (begun,) = files.read(name, [(0, min(entry.size, _FIRST))])
        length = header_length(begun[:8], entry.size, path)
        room.take(length, name)
        raw = begun[8 : 8 + length]
        if len(raw) < length:
            raw += files.read(name, [(8 + len(raw), 8 + length)])[0]
        tensors = parse_header(raw, path)
    except CheckpointError as error:
        return None, _of_error("shard-broken", error, "the engine stops while loading", name)
    shard = Shard(entry.size, 8 + length, tensors, hashlib.sha256(begun[:8] + raw).hexdigest())
    try:
        check_layout(tensors, entry.size - 8 - length, path)
    except CheckpointError as error:
        rule = "shard-overlap" if "overlapping" in error.message else "shard-truncated"
        if "truncated" not in error.message and rule == "shard-truncated":
            rule = "shard-layout"
        return shard, _of_error(rule, error, "the engine stops while loading, or reads wrong bytes", name)
    return shard, None


def _place(content: Content) -> None:
    """Which shard's copy of each tensor counts."""
    twice: list[str] = []
    outside: list[str] = []
    for shard, found in content.shards.items():
        for name, info in found.tensors.items():
            if content.index is not None:
                said = content.index.get(name)
                if said is None:
                    outside.append(name)
                elif said != shard:
                    if said in content.shards and name in content.shards[said].tensors:
                        twice.append(name)
                    continue
            if name in content.tensors:
                twice.append(name)
            else:
                content.tensors[name] = (shard, info)
    if twice:
        indexed = content.index is not None
        content.problems.append(
            Problem(
                Severity.WARNING if indexed else Severity.ERROR, "duplicate-tensor",
                f"{len(twice)} tensors lie in more than one shard",
                "the index says which counts; loaders that read every shard take the last one they meet"
                if indexed else "which of them is loaded depends on the order of files",
                "remove the shards of the other revision, or fetch index and shards of one revision",
                some(sorted(twice)),
            )
        )  # fmt: skip
    if outside:
        content.problems.append(
            Problem(
                Severity.WARNING, "index-incomplete",
                f"{len(outside)} tensors are in shards but not in the index",
                "loaders that go by the index leave them out",
                "fetch the index that belongs to these shards",
                some(sorted(outside)),
            )
        )  # fmt: skip
    if content.index is not None:
        lost = sorted(
            name
            for name, shard in content.index.items()
            if name not in content.tensors and shard in content.shards
        )
        if lost:
            content.problems.append(
                Problem(
                    Severity.ERROR, "index-nowhere",
                    f"{len(lost)} of {len(content.index)} tensors are not where the index says",
                    "the engine stops while loading, or runs with weights that were never set",
                    "fetch the index and its shards again, from one revision",
                    some([f"{name} in {content.index[name]}" for name in lost]),
                )
            )  # fmt: skip
