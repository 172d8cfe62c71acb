"""Shared libraries of the system that the engine's compiled parts load and that no Python package brings."""

import ctypes
import os
from collections.abc import Callable, Mapping

from tools.environment.pip import SetUpError

# library -> Debian and Ubuntu package
NEEDED: Mapping[str, str] = {"libnuma.so.1": "libnuma1"}


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def check(loads: Callable[[str], bool] = _loads) -> None:
    """Refuse a machine without one of them, before a gigabyte is fetched.

    Raises:
        SetUpError: it names the libraries and their packages.
    """
    missing = [library for library in NEEDED if not loads(library)]
    if not missing:
        return
    packages = " ".join(NEEDED[library] for library in missing)
    sudo = "" if os.geteuid() == 0 else "sudo "
    raise SetUpError(
        f"the system library {', '.join(missing)} is missing, and the CPU engine loads it",
        where="before anything was written",
        next=f"on Debian and Ubuntu: {sudo}apt-get install {packages} "
        "(all that is needed: tools/debian-packages.sh --install)",
    )
