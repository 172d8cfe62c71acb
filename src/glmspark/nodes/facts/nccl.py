"""The NCCL that ranks of an image would load: version and build.

Two builds of one version can differ; one fleet's stall went away with the other build. The build id is the
linker's, from the library's own note.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from glmspark.nodes.facts import Fact
from glmspark.nodes.facts.places import Place


@dataclass(frozen=True)
class Nccl:
    """version: 2.30.4. build: the GNU build id in hex, '' if it has none. path: the library's file."""

    version: str
    build: str
    path: str


# Runs where the engine is, so it is text here and not a function. It asks the library that torch has loaded.
PROBE = """\
import ctypes, json, re
import torch

version = ctypes.c_int()
paths = sorted({line.split()[-1] for line in open("/proc/self/maps") if "libnccl" in line})
if paths:
    library = ctypes.CDLL(paths[0])
    library.ncclGetVersion(ctypes.byref(version))
code = version.value
data = open(paths[0], "rb").read() if paths else b""
note = re.search(rb"\\x04\\0\\0\\0\\x14\\0\\0\\0\\x03\\0\\0\\0GNU\\0(.{20})", data, re.S)
print(json.dumps({
    "version": f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code else "",
    "build": note.group(1).hex() if note else "",
    "path": paths[0] if paths else "",
}))
"""


def parse_nccl(text: str) -> Nccl:
    """An Nccl from what the probe printed last. Raises ValueError for anything else."""
    try:
        data = json.loads(text.strip().splitlines()[-1])
        found = Nccl(str(data["version"]), str(data["build"]), str(data["path"]))
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the NCCL probe printed something else: {error!r}") from None
    if not found.version:
        raise ValueError("torch in this image has no NCCL")
    return found


def nccl(place: Place) -> Fact[Nccl]:
    """The fact "which NCCL ranks load"."""
    return Fact("NCCL", place.run(PROBE), parse_nccl)
