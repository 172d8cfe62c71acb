"""What the machine itself must bring: told at once and all together, before a gigabyte is fetched."""

import ctypes
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.environment.pip import SetUpError

BEFORE = "before anything was written"
# What the whole installation takes (measured: 3.6 GiB on x86_64), and room for what pip unpacks on the way.
NEEDED_BYTES = 5 * 2**30
# Libraries that the engine's compiled parts load and no Python package brings, and their Debian packages.
LIBRARIES: Mapping[str, str] = {"libnuma.so.1": "libnuma1"}
# Modules that make an environment; Debian and Ubuntu ship Python without them.
MODULES = ("venv", "ensurepip")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _finds(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def check(
    *,
    make: bool,
    finds: Callable[[str], bool] = _finds,
    loads: Callable[[str], bool] = _loads,
) -> None:
    """Refuse a machine on which the set-up or the engine cannot work.

    Args:
        make: whether an environment is still to be made.
        finds: whether this Python has a module.
        loads: whether a shared library can be loaded.

    Raises:
        SetUpError: it names all that is missing, and the packages that bring it.
    """
    if not sys.platform.startswith("linux"):
        raise SetUpError(
            f"the CPU engine runs on Linux, and this is {sys.platform}",
            where=BEFORE,
            next="use a Linux machine or container; to drive a cluster, `pip install glmspark` is enough",
        )
    faults, packages = [], []
    modules = [module for module in MODULES if make and not finds(module)]
    if modules:
        faults.append(f"this Python ({sys.executable}) lacks its module {' and '.join(modules)}")
        packages.append(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")
    libraries = [library for library in LIBRARIES if not loads(library)]
    if libraries:
        faults.append(f"the engine's library {' and '.join(libraries)} is missing")
        packages += [LIBRARIES[library] for library in libraries]
    if faults:
        sudo = "" if os.geteuid() == 0 else "sudo "
        raise SetUpError(
            "; ".join(faults),
            where=BEFORE,
            next=f"on Debian and Ubuntu: {sudo}apt-get install {' '.join(packages)}"
            " (or tools/debian-packages.sh --install)",
        )


def check_room(venv: Path) -> None:
    """Refuse a disk that is too small.

    Raises:
        SetUpError: it says how much is free, and where.
    """
    above = next(path for path in (venv, *venv.parents) if path.is_dir())
    free = shutil.disk_usage(above).free
    if free < NEEDED_BYTES:
        raise SetUpError(
            f"{free / 2**30:.1f} GiB are free, and the environment takes {NEEDED_BYTES / 2**30:.0f} GiB",
            where=f"the disk of {above}",
            next="free some space, or name a place with more: GLMSPARK_VENV=/big/disk/venv make serve",
        )
