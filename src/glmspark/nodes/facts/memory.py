"""Memory of a node that a process started there can have: from /proc/meminfo and its control groups."""

from __future__ import annotations

from dataclasses import dataclass

from glmspark.nodes.facts import Fact


@dataclass(frozen=True)
class Memory:
    """Bytes of memory as the kernel counts them; swap is not part of total, free or available.

    total, available: as far as control groups (a container's limit, systemd's MemoryMax) let them be used.
    limit: the tightest of those, None where there is none.
    """

    total: int
    free: int
    available: int
    swap_total: int
    swap_free: int
    limit: int | None = None


def parse_meminfo(text: str) -> Memory:
    """Memory from the text of /proc/meminfo (its unit kB is 1,024 bytes), with rows `Group: LIMIT USED CACHE`
    of control groups after it: bytes, LIMIT `max` for none; CACHE is file cache that the kernel takes back.

    Raises ValueError when a needed row is missing, negative or not a number.
    """
    rows: dict[str, int] = {}
    groups: list[tuple[int, int]] = []
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        words = value.split()
        if colon and name == "Group":
            group = _group(words)
            groups += [group] if group is not None else []
            continue
        if not colon or not words or not words[0].isdecimal():
            continue
        rows[name.strip()] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    try:
        total, available = rows["MemTotal"], rows["MemAvailable"]
        # Version 1 says a number near 2^63 where there is no limit.
        groups = [(limit, left) for limit, left in groups if limit < total]
        return Memory(
            total=min([total, *(limit for limit, _ in groups)]),
            free=rows["MemFree"],
            available=min([available, *(left for _, left in groups)]),
            swap_total=rows.get("SwapTotal", 0),
            swap_free=rows.get("SwapFree", 0),
            limit=min((limit for limit, _ in groups), default=None),
        )
    except KeyError as missing:
        raise ValueError(f"/proc/meminfo has no row {missing}") from None


def _group(words: list[str]) -> tuple[int, int] | None:
    """Limit and what is left of it; None where there is no limit or the row is not whole."""
    if len(words) != 3 or not all(word.isdecimal() for word in words):
        return None
    limit, used, cache = (int(word) for word in words)
    return limit, max(0, limit - max(0, used - cache))


# A limit of any group above counts. Version 2 has one tree; version 1 one for memory alone.
_READ = """\
cat /proc/meminfo || exit 1
while IFS=: read -r number kinds path; do
  case "$number,$kinds," in
    0,,) root=$1; limit=memory.max; used=memory.current; row=inactive_file;;
    *,memory,*) root=$1/memory; limit=memory.limit_in_bytes; used=memory.usage_in_bytes
                row=total_inactive_file;;
    *) continue;;
  esac
  while :; do
    group=$root${path%/}
    if [ -r "$group/$limit" ]; then
      cache=0
      while read -r name value; do [ "$name" = "$row" ] && cache=$value; done < "$group/memory.stat"
      read -r most < "$group/$limit"
      read -r now < "$group/$used"
      echo "Group: $most $now $cache"
    fi
    [ "${path%/}" ] || break
    path=${path%/*}
  done
done < "$2"
exit 0
"""


def memory_under(groups: str, own: str) -> tuple[str, ...]:
    """The command that prints memory and limits. groups: where control groups lie; own: which are ours."""
    return ("sh", "-c", _READ, "memory", groups, own)


MEMORY = Fact("memory", memory_under("/sys/fs/cgroup", "/proc/self/cgroup"), parse_meminfo)
