"""The hashes of a model's files, kept beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .digest import CHUNK, SIZE, chunks

MANIFEST = ".glmspark-weights.json"
LAST = "config.json"
"""Comes after all other files of a model: a directory without it is none."""


def read_manifest(directory: Path, algorithm: str) -> dict[str, Any]:
    """The hashes kept beside the weights, empty where there are none of this algorithm."""
    try:
        found = json.loads((directory / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    good = isinstance(found, dict) and found.get("algorithm") == algorithm and found.get("chunk") == CHUNK
    return found if good and isinstance(found.get("files"), dict) else {}


def known_digests(manifest: dict[str, Any], path: Path) -> list[bytes] | None:
    """A file's chunk hashes, if it has not been touched since they were taken."""
    entry = manifest.get("files", {}).get(path.name)
    if not isinstance(entry, dict):
        return None
    status = path.stat()
    if (entry.get("size"), entry.get("mtime_ns")) != (status.st_size, status.st_mtime_ns):
        return None
    raw = bytes.fromhex(entry["digests"])
    return [raw[i : i + 32] for i in range(0, len(raw), 32)]


def noted_digests(manifest: dict[str, Any], name: str, size: int) -> list[bytes] | None:
    """The chunk hashes that a whole file of that size had when it came, whatever has become of it since."""
    entry = manifest.get("files", {}).get(name)
    try:
        raw = bytes.fromhex(entry["digests"])
        whole = entry["size"] == size and "of" not in entry and len(raw) == SIZE * chunks(size)
    except (TypeError, KeyError, ValueError):
        return None
    return [raw[i : i + SIZE] for i in range(0, len(raw), SIZE)] if whole else None


def write_manifest(directory: Path, algorithm: str, files: dict[str, Any]) -> None:
    """Replace the manifest, whole or not at all."""
    aside = directory / f"{MANIFEST}.new"
    with aside.open("w") as file:
        json.dump({"algorithm": algorithm, "chunk": CHUNK, "files": files}, file)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(directory / MANIFEST)
