"""What cleans up when the supervisor itself is killed.

The reaper is forked off the supervisor before anything else starts and waits on a pipe that only the
supervisor holds open. When the pipe closes without a word, the supervisor is gone: the reaper stops what it
left running, removes its files, says so in the record, and lets go of the lock.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from glmspark.errors import GlmsparkError
from glmspark.launch.record import Deployment, Home, Reason, State, scratch_of
from glmspark.launch.say import say
from glmspark.launch.sweep import Swept, sweep

_DONE = b"."


class Reaper:
    """The supervisor's end of the pipe."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid = pid
        self._handle = handle

    def dismiss(self) -> None:
        """Say that nothing is left to clean; the reaper goes."""
        try:
            os.write(self._handle, _DONE)
        except OSError:
            return  # it has gone already
        finally:
            os.close(self._handle)

    def abandon(self) -> None:
        """Close the pipe of a reaper that ended by itself."""
        os.close(self._handle)


def fork_reaper(home: Home, keep: set[int]) -> Reaper:
    """Fork the reaper. keep: files it must hold too (the lock); it lets go of all others.

    To be called while this process has a single thread.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read)
        return Reaper(pid, write)
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        _close_others({read, 1, 2, *keep})
        code = _wait(home, read)
    except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
        say(f"reaper: {error!r}")
    finally:
        os._exit(code)


def _close_others(keep: set[int]) -> None:
    for entry in list(Path("/proc/self/fd").iterdir()):
        number = int(entry.name)
        if number not in keep:
            try:
                os.close(number)
            except OSError:
                continue  # the listing's own file


def _wait(home: Home, read: int) -> int:
    if os.read(read, 1) == _DONE:
        return 0
    swept = clean(home, what="the supervisor ended unexpectedly", next_step="`glmspark up` starts it again")
    say(f"reaper: the supervisor is gone; removed {swept}")
    return 0


def clean(home: Home, *, what: str, next_step: str, at: float | None = None) -> Swept:
    """Remove what a deployment left behind and close its record. To be called with its lock held.

    A record that cannot be read is set aside; what carries its mark is removed all the same.
    """
    home.forget_key()
    deployment: Deployment | None
    try:
        deployment = home.read()
    except GlmsparkError:
        deployment = None
        aside = home.path / "deployment.json.damaged"
        if home.record_file.exists():
            home.record_file.replace(aside)
    if deployment is None:
        return sweep(home.path, scratch_of(home.path))
    swept = sweep(home.path, Path(deployment.scratch), deployment.shared_memory, deployment.relatives)
    if not deployment.state.over:
        now = time.time() if at is None else at
        deployment.reason = Reason(what=what, next=next_step, seen="\n".join(swept.processes) or None, at=now)
        deployment.close(State.FAILED, at=now)
        home.write_last(deployment)
    return swept
