"""The base image of the nodes' containers: a small Debian or Ubuntu, like the machine's own.

It is made from packages once, kept in the lab's cache, and given to each Engine directly: no image registry
has a part in it. The engine's Python environment is not in it but mounted into containers, see
`engine_mounts`. An image's id holds the time it was imported; so it is imported once, on one node, and every
other node loads what that one saved: the id is the same on all.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from glmspark.config.files import make_dir, read_json, write_json
from glmspark.errors import StateError
from glmspark.lab import commands, mounts, needs
from glmspark.lab.cables import standing
from glmspark.lab.commands import Argv
from glmspark.lab.locking import locked
from glmspark.lab.record import UNFINISHED, LabHome, LabRecord
from glmspark.lab.run import LabError, Runner
from glmspark.lab.services import docker_socket

IMAGE = "glmspark-lab:base"
"""The base image's name on every node."""

PACKAGES = ("libnuma1", "python3")
"""Beside the least a Debian is: what the CPU engine's compiled core loads; Python with the libraries that an
interpreter built elsewhere wants, too."""

_LEFT_OUT = (
    *("./dev/*", "./proc/*", "./sys/*", "./tmp/*", "./var/cache/apt/*", "./var/lib/apt/lists/*"),
    *("./usr/share/doc/*", "./usr/share/man/*", "./usr/share/info/*", "./usr/share/locale/*"),
)
_OPENED = ("root",)
"""Directories that ordinary users may enter: an environment may lie below, on machines where root made it."""

_MAKE, _LOAD = 1800.0, 600.0
"""Seconds: fetching over a slow line; reading 300 MB on a slow disk."""


@dataclass(frozen=True)
class Brought:
    """An image and the nodes that have it."""

    name: str
    id: str
    nodes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The data as JSON."""
        return asdict(self) | {"nodes": list(self.nodes)}


@dataclass(frozen=True)
class Recipe:
    """What a base image is made of. suite: a release's code name. mirror: where apt gets it from."""

    suite: str
    mirror: str
    packages: tuple[str, ...] = PACKAGES

    @property
    def key(self) -> str:
        """Names the cached image."""
        text = json.dumps([self.suite, self.packages, _LEFT_OUT, _OPENED])
        return f"{self.suite}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def parse_codename(os_release: str) -> str:
    """VERSION_CODENAME of the text of /etc/os-release. Raises ValueError where there is none."""
    for line in os_release.splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME" and value.strip('"').isalnum():
            return value.strip('"')
    raise ValueError("no VERSION_CODENAME")


def list_mirrors() -> Argv:
    """List where apt gets packages from, for parse_mirror."""
    return [
        "apt-get",
        "indextargets",
        "--format",
        "$(CREATED_BY) $(COMPONENT) $(RELEASE) $(CODENAME) $(REPO_URI)",
    ]


def parse_mirror(text: str, suite: str) -> str:
    """The address apt gets a suite's main packages from. Raises ValueError where it has none usable."""
    for line in text.splitlines():
        fields = line.split()
        usable = fields[-1:] and fields[-1].startswith(("http://", "https://", "file:/"))
        if usable and fields[:2] == ["Packages", "main"] and suite in fields[2:-1]:
            return fields[-1]
    raise ValueError(f"apt has no source for {suite}")


def make_tree(recipe: Recipe, target: str) -> Argv:
    """Make the image's tree, in namespaces of its own and only as long as who asked for it lives: neither
    mounts nor processes of it are left."""
    return [
        *(
            "setpriv",
            "--pdeathsig",
            "KILL",
            "--",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation",
            "private",
            "--",
        ),
        *("debootstrap", "--variant=minbase", f"--include={','.join(recipe.packages)}"),
        *(recipe.suite, target, recipe.mirror),
    ]


def pack_tree(tree: str, archive: str) -> Argv:
    """Pack a tree for `docker import`."""
    return [
        "tar",
        "--create",
        *(f"--exclude={name}" for name in _LEFT_OUT),
        f"--file={archive}",
        f"--directory={tree}",
        ".",
    ]


def engine_mounts() -> list[str]:
    """Directories that a container needs, read-only and at the same place, to run this machine's glmspark and
    engine: the environment, the Python it was made with, and glmspark's source if it is a checkout."""
    source = Path(__file__).resolve().parents[1]
    prefix, base = Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()
    paths = [PurePosixPath(prefix), PurePosixPath(source)]
    if base != Path("/usr"):
        paths.append(PurePosixPath(base))
    return [str(path) for path in mounts.minimal(paths)]


def engine_python() -> str:
    """The Python of the environment among `engine_mounts`."""
    return str(Path(sys.prefix).resolve() / "bin" / Path(sys.executable).name)


def bring_image(home: LabHome, report: Callable[[str], None] = lambda _: None) -> Brought:
    """Bring the base image to every node of the lab that stands."""
    needs.check({**needs.PROGRAMS, **needs.IMAGE_PROGRAMS})
    with locked(home):
        record = standing(home)
        names = [node.name for node in record.nodes]
        ids = {name: _ensure(home, record, name, report) for name in names}
    return Brought(IMAGE, ids[names[0]], tuple(names))


def ensure_image(home: LabHome, node: str, report: Callable[[str], None] = lambda _: None) -> str:
    """Bring the base image to one node, if it is not there; returns its id."""
    needs.check({**needs.PROGRAMS, **needs.IMAGE_PROGRAMS})
    with locked(home):
        return _ensure(home, standing(home), node, report)


def _ensure(home: LabHome, record: LabRecord, node: str, report: Callable[[str], None]) -> str:
    runner = Runner(home, node)
    found = record.node(node)
    if found is None or found.init is None:
        raise LabError(f"the lab has no node {node}", next=f"there are {', '.join(record.wiring.nodes)}")
    socket = docker_socket(found.init.pid)
    recipe = _recipe(runner)
    archive = home.cache / f"{recipe.key}.tar"
    wanted = _cached_id(archive)
    present = _image_id(runner, socket, IMAGE)
    if wanted is not None and present == wanted:
        return wanted
    if wanted is None:
        return _make(runner, recipe, socket, archive, report)
    report(f"loading the base image on {node}")
    load = commands.docker(socket, "load", "--quiet", "--input", str(archive))
    runner.run(load, step=f"load the base image on {node}", timeout=_LOAD)
    present = _image_id(runner, socket, IMAGE)
    if present != wanted:
        archive.unlink(missing_ok=True)
        raise LabError(
            f"{archive} holds another image than was saved there",
            host=node,
            step="load the base image",
            seen=f"{present}, not {wanted}",
            next="it is removed; try again, and it is made anew",
        )
    return wanted


def _recipe(runner: Runner) -> Recipe:
    try:
        suite = parse_codename(Path("/etc/os-release").read_text())
        mirror = parse_mirror(runner.run(list_mirrors(), step="ask apt for its mirror"), suite)
    except (OSError, ValueError) as error:
        raise LabError(
            "the base image is made of the machine's own Debian or Ubuntu, and this is none that apt knows",
            step="choose what to make the base image of",
            seen=str(error),
        ) from error
    return Recipe(suite, mirror)


def _cached_id(archive: Path) -> str | None:
    note = archive.with_suffix(".json")
    if not (archive.is_file() and note.is_file()):
        return None
    try:
        data = read_json(note)
        return str(data["id"]) if data["size"] == archive.stat().st_size else None
    except (StateError, KeyError, TypeError):
        return None


def _image_id(runner: Runner, socket: str, name: str) -> str | None:
    argv = commands.docker(socket, "image", "inspect", "--format", "{{.Id}}", name)
    code, out, _ = runner.try_run(argv, step="look for the base image")
    return out.strip() if code == 0 else None


def _make(runner: Runner, recipe: Recipe, socket: str, archive: Path, report: Callable[[str], None]) -> str:
    step = "make the base image"
    report(f"making the base image from {recipe.suite}'s packages")
    with _workplace(runner.home) as place:
        tree, plain, saved = place / "tree", place / "tree.tar", place / "image.tar"
        runner.follow(make_tree(recipe, str(tree)), step=step, timeout=_MAKE, report=_phases(report))
        for name in _OPENED:
            (tree / name).chmod(0o755)
        report("packing it")
        runner.run(pack_tree(str(tree), str(plain)), step=step, timeout=_LOAD)
        report(f"importing it on {runner.host}")
        imported = commands.docker(
            socket, "import", "--message", f"glmspark lab {recipe.key}", str(plain), IMAGE
        )
        runner.run(imported, step=step, timeout=_LOAD)
        image = _image_id(runner, socket, IMAGE)
        runner.run(commands.docker(socket, "save", "--output", str(saved), IMAGE), step=step, timeout=_LOAD)
        if image is None:
            raise LabError("the image that was imported is not there", host=runner.host, step=step)
        note = archive.with_suffix(".json")
        note.unlink(missing_ok=True)
        saved.replace(archive)
        write_json(note, {"id": image, "size": archive.stat().st_size})
    return image


def _phases(report: Callable[[str], None]) -> Callable[[str], None]:
    """debootstrap says a line for each package; people want to see when it begins something new."""
    told: set[str] = set()

    def follow(line: str) -> None:
        words = line.removeprefix("I: ").split()
        if line.startswith("I: ") and words and words[0].endswith("ing") and words[0] not in told:
            told.add(words[0])
            report(f"  {words[0].lower()} packages")

    return follow


@contextmanager
def _workplace(home: LabHome) -> Iterator[Path]:
    """A directory in the cache that goes away with all in it, also those that a killed run has left."""
    make_dir(home.cache)
    for old in home.unfinished():
        shutil.rmtree(old)
    place = home.cache / f"{UNFINISHED}{secrets.token_hex(4)}"
    place.mkdir(mode=0o700)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
