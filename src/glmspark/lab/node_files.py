"""Making a node's own directories on the machine, before it starts."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from glmspark.errors import StateError
from glmspark.lab import commands, mounts, texts
from glmspark.lab.record import LabHome
from glmspark.lab.run import Runner

_VM = Path("/proc/sys/vm")
_VAR = ("lib/docker", "lib/containerd", "lib/sudo", "log", "cache", "spool", "local", "opt", "mail")
_DROPPED = (
    "ssh",
    "sudoers.d",
    "docker",
    "resolv.conf",
    "cron.d",
    "gshadow",
    "gshadow-",
    "passwd-",
    "shadow-",
    "group-",
)


@dataclass(frozen=True)
class NodeFiles:
    """The directory of one node."""

    home: LabHome
    name: str

    @property
    def path(self) -> Path:
        """The whole directory."""
        return self.home.nodes / self.name

    @property
    def own(self) -> Path:
        """What is mounted in the node: /etc, /var, /home, /root, /tmp and the vm.* settings."""
        return self.path / "own"

    @property
    def root(self) -> Path:
        """Where the node's tree is put together; on the machine it stays empty."""
        return self.path / "root"

    @property
    def log(self) -> Path:
        """What the node's daemons print."""
        return self.path / "log"

    @property
    def public_host_key(self) -> Path:
        """The public key the node's sshd shows."""
        return self.own / "etc/ssh/ssh_host_ed25519_key.pub"


def make(files: NodeFiles, runner: Runner, *, uid: int, addresses: dict[str, str]) -> None:
    """Make a node's directories and files.

    uid: of the lab's user. addresses: node -> address for /etc/hosts. StateError or LabError where that is
    not possible, a full disk for instance.
    """
    step = f"make the files of {files.name}"
    try:
        for path, mode in ((files.path, 0o711), (files.own, 0o711), (files.root, 0o755), (files.log, 0o700)):
            path.mkdir(mode=mode, parents=True)
        runner.run(["cp", "--archive", "--no-target-directory", "/etc", str(files.own / "etc")], step=step)
        _write_etc(files.own / "etc", files.name, uid, addresses)
        runner.run(commands.keygen(str(files.public_host_key.with_suffix("")), files.name), step=step)
        _make_var(files.own / "var")
        _make_homes(files, uid)
        (files.own / "tmp").mkdir()
        (files.own / "tmp").chmod(0o1777)
        _copy_settings(files.own / "vm")
        (files.own / "boot_id").write_text(f"{uuid.uuid4()}\n")
    except OSError as error:
        raise StateError(
            f"cannot make {error.filename}: {error.strerror}", host=files.name, step=step, seen=str(error)
        ) from error


def _write_etc(etc: Path, node: str, uid: int, addresses: dict[str, str]) -> None:
    for name in _DROPPED:
        _remove(etc / name)
    passwd = texts.passwd_text((etc / "passwd").read_text(), uid)
    written = {
        "passwd": (passwd, 0o644),
        "group": (texts.group_text((etc / "group").read_text(), uid), 0o644),
        "shadow": (texts.shadow_text(passwd), 0o640),
        "hostname": (f"{node}\n", 0o644),
        "hosts": (texts.hosts_text(node, addresses), 0o644),
        "resolv.conf": ("# no name server: a lab reaches nothing outside\n", 0o644),
        "nsswitch.conf": (texts.nsswitch(), 0o644),
        "machine-id": (secrets.token_hex(16) + "\n", 0o444),
        "sudoers": (texts.sudoers(), 0o440),
        "ssh/sshd_config": (texts.sshd_config(), 0o644),
    }
    for directory in ("ssh", "docker", "sudoers.d", "cron.d"):
        (etc / directory).mkdir(mode=0o755)
    for name, (text, mode) in written.items():
        _remove(etc / name)
        (etc / name).write_text(text)
        (etc / name).chmod(mode)


def _make_var(var: Path) -> None:
    for name in _VAR:
        (var / name).mkdir(parents=True)
    (var / "tmp").mkdir()
    (var / "tmp").chmod(0o1777)
    (var / "run").symlink_to("/run")
    (var / "lock").symlink_to("/run/lock")
    status = Path("/var/lib/dpkg/status")
    if status.is_file():  # the node's programs are the machine's, so are its packages
        (var / "lib/dpkg").mkdir()
        shutil.copy2(status, var / "lib/dpkg/status")


def _make_homes(files: NodeFiles, uid: int) -> None:
    home = files.own / "home" / texts.USER
    (home / ".ssh").mkdir(parents=True)
    keys = home / ".ssh/authorized_keys"
    shutil.copyfile(files.home.key.with_suffix(".pub"), keys)
    for path, mode in ((home, 0o755), (home / ".ssh", 0o700), (keys, 0o600)):
        path.chmod(mode)
        os.chown(path, uid, uid)
    # 0711: what is exposed below it can be reached, as environments below the machine's /root.
    (files.own / "root").mkdir(mode=0o711)


def _copy_settings(target: Path) -> None:
    target.mkdir()
    for source in sorted(_VM.iterdir()):
        if not source.is_file():
            continue
        copy = target / source.name
        copy.touch()
        with contextlib.suppress(OSError):  # some settings can only be written
            if source.stat().st_mode & 0o400:
                copy.write_bytes(source.read_bytes())
        copy.chmod(source.stat().st_mode & 0o777)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def exposed_paths() -> list[str]:
    """Directories that a node must see although they lie under what it has of its own: the Python that runs
    this, its environment, and glmspark's own source where that is installed from a checkout."""
    import sys

    source = Path(__file__).resolve().parents[1]
    found = []
    for path in (Path(sys.prefix), Path(sys.base_prefix), Path(sys.base_prefix).resolve(), source):
        pure = PurePosixPath(path)
        if mounts.is_hidden(pure) and pure != PurePosixPath("/usr"):
            found.append(pure)
    return [str(path) for path in mounts.minimal(found)]
