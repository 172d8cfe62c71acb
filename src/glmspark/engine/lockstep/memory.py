"""Ranks that share a machine's memory, and what vLLM's CPU communicator leaves in it.

The communicator takes ranks that join by the same address for ranks of one machine, and has them meet in
files in /dev/shm whose names begin with the end of that address. So the address carries a word for the
machine, which torch ignores; and the files are removed once all have met, for a rank that is killed removes
nothing.
"""

from __future__ import annotations

from pathlib import Path

SHARED = Path("/dev/shm")  # noqa: S108 - where the communicator puts them


def domain() -> str:
    """A word that ranks have in common exactly when they see the same /dev/shm."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")
    place = SHARED.stat()
    return f"{boot[:12]}-{place.st_dev:x}-{place.st_ino:x}"


def join_address(address: str) -> str:
    """What to give vLLM as the address (host:port) at which the group is formed."""
    return f"tcp://{address}?node={domain()}"


def forget(address: str) -> None:
    """Remove the names of the shared memory of the group that was formed there; whoever has it keeps it."""
    ident = join_address(address).rsplit(":", 1)[1]
    for path in SHARED.iterdir():
        if path.name.startswith(f"{ident}-") and "cpushm" in path.name:
            path.unlink(missing_ok=True)
