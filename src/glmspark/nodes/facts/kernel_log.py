"""What the kernel has said of the GPU, of memory that ran out and of the fabric since it started."""

from __future__ import annotations

import re
from collections.abc import Mapping

from glmspark.nodes.facts import Fact

KINDS: Mapping[str, str] = {
    "memory": r"NV_ERR_NO_MEMORY|NVRM:.*[Oo]ut of memory",
    "GPU": r"NVRM: Xid|NVRM:.*(?:fell off the bus|GPU has been lost|RmInitAdapter failed)",
    "killed": r"Out of memory: Killed process|oom-kill:",
    "fabric": r"mlx5_core.*(?:cmd.*timeout|health poll failed|firmware.*internal error)",
}
"""Lines that tell of trouble, by what is in trouble."""

_ANY = "|".join(KINDS.values()).replace("(?:", "(")
_STAMP = re.compile(r"^\[[^\]]*\]\s*")


def parse_kernel_log(text: str) -> dict[str, list[str]]:
    """The lines of each kind, oldest first, without their time stamps. Other lines are left out."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        for kind, pattern in KINDS.items():
            if re.search(pattern, line):
                found.setdefault(kind, []).append(_STAMP.sub("", line).strip())
                break
    return found


# The log is root's on most systems. It may have a million lines, so only those that count come over. grep
# leaves with 1 where there is none of them; that the log could not be read is another matter.
_READ = """\
if [ "$(id -u)" = 0 ]; then set -- dmesg; else set -- sudo -n dmesg; fi
log=$("$@" 2> /dev/null) || { echo 'the kernel log is for root only, and sudo is not allowed' >&2; exit 2; }
printf '%s\\n' "$log" | grep -E "$PATTERN" | tail -n 200
exit 0
"""

KERNEL_LOG = Fact("kernel log", ("env", f"PATTERN={_ANY}", "sh", "-c", _READ), parse_kernel_log)
