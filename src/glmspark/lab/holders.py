"""Processes that keep namespaces: started, found, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from glmspark.lab import commands
from glmspark.lab.record import MARK, LabHome
from glmspark.lab.run import LabError, Runner
from glmspark.nodes import processes
from glmspark.nodes.processes import Identity

_START = 20.0
"""Seconds within which a holder must stand; it takes some milliseconds on an idle machine."""


def start_switch(runner: Runner, log: Path) -> Identity:
    """Start the switch; returns once its namespace stands."""
    process = runner.start(commands.hold_switch(), log=log, step="start the switch")
    return _await(process, process.pid, commands.HOLDER[0], log, "start the switch")


def start_node(runner: Runner, log: Path) -> tuple[Identity, Identity]:
    """Start a node; returns the outer process and process 1 of the node once its namespaces stand."""
    step = f"start {runner.host}"
    process = runner.start(commands.hold_node(), log=log, step=step)
    outer = _identify(process, log, step)
    end = time.monotonic() + _START
    while True:
        children = [stat for stat in processes.all_stats() if stat.parent == process.pid and not stat.ended]
        if children:
            return outer, _await(process, children[0].pid, "tini", log, step)
        _give_up(process, end, log, step)
        time.sleep(0.01)


def _await(process: subprocess.Popen[bytes], pid: int, name: str, log: Path, step: str) -> Identity:
    """Wait until a process runs the program that holds, which is after its namespaces were made."""
    end = time.monotonic() + _START
    while True:
        stat = processes.read_stat(pid)
        if stat is not None and not stat.ended and stat.name == name:
            return Identity(stat.pid, stat.started)
        _give_up(process, end, log, step)
        time.sleep(0.01)


def _identify(process: subprocess.Popen[bytes], log: Path, step: str) -> Identity:
    identity = processes.identify(process.pid)
    if identity is None:
        raise LabError(f"{step}: its process ended at once", step=step, seen=_tail(log))
    return identity


def _give_up(process: subprocess.Popen[bytes], end: float, log: Path, step: str) -> None:
    code = process.poll()
    if code is not None:
        raise LabError(
            f"{step}: its process left with {code}",
            step=" ".join(str(word) for word in process.args) if isinstance(process.args, list) else step,
            seen=_tail(log),
            next="making namespaces takes root with CAP_SYS_ADMIN: a restricted container may refuse it",
        )
    if time.monotonic() > end:
        raise LabError(f"{step}: not there within {_START:g} s", step=step, seen=_tail(log))


def _tail(log: Path) -> str | None:
    try:
        return log.read_bytes()[-1000:].decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def remains(home: LabHome, recorded: Iterable[Identity]) -> list[Identity]:
    """Living processes of a lab: those recorded in this boot, and those with its marker; never the caller."""
    found = {one for one in recorded if processes.is_alive(one)}
    found.update(processes.marked(MARK, str(home.path)))
    return sorted((one for one in found if one.pid != os.getpid()), key=lambda one: one.pid)


def end_all(home: LabHome, recorded: Iterable[Identity], *, seconds: float = 15.0) -> list[Identity]:
    """Kill a lab's processes; with process 1 of a node dies all that runs in it. Returns what would not die.

    The lab is looked through again until nothing is found twice, since a command of a killed `lab up` may
    just be starting.
    """
    known = list(recorded)
    end = time.monotonic() + seconds
    quiet = 0
    while quiet < 2:
        left = remains(home, known)
        quiet = 0 if left else quiet + 1
        if left and time.monotonic() > end:
            return left
        for one in left:
            processes.send(one, signal.SIGKILL)
        processes.wait_gone(left, 1.0)
        if not left:
            time.sleep(0.05)
    return []
