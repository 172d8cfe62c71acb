"""File systems of a node and what is free on them."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class Disk:
    """A mounted file system. size, free: bytes; free is what an ordinary user may take."""

    source: str
    kind: str
    size: int
    free: int
    target: str


def parse_df(text: str) -> tuple[Disk, ...]:
    """Disks from `df -B1 --output=source,fstype,size,avail,target`. Raises ValueError for anything else."""
    lines = text.splitlines()
    if not lines or lines[0].split()[:2] != ["Filesystem", "Type"]:
        raise ValueError("df printed no heading")
    found = []
    for line in lines[1:]:
        fields = line.split(None, 4)
        if len(fields) != 5:
            raise ValueError(f"not a file system: {line!r}")
        source, kind, size, free, target = fields
        if not size.isdecimal() or not free.isdecimal():  # "-" for those that have no size
            continue
        found.append(Disk(source, kind, int(size), int(free), target))
    return tuple(found)


def disk_of(disks: Sequence[Disk], path: str) -> Disk | None:
    """The file system that a path lies on, or would lie on once made: the longest mount point above it."""
    path = posixpath.normpath(path)
    best: Disk | None = None
    for disk in disks:
        above = disk.target.rstrip("/") + "/"
        if (path + "/").startswith(above) and (best is None or len(disk.target) >= len(best.target)):
            best = disk
    return best


def parse_stored(text: str) -> int:
    """Bytes from what `du -sLB1` printed, or, of a part of a model, those of the shards it is cut out of (the
    second line); 0 for nothing. Raises ValueError for anything else."""
    return max((int(line.split()[0]) for line in text.splitlines() if line.strip()), default=0)


_STORED = """\
case $1 in '~/'*) path=$HOME/${1#??};; *) path=$1;; esac
[ -e "$path" ] || exit 0
du -sLB1 -- "$path" 2> /dev/null
index=$path/model.safetensors.index.json
if [ -e "$path/config.json" ] && grep -qs '"glmspark": {' -- "$index"; then
  python3 -c 'import json, sys
of = json.load(open(sys.argv[1]))["metadata"]["glmspark"]["of"]
print(sum(size for size, _ in of.values()))' "$index" 2> /dev/null
fi
exit 0
"""


def stored(path: str) -> Fact[int]:
    """The fact "how many bytes lie below a path", links followed; 0 where there is none. ~/ is the home.

    A directory that holds what the node's rank needs of a model counts as all of it: nothing is to come.
    """
    return Fact(f"size of {path}", ("sh", "-c", _STORED, "stored", path), parse_stored)


# df leaves with 1 when one mount cannot be looked at (a dead NFS server, someone's FUSE mount).
DISKS = Fact(
    "disks",
    ("env", "LC_ALL=C", "df", "-B1", "--output=source,fstype,size,avail,target"),
    parse_df,
    partial=(1,),
)
