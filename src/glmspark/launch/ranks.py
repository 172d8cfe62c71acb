"""Starting a rank's process so that it cannot outlive who answers for it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from glmspark.errors import GlmsparkError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """From now on processes whose parents end become this process's children, so none is lost sight of."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _die_with(parent: int) -> Callable[[], None]:
    def prepare() -> None:  # runs between fork and exec: system calls only
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return prepare


def start(
    argv: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path, *, host: str
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own that the kernel kills when this process ends.

    Its output is appended to `log`. Raises GlmsparkError naming host, command and reason if it cannot start.
    """
    try:
        with log.open("ab") as sink:
            return subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - the supervisor has a single thread
            )
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GlmsparkError(
            f"cannot start {argv[0]}: {reason}",
            host=host,
            step=" ".join(argv),
            next="is the engine installed?",
        ) from error


def status_of(returncode: int) -> int:
    """The wait status for an exit code as Python gives it: negative for a signal."""
    return -returncode if returncode < 0 else returncode << 8


def describe_status(wait_status: int) -> tuple[int | None, str | None, str]:
    """What a wait status says: exit code, signal name, and both in words."""
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return None, name, f"was killed by {name}"
    code = os.WEXITSTATUS(wait_status)
    return code, None, f"ended with exit code {code}"
