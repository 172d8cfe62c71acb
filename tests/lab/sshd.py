"""A real sshd on loopback, as an ordinary process: own host key, own settings, a high port."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glmspark.nodes.ssh import Address


@dataclass
class Sshd:
    """One running sshd. folder: its keys and settings; `key` is accepted for the present user."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def key(self) -> Path:
        return self.folder / "client_key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def address(self, **changes: object) -> Address:
        settings: dict[str, object] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": getpass.getuser(),
            "known_hosts": self.known_hosts,
            "keys": (self.key,),
            "config": self.folder / "ssh_config",
        }
        return Address(**{**settings, **changes})  # type: ignore[arg-type]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def make_key(path: Path, kind: str = "ed25519") -> str:
    """A new key pair without passphrase; the public line."""
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True, timeout=30)
    return path.with_name(path.name + ".pub").read_text()


def program() -> str:
    found = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")
    assert found, "openssh-server is not installed: tools/debian-packages.sh lab --install"
    return found


@contextlib.contextmanager
def running(folder: Path, *, extra: str = "", host_key: Path | None = None) -> Iterator[Sshd]:
    """An sshd for the length of a with block; its known_hosts file holds its key."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd as root refuses to start without it
    if host_key is None:
        host_key = folder / "host_key"
        make_key(host_key)
    if not (folder / "client_key").exists():
        (folder / "authorized_keys").write_text(make_key(folder / "client_key"))
    (folder / "authorized_keys").chmod(0o600)
    (folder / "ssh_config").write_text("")
    port = free_port()
    public = host_key.with_name(host_key.name + ".pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {host_key}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder / 'authorized_keys'}\nPasswordAuthentication no\n"
        f"KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 64\n{extra}"
    )
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [program(), "-D", "-e", "-f", folder / "sshd_config"], stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        yield Sshd(folder, port, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
