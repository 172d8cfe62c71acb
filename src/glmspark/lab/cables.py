"""Pulling cables and putting them back."""

from __future__ import annotations

import difflib

from glmspark.errors import UsageError
from glmspark.lab import commands
from glmspark.lab.locking import locked
from glmspark.lab.look import is_whole
from glmspark.lab.record import LabHome, LabRecord
from glmspark.lab.run import LabError, Runner


def standing(home: LabHome) -> LabRecord:
    """The record of a lab that stands whole. LabError where there is none, or only a broken one."""
    record = home.read()
    if record is None:
        raise LabError("there is no lab", next="`glmspark lab up 3` makes one of three nodes")
    if not is_whole(record):
        raise LabError(
            "the lab is broken: it was not finished, or one of its processes has ended",
            next="`glmspark lab status` shows what stands; `glmspark lab down`, then `up`, makes it anew",
        )
    return record


def switch_links(home: LabHome, names: list[str], *, up: bool) -> list[str]:
    """Cut links (up=False) or mend them. Returns the names, NODE:INTERFACE, of all links that were meant.

    names: nodes, links, cables or networks; see Wiring.select. UsageError for an unknown name, before
    anything is changed.
    """
    with locked(home):
        record = standing(home)
        wiring = record.wiring
        ports = []
        for name in names:
            found = wiring.select(name)
            if not found:
                near = difflib.get_close_matches(name, wiring.names(), n=1, cutoff=0.5)
                guess = f"did you mean {near[0]}? " if near else ""
                raise UsageError(
                    f"the lab has no node or link {name}",
                    next=f"{guess}there are {', '.join(wiring.names())}",
                )
            ports += [port for port in found if port not in ports]
        assert record.switch is not None  # noqa: S101 - a whole lab has one
        pid = record.switch.pid
        runner = Runner(home)
        for port in ports:
            argv = commands.enter_switch(pid, commands.set_link(port, up=up))
            runner.run(argv, step=f"{'mend' if up else 'cut'} {port.name}")
        return [port.name for port in ports]
