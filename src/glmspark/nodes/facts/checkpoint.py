"""What a model directory on a node holds, without reading its weights: sizes, and digests of what is small.

A shard is known by its header, which says what lies where in it; together with its size that tells one
revision from another. Whether its data arrived whole is the weights room's to say.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class StoredFile:
    """A file of a model. size: bytes. digest: SHA-256 of its content, of a shard's header, or '' where that
    could not be read. dangling: where a link leads that leads nowhere."""

    name: str
    size: int
    digest: str
    dangling: str = ""


@dataclass(frozen=True)
class Listing:
    """A model directory. exists: whether it is there at all."""

    exists: bool
    files: tuple[StoredFile, ...] = ()

    def differs(self, other: Listing) -> list[str]:
        """Names of files that only one of both has, or that are not the same in both."""
        mine, theirs = ({one.name: one for one in listing.files} for listing in (self, other))
        return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))


# Python is on every node: its agent needs it too. `whole` also reads the data of shards, for small models.
_LIST = """\
import hashlib, json, os, stat, sys
root, whole = sys.argv[1], sys.argv[2] == "whole"
try:
    names = sorted(os.listdir(root))
except (FileNotFoundError, NotADirectoryError):
    print(json.dumps(None))
    sys.exit()
found = []
for name in names:
    path = os.path.join(root, name)
    try:
        status = os.stat(path)
    except OSError:
        found.append([name, 0, "", os.path.realpath(path)])
        continue
    if not stat.S_ISREG(status.st_mode) or name.startswith("."):
        continue
    digest = ""
    try:
        with open(path, "rb") as file:
            if name.endswith(".safetensors") and not whole:
                head = file.read(8)
                length = int.from_bytes(head, "little")
                if length <= 100000000:
                    digest = hashlib.sha256(head + file.read(length)).hexdigest()
            elif whole or status.st_size <= 1 << 28:
                sha = hashlib.sha256()
                while piece := file.read(1 << 20):
                    sha.update(piece)
                digest = sha.hexdigest()
    except OSError:
        pass
    found.append([name, status.st_size, digest, ""])
print(json.dumps(found))
"""

_HEADS = """\
import base64, json, os, sys, zlib
root, found = sys.argv[1], {}
for name in sys.argv[2:]:
    path = os.path.join(root, name)
    with open(path, "rb") as file:
        data = file.read(8)
        if name.endswith(".safetensors"):
            length = int.from_bytes(data, "little")
            data += file.read(length) if length <= 100000000 else b""
        else:
            data += file.read(1 << 28)
    found[name] = [os.path.getsize(path), base64.b64encode(zlib.compress(data, 1)).decode()]
print(json.dumps(found))
"""

# The directory of each step on the way: a link may lead to a link. Those that lead to no file do not count.
_LINKS = """\
import json, os, sys
found = set()
for root in sys.argv[1:]:
    for name in os.listdir(root) if os.path.isdir(root) else []:
        path = os.path.join(root, name)
        if name.startswith(".") or not os.path.isfile(path):
            continue
        while os.path.islink(path):
            path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
            if os.path.isdir(os.path.dirname(path)):
                found.add(os.path.dirname(path))
print(json.dumps(sorted(found - set(sys.argv[1:]))))
"""


def parse_listing(text: str) -> Listing:
    """A Listing from the script's JSON. Raises ValueError for anything else."""
    rows = json.loads(text)
    if rows is None:
        return Listing(False)
    try:
        return Listing(True, tuple(StoredFile(*row) for row in rows))
    except TypeError as error:
        raise ValueError(f"not a list of files: {error}") from None


def parse_heads(text: str) -> dict[str, tuple[int, bytes]]:
    """Size and first bytes of files by name, from the script's JSON. Raises ValueError for anything else."""
    try:
        return {
            name: (int(size), zlib.decompress(base64.b64decode(data)))
            for name, (size, data) in json.loads(text).items()
        }
    except (TypeError, AttributeError, zlib.error) as error:
        raise ValueError(f"not the beginnings of files: {error}") from None


def listing(directory: str, *, whole: bool = False) -> Fact[Listing]:
    """The fact "what this model directory holds". whole: shards by all of their data."""
    command = ("python3", "-c", _LIST, directory, "whole" if whole else "heads")
    return Fact(f"files of {directory}", command, parse_listing)


def heads(directory: str, names: tuple[str, ...]) -> Fact[dict[str, tuple[int, bytes]]]:
    """The fact "how these files begin": shards with their headers, others whole."""
    return Fact(f"headers of {directory}", ("python3", "-c", _HEADS, directory, *names), parse_heads)


def parse_links(text: str) -> tuple[str, ...]:
    """Directories from the script's JSON. Raises ValueError for anything else."""
    found = json.loads(text)
    if not isinstance(found, list) or not all(isinstance(one, str) and one.startswith("/") for one in found):
        raise ValueError(f"not a list of directories: {text.strip()[:80]!r}")
    return tuple(found)


def links(directories: tuple[str, ...]) -> Fact[tuple[str, ...]]:
    """The fact "to which other directories the files of these lead, by links"."""
    return Fact("links of the models", ("python3", "-c", _LINKS, *directories), parse_links)
