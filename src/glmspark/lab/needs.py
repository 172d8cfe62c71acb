"""What the machine must have before a lab is made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from glmspark.lab.run import PATH, LabError

PROGRAMS: Mapping[str, str] = {
    "ip": "iproute2",
    "tc": "iproute2",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "dockerd": "docker.io",
    "docker": "docker.io",
    "tini": "tini",
    "sudo": "sudo",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "pivot_root": "util-linux",
    "mount": "mount",
    "sysctl": "procps",
    "hostname": "hostname",
}
"""Programs that `lab up` runs, and the Debian package of each."""

IMAGE_PROGRAMS: Mapping[str, str] = {"debootstrap": "debootstrap", "tar": "tar"}
"""Programs that making the base image takes besides."""


def missing_packages(programs: Mapping[str, str], path: str = PATH) -> list[str]:
    """Packages of those programs that are not on `path`, each once."""
    return list(
        dict.fromkeys(package for name, package in programs.items() if shutil.which(name, path=path) is None)
    )


def check(programs: Mapping[str, str] = PROGRAMS) -> None:
    """Raise one LabError that says all that is missing: root, programs."""
    missing = missing_packages(programs)
    is_root = os.geteuid() == 0
    if is_root and not missing:
        return
    wants = [] if is_root else ["root"]
    if missing:
        wants.append(f"the package{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    install = "tools/debian-packages.sh lab --install"
    steps = ([f"`{install}`"] if missing else []) + ([] if is_root else ["run it with sudo"])
    raise LabError(
        f"the lab needs {' and '.join(wants)}", step="look for what the lab needs", next=", then ".join(steps)
    )
