"""The guard of each node: the same program as on a Spark, kept running without systemd.

It runs as root, as it does there, on the directory in the lab user's home. What a lab cannot bring about for
real is put into files that it reads instead of the system's: OVERLAY/proc/meminfo, or lines in OVERLAY/kmsg.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from glmspark.config.files import write_atomic
from glmspark.errors import StateError
from glmspark.lab import commands
from glmspark.lab.node_files import NodeFiles
from glmspark.lab.run import Runner
from glmspark.lab.texts import USER
from glmspark.lab.wiring import Wiring
from glmspark.nodes.guards import GUARD, config, supervise

BASE = f"/home/{USER}/.local/state/glmspark"
"""glmspark's state directory of the lab's user, in a node."""
HOME = f"{BASE}/guard"
OVERLAY = "/run/glmspark-guard"
"""Files in here take the place of the node's own, for its guard."""


def home(files: NodeFiles) -> Path:
    """The guard's directory of a node, on the machine."""
    return files.own / HOME.lstrip("/")


def make(files: NodeFiles, wiring: Wiring, *, uid: int, secret: bytes) -> None:
    """Put the guard's files into a node's home. secret: of this lab. StateError where that fails."""
    addresses = {name: str(ports[0].address.ip) for name in wiring.nodes if (ports := wiring.fabric(name))}
    text = config(
        files.name,
        base=BASE,
        group=uid,
        owner=uid,
        addresses=addresses,
        fabric=[port.interface for port in wiring.fabric(files.name)],
        overlay=OVERLAY,
        kmsg=f"{OVERLAY}/kmsg",
    )
    path = home(files)
    try:
        path.mkdir(parents=True)
        # The user's own directories down to where his deployments will lie; the guard's is root's.
        for owned in (path.parents[2], path.parents[1], path.parents[0]):
            os.chown(owned, uid, uid)
        os.chown(path, 0, uid)
        path.chmod(0o750)
    except OSError as error:
        raise StateError(
            f"cannot make {error.filename}: {error.strerror}", host=files.name, step="make the guard's files"
        ) from error
    write_atomic(path / "guard.pyz", GUARD.data, mode=0o644)
    write_atomic(path / "config.json", text, mode=0o644)
    write_atomic(path / "secret", secret, mode=0o600)


def start(runner: Runner, files: NodeFiles, init: int) -> None:
    """Start a node's guard; it goes to the background."""
    argv = ["setsid", "--fork", *supervise(HOME, python=sys.executable)]
    log = files.log / "guard.log"
    runner.start(commands.enter(init, argv), log=log, step=f"start the guard on {files.name}").wait()


def said(files: NodeFiles) -> str | None:
    """What the node's guard last said, None while it has said nothing."""
    try:
        return (home(files) / "state.json").read_text() or None
    except OSError:
        return None
