"""What a lockstep rank is told by its environment: torchrun's variables, the secret's file, the deadlines."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from glmspark.engine.addresses import HOST, AddressError, Rank
from glmspark.engine.lockstep import BACKEND

SECRET_FILE = "GLMSPARK_LOCKSTEP_SECRET_FILE"  # noqa: S105 - the variable's name
START, STEP, CALL = "GLMSPARK_LOCKSTEP_START_S", "GLMSPARK_LOCKSTEP_STEP_S", "GLMSPARK_LOCKSTEP_CALL_S"
UPSTREAM_STEP = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun: its own store listens on MASTER_PORT then."""

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SHORTEST_SECRET, LONGEST_SECRET = 32, 4096  # bytes


class SettingsError(AddressError):
    """A variable or the secret's file is missing or cannot be right: wrong use."""


@dataclass(frozen=True)
class Settings:
    """One rank's place and limits.

    master_addr, port: where rank 0 waits for the others. host_ip: this rank's own address. secret: what all
    ranks share, empty where there is one rank. start, step, call: seconds until rank 0 must serve, for one
    step of the model, and for any other call.
    """

    rank: int
    world: int
    local_rank: int
    master_addr: str
    port: int
    host_ip: str
    secret: bytes = field(repr=False)
    start: float = 1800.0
    step: float = 300.0
    call: float = 600.0

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """The settings in `environ`. Raises SettingsError naming the variable or file that is wrong."""
        if missing := [name for name in LAUNCHER if not environ.get(name)]:
            raise SettingsError(
                f"{BACKEND} needs {', '.join(missing)} in the environment of every rank, "
                f"as torchrun and other launchers set them"
            )
        world = _number(environ, "WORLD_SIZE", 1, 1024)
        rank = _number(environ, "RANK", 0, world - 1)
        shifted = environ.get(AGENT_STORE, "").lower() in {"1", "true"}
        return cls(
            rank=rank,
            world=world,
            local_rank=_number(environ, "LOCAL_RANK", 0, world - 1),
            master_addr=environ["MASTER_ADDR"],
            port=_number(environ, "MASTER_PORT", 1, 65534) + shifted,
            host_ip=environ.get(HOST, "127.0.0.1"),
            secret=_read_secret(environ.get(SECRET_FILE, ""), rank) if world > 1 else b"",
            start=_seconds(environ, START, 1800.0),
            step=_seconds(environ, STEP, _seconds(environ, UPSTREAM_STEP, 300.0)),
            call=_seconds(environ, CALL, 600.0),
        )

    @property
    def place(self) -> Rank:
        """The same in the terms of the address checks."""
        return Rank(self.world, self.rank, self.master_addr, self.port)


def _number(environ: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environ[name]
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        raise SettingsError(f"{name}={text!r} is no number from {least} to {most}")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1e6:
        raise SettingsError(f"{name}={text!r} is no number of seconds above 0")
    return value


def _read_secret(name: str, rank: int) -> bytes:
    """The content of the secret's file, which nobody but its owner may read."""
    if not name:
        raise SettingsError(
            f"rank {rank}: {SECRET_FILE} is not set. Write the same secret on every rank's machine, e.g. "
            f"`(umask 077; openssl rand -hex 32 > FILE)`, and name the file there."
        )
    path = Path(name)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise SettingsError(f"rank {rank}: {SECRET_FILE}={name} is not a regular file")
            if mode & 0o077:
                raise SettingsError(
                    f"rank {rank}: {name} may be read by others "
                    f"(mode {stat.S_IMODE(mode):04o}): chmod 600 {name}"
                )
            secret = file.read(LONGEST_SECRET + 1).strip()
    except OSError as error:
        raise SettingsError(f"rank {rank}: cannot read {SECRET_FILE}={name}: {error.strerror}") from error
    if not SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET:
        raise SettingsError(
            f"rank {rank}: {name} holds {min(len(secret), LONGEST_SECRET + 1)} bytes; "
            f"a secret has {SHORTEST_SECRET} to {LONGEST_SECRET}"
        )
    return secret
