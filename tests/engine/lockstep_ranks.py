"""Ranks in lockstep: the same command for each, told apart by torchrun's variables."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from glmspark.engine.lockstep import BACKEND
from glmspark.engine.lockstep.settings import SECRET_FILE
from tests.engine.ranks import FLAGS, Ranks


def write_secret(path: Path) -> Path:
    """A fresh secret in a file that only its owner may read."""
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


@dataclass
class LockstepRanks(Ranks):
    """A layout's ranks, started as a launcher would."""

    words: list[str] = field(default_factory=list)

    def command(self, rank: int) -> list[str]:
        """The argv of one rank; only rank 0 listens."""
        import sys

        argv = [sys.executable, "-m", "glmspark.engine.serve", str(self.checkpoint), "--enforce-eager"]
        for name, value in {**FLAGS, **self.flags}.items():
            argv += [f"--{name}", value] if value else [f"--{name}"]
        argv += ["-tp", str(self.layout.tp), "-pp", str(self.layout.pp), *self.words]
        argv += ["--distributed-executor-backend", BACKEND]
        return argv if rank else [*argv, "--host", "127.0.0.1", "--port", str(self.port)]

    def variables(self, rank: int) -> dict[str, str]:
        """torchrun's variables, and the secret."""
        secret = self.logs / "secret"
        if not secret.exists():
            write_secret(secret)
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.layout.world),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.master_port),
            SECRET_FILE: str(secret),
        }
