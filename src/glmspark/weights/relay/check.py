"""Files hashed again where they lie, against the hashes kept beside them."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from .digest import ALGORITHMS, CHUNK, SIZE, chunks, digest, root
from .manifest import LAST, MANIFEST
from .say import BEAT, say

INDEX = "model.safetensors.index.json"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,250}", re.ASCII)
"""A plain file name, which leads nowhere else."""


def verify(directory: Path) -> bool:
    """Hash every file that the manifest knows, and say of each whether it is what it was; True if all are."""
    try:
        found = json.loads((directory / MANIFEST).read_bytes())
        algorithm = found["algorithm"]
        files = {
            name: (entry["size"], bytes.fromhex(entry["digests"])) for name, entry in found["files"].items()
        }
        if not all(NAME.fullmatch(name) and len(raw) == chunks(n) * SIZE for name, (n, raw) in files.items()):
            raise ValueError("damaged")
        originals = {name: _original(algorithm, entry) for name, entry in found["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        say("failed", error=f"{directory} has no whole {MANIFEST}: not fetched by glmspark?", step="verify",
            next="`glmspark fetch` takes what lies there, and verifies it")  # fmt: skip
        return False
    if algorithm not in ALGORITHMS:
        say("failed", error=f"this Python has no {algorithm}", step="verify", next="install blake3 there")
        return False
    named = _named(directory)
    gone, unhashed = _beside(directory, named, set(files))
    for name, why in gone.items():
        say("file", name=name, ok=False, problem=why)
    good = not gone
    total = sum(size for size, _ in files.values())
    done = 0
    told = time.monotonic()
    buffer = bytearray(CHUNK)
    for name, (size, raw) in sorted(files.items()):
        wrong: list[int] = []
        problem = None
        try:
            with (directory / name).open("rb") as file:
                if os.fstat(file.fileno()).st_size != size:
                    problem = f"has {os.fstat(file.fileno()).st_size} bytes, not {size}"
                for index in range(len(raw) // 32 if problem is None else 0):
                    count = file.readinto(buffer)
                    if digest(algorithm, memoryview(buffer)[:count]) != raw[index * 32 : index * 32 + 32]:
                        wrong.append(index)
                    done += count
                    if time.monotonic() - told > BEAT:
                        told = time.monotonic()
                        say("progress", verified=done, total=total)
        except OSError as error:
            problem = error.strerror or str(error)
        if wrong:
            problem = (
                f"{len(wrong)} of {len(raw) // 32} chunks are damaged, the first at byte {wrong[0] * CHUNK}"
            )
        good = good and problem is None
        # A shard that the index does not name is left over, and may be of another revision.
        counts = named is not None and (name in named or not name.endswith(".safetensors"))
        say("file", name=name, ok=problem is None, problem=problem, of=originals[name] if counts else None)
    say("done", verified=done, total=total, files=len(files), unhashed=len(unhashed))
    return good


def _original(algorithm: str, entry: dict[str, Any]) -> str | None:
    """What tells whether two nodes' files are, or are parts of, the same one. KeyError, TypeError and
    ValueError for an entry that is none."""
    if algorithm not in ALGORITHMS:
        return None
    raw = bytes.fromhex(entry["digests"])
    whole = [raw[at : at + SIZE] for at in range(0, len(raw), SIZE)]
    top = bytes.fromhex(entry["of"]["root"]) if "of" in entry else root(algorithm, entry["size"], whole)
    return f"{algorithm} {top.hex()}"


def _named(directory: Path) -> set[str] | None:
    """The files that make the model: by its index, else all shards; None for an index that is none."""
    if not (index := directory / INDEX).exists():
        return {LAST, *(one.name for one in directory.glob("*.safetensors"))}
    try:
        shards = json.loads(index.read_bytes())["weight_map"].values()
        return {LAST, INDEX, *map(str, shards)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _beside(directory: Path, named: set[str] | None, known: set[str]) -> tuple[dict[str, str], list[str]]:
    """What else belongs to the model: what is wrong with files that are not there, and the names of those of
    which no hashes are kept."""
    if named is None:  # one that was damaged since it came is found by its hash
        return ({} if INDEX in known else {INDEX: "is no index"}), []
    others = sorted(name for name in named - known if NAME.fullmatch(name))
    gone = [name for name in others if not (directory / name).exists()]
    problem = "is not there: a transfer was broken off, or it was removed"
    return dict.fromkeys(gone, problem), [name for name in others if name not in gone]
