"""The hashes of a model's files, kept beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .digest import CHUNK

MANIFEST = ".glmspark-weights.json"


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


def write_manifest(directory: Path, algorithm: str, files: dict[str, Any]) -> None:
    """Replace the manifest, whole or not at all."""
    aside = directory / f"{MANIFEST}.new"
    with aside.open("w") as file:
        json.dump({"algorithm": algorithm, "chunk": CHUNK, "files": files}, file)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(directory / MANIFEST)
