"""Who a node is."""

from __future__ import annotations

from glmspark.nodes.facts import Fact


def parse_word(text: str) -> str:
    """The one word a command printed. Raises ValueError for none or several."""
    words = text.split()
    if len(words) != 1:
        raise ValueError(f"expected one word, got {text.strip()!r}")
    return words[0]


HOSTNAME = Fact("hostname", ("cat", "/proc/sys/kernel/hostname"), parse_word)
BOOT_ID = Fact("boot id", ("cat", "/proc/sys/kernel/random/boot_id"), parse_word)
