"""The environment's folder: whose it is, one set-up at a time, made anew when it is beyond mending."""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.environment.pip import SetUpError

NO_PIP = "its pip does not start"
# Lies in an environment that this program made, from before the first other file: what bears it may be
# emptied.
OURS = "glmspark-made-this"


def python_of(venv: Path) -> Path:
    """The environment's interpreter."""
    return venv / "bin" / "python"


def version_of(python: Path) -> str | None:
    """major.minor of an interpreter, or None when it does not start."""
    command = [str(python), "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def configured_version(venv: Path) -> str | None:
    """major.minor of the Python that the environment was made with, from pyvenv.cfg."""
    try:
        lines = (venv / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() in {"version", "version_info"}:
            return ".".join(value.strip().split(".")[:2])
    return None


def site_packages(venv: Path) -> Path:
    """Where the environment's packages lie."""
    return venv / "lib" / f"python{configured_version(venv)}" / "site-packages"


def whose(venv: Path) -> str:
    """`free` (nothing there), `ours` (we made it), `theirs` (somebody's environment) or `other` (not one).

    Only what is ours is ever emptied.
    """
    if not venv.exists():
        return "free"
    if not venv.is_dir():
        return "other"
    if (venv / OURS).is_file():
        return "ours"
    if (venv / "pyvenv.cfg").is_file():
        return "theirs"
    return "other" if any(venv.iterdir()) else "free"


def state(venv: Path, chosen: str | None) -> str | None:
    """What is wrong with the environment itself; None when its Python and its pip start.

    Args:
        venv: its folder.
        chosen: major.minor that it must have, or None for any that is new enough.
    """
    if moved_from(venv):
        return f"it was moved here from {moved_from(venv)}, and its commands name the old place"
    made_with, runs = configured_version(venv), version_of(python_of(venv))
    if made_with is None:
        return "its pyvenv.cfg is missing"
    if runs is None:
        return "its Python does not start"
    if runs != made_with:
        return f"it was made with Python {made_with}, and that is now {runs}"
    if tuple(map(int, runs.split("."))) < (3, 11):
        return f"it has Python {runs}, and glmspark needs 3.11 or newer"
    if chosen and runs != chosen:
        return f"it has Python {runs}, and {chosen} was asked for"
    try:
        pip = [str(python_of(venv)), "-I", "-m", "pip", "--version"]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return NO_PIP
    return None if done.returncode == 0 else NO_PIP


def empty(venv: Path) -> None:
    """Remove all that lies in an environment that is ours; the mark goes last, the folder stays."""
    for path in sorted(venv.iterdir(), key=lambda p: p.name == OURS):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def mark(venv: Path) -> None:
    """Make the folder and say in it that it is ours, and where it was made."""
    venv.mkdir(parents=True, exist_ok=True)
    text = f"{venv}\nMade by tools/bootstrap.py. It may be removed, and is then made anew.\n"
    (venv / OURS).write_text(text)


def moved_from(venv: Path) -> str | None:
    """Where an environment of ours was made, if that is not where it lies now; its commands then fail."""
    try:
        made_in = (venv / OURS).read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    try:
        same = made_in == str(venv) or os.path.samefile(made_in, venv)  # noqa: PTH121 (a path may be a link)
    except OSError:
        same = False
    return None if same else made_in


@contextmanager
def locked(venv: Path, say: Callable[[str], None], every: float = 5.0) -> Iterator[int]:
    """Hold the environment alone. The lock is on the folder itself and goes with its holder, however it ends.

    Yields:
        The lock's file descriptor. pip gets it too, so that a pip whose parent was killed is waited for.

    Raises:
        SetUpError: the folder cannot be made, or another takes its place again and again.
    """
    for _ in range(10):
        try:
            venv.mkdir(parents=True, exist_ok=True)
            lock = os.open(venv, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise SetUpError(
                f"the folder cannot be made: {error.strerror}",
                where=str(venv),
                next="name another place: GLMSPARK_VENV=/some/venv make serve",
            ) from error
        try:
            _wait_for(lock, venv, say, every)
            try:
                here = os.stat(venv).st_ino == os.fstat(lock).st_ino  # noqa: PTH116 (beside its twin)
            except FileNotFoundError:
                here = False
            if here:
                yield lock
                return
        finally:
            os.close(lock)
    raise SetUpError("the folder is removed again and again", where=str(venv), next="see what removes it")


def _wait_for(lock: int, venv: Path, say: Callable[[str], None], every: float) -> None:
    start, told = time.monotonic(), -every
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - start
            if waited - told >= every:
                say(f"another set-up is at work in {venv}; waiting for it ({waited:.0f} s)")
                told = waited
            time.sleep(0.1)
        else:
            return
