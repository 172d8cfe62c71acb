"""Files written whole or not at all, and read back with one clear error."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from glmspark.errors import StateError

__all__ = ["advice", "make_dir", "read_json", "state_error", "write_atomic", "write_json"]


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace a file by data: written aside in the same directory, fsynced, renamed, directory fsynced.

    A reader sees the old file or the new one, also after a power cut. On any error the old file stands,
    nothing is left beside it, and StateError says why (ENOSPC: how much is free). mode is the file's whole
    mode, whatever the umask.
    """
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        temporary = None
        _sync_dir(path.parent)
    except OSError as error:
        raise state_error(error, "write", path) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def write_json(path: Path, value: Any, *, mode: int = 0o600) -> None:
    """write_atomic of a value as indented JSON with sorted keys. Only the owner may read it by default.

    In ASCII, so that text from logs and file names with undecodable bytes (lone surrogates) is kept as well.
    """
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False)
    write_atomic(path, text.encode() + b"\n", mode=mode)


def read_json(path: Path) -> Any:
    """The value in a JSON file. StateError where it is missing, unreadable or not JSON."""
    try:
        if path.exists() and not (
            path.is_file() or path.is_dir()
        ):  # a pipe would be waited for, a device would never end
            raise StateError(f"{path} is not a regular file", step=f"read {path}", next="name a JSON file")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise state_error(error, "read", path) from error
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{path} is not valid JSON",
            step=f"read {path}",
            seen=str(error)[:200],
            next="glmspark writes this file whole: if nothing else wrote to it, move it away and try again",
        ) from error


def make_dir(path: Path, *, mode: int = 0o700) -> None:
    """Create a directory and its parents; fine if it is there. StateError where that is not possible."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise state_error(error, "create", path) from error


def _sync_dir(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def advice(error: OSError, path: Path) -> str | None:
    """What to do about an error of the file system at path, None where that is not clear."""
    return {
        errno.ENOSPC: f"free some space on the file system of {path.parent}",
        errno.EDQUOT: f"the disk quota is used up: free some space under {path.parent}",
        errno.EROFS: f"{path.parent} is on a file system that cannot be written: choose another directory",
        errno.EACCES: f"check the owner and mode of {path.parent}",
        errno.EPERM: f"check the owner and mode of {path.parent}",
        errno.ENOENT: f"is {path} spelled right?",
        errno.ENOTDIR: f"{path.parent} leads through a file: is it spelled right?",
        errno.EISDIR: f"{path} is a directory: name a file",
        errno.ELOOP: f"the links at {path} lead in a circle: remove them",
        errno.ENAMETOOLONG: "choose a shorter name",
        errno.EMFILE: "this process may open no more files: raise `ulimit -n`",
        errno.EIO: f"the disk of {path.parent} fails: `dmesg` says more",
    }.get(error.errno or 0)


def state_error(error: OSError | ValueError, verb: str, path: Path) -> StateError:
    """The error for a file of the state directory: "cannot VERB PATH", why, and what to do."""
    reason = getattr(error, "strerror", None) or str(error)
    following = advice(error, path) if isinstance(error, OSError) else None
    if following is None or getattr(error, "errno", None) == errno.EROFS:
        following = "set GLMSPARK_STATE_DIR to a directory that can be read and written"
    return StateError(f"cannot {verb} {path}: {reason}", step=f"{verb} {path}", seen=reason, next=following)
