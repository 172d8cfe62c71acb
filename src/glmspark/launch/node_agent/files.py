"""The deployment's directory on a node: its files, its lock, and errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any


class Trouble(Exception):  # noqa: N818 - it becomes the control machine's GlmsparkError
    """What went wrong, with the step, what was seen and what to do next."""

    def __init__(
        self,
        message: str,
        *,
        step: str | None = None,
        seen: str | None = None,
        next: str | None = None,  # noqa: A002 - the field's name in every record
    ) -> None:
        super().__init__(message)
        self.fields = {"error": message, "step": step, "seen": seen, "next": next}


def say(text: str) -> None:
    """A line in the agent's log; a full disk takes none, and that must not hurt."""
    with contextlib.suppress(OSError):
        os.write(2, f"{time.strftime('%m-%d %H:%M:%S')} {text}\n".encode("utf-8", "replace"))


class Home:
    """The directory of one deployment on this node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.lock_file = path / "lock"
        self.spec_file = path / "spec.json"
        self.state_file = path / "state.json"
        self.record_file = path / "record.json"
        self.guard_file = path / "guard.json"
        self.env_file = path / "env"
        self.lockstep_file = path / "lockstep-secret"
        self.agent = path / "agent.pyz"
        self.socket = path / "agent.sock"
        self.logs = path / "logs"

    def rank_log(self, rank: int) -> Path:
        """Where the rank's output goes."""
        return self.logs / f"rank-{rank}.log"

    def state(self) -> dict[str, Any] | None:
        """What state.json says, None where there is none that can be read."""
        try:
            found = json.loads(self.state_file.read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def prepare(self) -> None:
        """Room for a new start: the logs of the last one move to logs.previous."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for leftover in self.path.glob(".*.tmp"):
                leftover.unlink()
            if self.logs.exists():
                shutil.rmtree(self.path / "logs.previous", ignore_errors=True)
                self.logs.rename(self.path / "logs.previous")
            self.logs.mkdir(mode=0o700)
        except OSError as error:
            raise full(error, f"prepare {self.path}") from error

    def forget(self) -> None:
        """Remove what only a running rank needs: its secrets."""
        for path in (self.env_file, self.lockstep_file):
            with contextlib.suppress(OSError):
                path.unlink()


def base() -> Path:
    """Where the deployments' directories of this user lie on this node."""
    own = os.environ.get("GLMSPARK_STATE_DIR")
    return Path(own or "~/.local/state/glmspark").expanduser().absolute() / "ranks"


def directories() -> list[Path]:
    """Those of all deployments on this node."""
    try:
        return sorted(path for path in base().iterdir() if path.is_dir())
    except OSError:
        return []


def write(path: Path, data: bytes) -> None:
    """Replace a file, whole or not at all; only its owner may read it. Raises Trouble."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:  # made with mode 0600
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise full(error, f"write {path}") from error


def write_json(path: Path, value: object) -> None:
    """Replace a file by a value as JSON."""
    write(path, json.dumps(value, indent=1).encode() + b"\n")


def full(error: OSError, step: str) -> Trouble:
    """The Trouble for what the system did not do."""
    advice = {
        errno.ENOSPC: "free some space on that file system of the node",
        errno.EDQUOT: "the disk quota is used up: free some space",
        errno.EACCES: "check the owner and mode of that directory",
    }.get(error.errno or 0)
    return Trouble(f"cannot {step}: {error.strerror or error}", step=step, next=advice)


def take_lock(path: Path, wait: float = 0.0) -> int | None:
    """An open file that holds the lock for as long as any copy of it is open; None if another has it."""
    end = time.monotonic() + wait
    while True:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise full(error, f"lock {path}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError:
            os.close(handle)
        if time.monotonic() >= end:
            return None
        time.sleep(0.05)


def locked(path: Path) -> bool:
    """Whether someone answers for the deployment."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def as_json(text: bytes, what: str) -> Any:
    """The value in a JSON text. Raises Trouble."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise Trouble(f"{what} is not JSON: {error}", step=f"read {what}") from None


def put(value: object) -> None:
    """Print a value as one JSON line."""
    put_bytes(json.dumps(value).encode() + b"\n")


def put_bytes(data: bytes) -> None:
    """Write to standard output, all of it and at once."""
    while data:
        data = data[os.write(1, data) :]
