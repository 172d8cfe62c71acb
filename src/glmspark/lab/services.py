"""A node's daemons: sshd, the Docker Engine and the guard."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from glmspark.lab import commands, guards
from glmspark.lab.node_files import NodeFiles
from glmspark.lab.run import LabError, Runner
from glmspark.lab.wiring import Wiring

SSH_PORT = 22
_SSHD, _DOCKER, _GUARD = 15.0, 60.0, 30.0
"""Seconds until a daemon must answer; on an idle machine it takes less than one."""


def docker_socket(init: int) -> str:
    """The path, on the machine, of the Docker Engine of the node whose process 1 is `init`."""
    return f"/proc/{init}/root/run/docker.sock"


def docker_version(runner: Runner, init: int) -> str | None:
    """The version of a node's Docker Engine, None where it does not answer."""
    argv = commands.docker(docker_socket(init), "version", "--format", "{{.Server.Version}}")
    code, out, _ = runner.try_run(argv, step="ask Docker", timeout=20.0)
    return out.strip() or None if code == 0 else None


def ssh_banner(address: str, *, timeout: float = 1.0) -> str | None:
    """What an sshd says first, None where none answers."""
    try:
        with socket.create_connection((address, SSH_PORT), timeout=timeout) as connection:
            return connection.recv(256).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def start_services(runner: Runner, wiring: Wiring, files: NodeFiles, init: int) -> None:
    """Start a node's daemons and wait until all answer. LabError, with the daemon's last words."""
    node = files.name
    docker_log = files.log / "dockerd.log"
    argv = commands.enter(init, commands.start_docker(node, files.home.cgroup))
    # `setsid --fork` returns at once; the Engine itself keeps the log open.
    runner.start(argv, log=docker_log, step=f"start Docker on {node}").wait()
    runner.run(commands.enter(init, commands.start_sshd()), step=f"start sshd on {node}")
    guards.start(runner, files, init)
    address = str(wiring.reached_at(node))
    _await(
        lambda: ssh_banner(address),
        _SSHD,
        node,
        f"sshd does not answer at {address}",
        files.own / "var/log/sshd.log",
    )
    _await(lambda: docker_version(runner, init), _DOCKER, node, "Docker does not answer", docker_log)
    _await(lambda: guards.said(files), _GUARD, node, "the guard says nothing", files.log / "guard.log")


def _await(ask: Callable[[], str | None], seconds: float, node: str, message: str, log: Path) -> None:
    end = time.monotonic() + seconds
    while not ask():
        if time.monotonic() > end:
            raise LabError(
                f"{message} within {seconds:g} s", host=node, step="start the node's daemons", seen=_tail(log)
            )
        time.sleep(0.05)


def _tail(log: Path) -> str | None:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) or None
    except OSError:
        return None
