"""Removing what is ours, and nothing else: containers, processes, shared memory, scratch directories."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import Home, Trouble, write_json
from .life import OVER
from .proc import SHM, boot_id, command_line, everyone, maps_of, marked, segments, send, wait_gone

LABEL = "glmspark.home"
"""The container label with the deployment's directory: it tells this user's containers from all others."""
_CALL = 60.0  # seconds a call of the Docker command may take


def docker(
    command: list[str], *words: str, timeout: float = _CALL, mark: Mapping[str, str] | None = None
) -> str:
    """What a call of the Docker command printed. mark: added to its environment.

    Raises Trouble with its last words.
    """
    argv = [*command, *words]
    step = " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
            env={**os.environ, **(mark or {})},
        )
    except subprocess.TimeoutExpired:
        raise Trouble(
            f"`{words[0]}` of Docker did not end within {timeout:g} s",
            step=step,
            next="see what the Engine does: journalctl -u docker",
        ) from None
    except OSError as error:
        raise Trouble(
            f"cannot run {argv[0]}: {error.strerror}", step=step, next="is Docker installed on the node?"
        ) from error
    if done.returncode:
        seen = done.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise Trouble(f"docker {words[0]} left with {done.returncode}", step=step, seen=seen or None)
    return done.stdout.decode("utf-8", "replace")


def containers(command: list[str], home: str | None = None) -> list[tuple[str, str]]:
    """Containers with our label, running or not: id and the directory it names. Raises Trouble."""
    wanted = LABEL if home is None else f"{LABEL}={home}"
    shown = docker(
        command, "ps", "-a", "--no-trunc", "--filter", f"label={wanted}",
        "--format", '{{.ID}}\t{{.Label "' + LABEL + '"}}',
    )  # fmt: skip
    return [(line.split("\t")[0], line.split("\t")[1]) for line in shown.splitlines() if "\t" in line]


@dataclass
class Swept:
    """What was removed (or, in a dry run, would be). stubborn: what would not go."""

    containers: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    stubborn: list[str] = field(default_factory=list)

    def any(self) -> bool:
        """Whether there was anything."""
        return bool(self.containers or self.processes or self.files)


def sweep(
    home: Home,
    *,
    state: Mapping[str, Any] | None = None,
    dry: bool = False,
    with_docker: bool | None = None,
) -> Swept:
    """Remove containers, processes, shared memory and scratch of a deployment that nobody answers for.

    To be called with its lock held (but for a dry run). state: what is known of it, by default state.json.
    with_docker: ask Docker; by default if it ran there.
    """
    swept, state = Swept(), (home.state() if state is None else state) or {}
    command, image = state.get("docker") or ["docker"], state.get("image")
    memory = {path for path in state.get("shared_memory") or [] if path.startswith(SHM) and ".." not in path}
    if with_docker or (with_docker is None and state.get("runtime") == "container"):
        _sweep_containers(home, command, swept, dry=dry)
    left = [one for one, _ in marked(str(home.path))]
    if state.get("boot_id") == boot_id():  # what has scrubbed its environment is known from the last look
        known = {(pid, started) for pid, started in state.get("family") or []}
        mine = {one.pid for one in left}
        left += [one for one in everyone() if (one.pid, one.started) in known and one.pid not in mine]
    memory |= segments(maps_of(one.pid for one in left))
    for one in left:
        name = f"{one.pid} ({command_line(one.pid).replace(chr(0), ' ').strip()[:80]})"
        if dry or send(one, signal.SIGKILL):
            swept.processes.append(name)
    if not dry:
        swept.stubborn += [f"process {one.pid}" for one in wait_gone(left, 3.0)]
    used = segments(maps_of(one.pid for one in everyone())) if memory and not dry else set()
    files = sorted(path for path in memory - used if os.path.lexists(path))
    scratch = state.get("scratch")
    if scratch and is_scratch(Path(scratch)):
        files.append(scratch)
    for path in files:
        if dry or _remove(path, command, image):
            swept.files.append(path)
        else:
            swept.stubborn.append(path)
    return swept


def _sweep_containers(home: Home, command: list[str], swept: Swept, *, dry: bool) -> None:
    try:
        found = containers(command, str(home.path))
    except Trouble as trouble:
        swept.stubborn.append(f"containers: {trouble.fields['seen'] or trouble}")
        return
    for one, _ in found:
        try:
            if not dry:
                docker(command, "rm", "-f", one)
            swept.containers.append(one[:12])
        except Trouble as trouble:
            swept.stubborn.append(f"container {one[:12]}: {trouble.fields['seen'] or trouble}")


def is_scratch(path: Path) -> bool:
    """Whether a path is a scratch directory of this user indeed: it is removed with all that is in it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return path.name.startswith("glmspark-") and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def make_scratch(path: Path) -> None:
    """An empty scratch directory that only this user may enter. Raises Trouble."""
    if is_scratch(path):
        shutil.rmtree(path, ignore_errors=True)
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        advice = "if it is not another user's, remove it"
        raise Trouble(f"cannot make {path}: {error.strerror}", step=f"make {path}", next=advice) from error


def _remove(path: str, command: list[str], image: str | None) -> bool:
    """Remove a file or directory; what root in a container made is removed by a container of that image."""
    for attempt in ("here", "there"):
        try:
            if Path(path).is_dir() and not Path(path).is_symlink():
                shutil.rmtree(path)
            else:
                Path(path).unlink()
        except FileNotFoundError:
            pass
        except OSError:
            if attempt == "there" or image is None:
                return False
            mount = str(Path(path).parent) if path.startswith(SHM) else path
            with contextlib.suppress(Trouble):
                docker(
                    command, "run", "--rm", "--pull", "never", "--network", "none",
                    "--mount", f"type=bind,source={mount},target=/swept", "--entrypoint", "find", image,
                    "/swept", "-mindepth", "1",
                    *(["-maxdepth", "1", "-name", _literal(Path(path).name)] if mount != path else []),
                    "-delete",
                )  # fmt: skip
        if not os.path.lexists(path):
            return True
    return not os.path.lexists(path)


def _literal(name: str) -> str:
    """A name as a pattern of find that matches nothing else."""
    return "".join(f"\\{sign}" if sign in "*?[]\\" else sign for sign in name)


def close_lost(home: Home, what: str, swept: Swept) -> None:
    """Write into the state of a deployment that nobody answers for that it is over."""
    home.forget()
    state = home.state()
    if state is None or state.get("state") in OVER:
        return
    who = {"rank": state.get("rank"), "node": state.get("node"), "exit_code": None, "signal": None}
    evidence = "\n".join([*swept.processes, *(f"container {one}" for one in swept.containers)])
    advice = f"`glmspark restart {home.name}` starts it again"
    what = f"{what}: rank {state.get('rank')} on {state.get('node')}"
    reason = {"what": what, **who, "seen": evidence or None, "next": advice, "at": time.time()}
    closed = {
        "state": "failed",
        "lost": True,
        "since": time.time(),
        "family": [],
        "shared_memory": [],
        "processes": [],
    }
    with contextlib.suppress(Trouble):
        write_json(home.state_file, {**state, "reason": state.get("reason") or reason, **closed})
