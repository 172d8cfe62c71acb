"""Taking a lab down: also one that was killed while it was made, also when its record is gone."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from glmspark.errors import GlmsparkError, StateError
from glmspark.lab import cgroups, holders, needs
from glmspark.lab.locking import locked
from glmspark.lab.record import LabHome, LabRecord, State
from glmspark.lab.run import LabError
from glmspark.lab.wiring import machine_interface
from glmspark.nodes.processes import Identity, boot_id

INTERFACES = Path("/sys/class/net")


@dataclass
class Cleared:
    """What was there and is gone. nodes: names; processes: how many; files: paths."""

    nodes: list[str] = field(default_factory=list)
    processes: int = 0
    interface: str | None = None
    cgroups: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    @property
    def nothing(self) -> bool:
        """Whether there was nothing to clear."""
        return not (self.nodes or self.processes or self.interface or self.cgroups or self.files)

    def to_json(self) -> dict[str, Any]:
        """What was cleared, as JSON data."""
        return asdict(self)


def down(home: LabHome, report: Callable[[str], None] = lambda _: None) -> Cleared:
    """Take the lab down, whatever state it is in. See clear."""
    if not home.path.exists():
        return Cleared()
    needs.check(programs={})
    with locked(home):
        return clear(home, report)


def clear(home: LabHome, report: Callable[[str], None] = lambda _: None) -> Cleared:
    """Remove all of a lab but its cached images. To be called with the lab's lock held.

    LabError where something would not go; what did go stays gone, and calling it again goes on.
    """
    record = _record(home)
    cleared = Cleared()
    recorded: list[Identity] = []
    interface = None
    if record is not None:
        cleared.nodes = [node.name for node in record.nodes]
        if record.boot == boot_id():
            recorded = record.processes()
            interface = machine_interface(record.slot) if record.claimed else None
        if record.state is not State.STOPPING:
            record.state = State.STOPPING
            with contextlib.suppress(StateError):  # a full disk must not keep a lab from being cleared
                home.write(record)
    found = holders.remains(home, recorded)
    if found:
        report(f"ending {len(found)} processes")
    _end(home, found, recorded, cleared)
    if interface is not None:
        report("waiting for the network to go")
        _await_gone(interface)
        cleared.interface = interface
    cleared.cgroups = [str(path) for path in cgroups.places(home.cgroup)]
    stuck = cgroups.remove(home.cgroup)
    if stuck:
        raise LabError(
            "a control group of the lab would not go", step="remove control groups", seen="\n".join(stuck)
        )
    if home.nodes.exists():
        report("removing the nodes' files")
    _remove_files(home, cleared)
    return cleared


def _record(home: LabHome) -> LabRecord | None:
    """The record, None also for one that cannot be understood: the marker finds the processes as well."""
    try:
        return home.read()
    except StateError:
        return None


def _end(home: LabHome, found: list[Identity], recorded: list[Identity], cleared: Cleared) -> None:
    left = holders.end_all(home, recorded)
    cleared.processes = len(found)
    if left:
        raise LabError(
            f"{len(left)} processes of the lab would not die",
            step="end the lab's processes",
            seen=", ".join(f"process {one.pid}" for one in left),
            next="they wait for the kernel; `glmspark lab down` again goes on",
        )


def _await_gone(interface: str, seconds: float = 15.0) -> None:
    """The kernel takes the machine's end of the cable away some time after the switch has gone."""
    end = time.monotonic() + seconds
    while (INTERFACES / interface).exists():
        if time.monotonic() > end:
            raise LabError(
                f"interface {interface} would not go",
                step="wait for the switch to go",
                next=f"if no other lab has it: `ip link delete {interface}`",
            )
        time.sleep(0.02)


def _remove_files(home: LabHome, cleared: Cleared) -> None:
    """The record goes last, so that what is left after a kill still has one."""
    asides = [*sorted(home.path.glob(".*.tmp")), *home.unfinished()]
    for path in (home.nodes, home.ssh, home.cluster_file, *asides, home.record_file):
        if path.exists() or path.is_symlink():
            try:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            except OSError as error:
                raise LabError(
                    f"cannot remove {error.filename or path}: {error.strerror}",
                    step=f"remove {path}",
                    seen=str(error),
                    next="see what holds it, then `glmspark lab down` again",
                ) from error
            cleared.files.append(str(path))


def clear_after_failure(home: LabHome, error: BaseException) -> None:
    """Clear what a failed or interrupted `lab up` has made; what goes wrong then is added to its error."""
    try:
        clear(home)
    except GlmsparkError as fault:
        error.add_note(f"and clearing up failed: {fault}")
