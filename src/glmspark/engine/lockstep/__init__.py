"""Lockstep: one scheduler on rank 0 drives workers that any launcher has started, one process each.

Rank 0 runs vLLM's own server and engine core; its executor (executor.py) sends every call that upstream would
send through shared memory over TCP instead, to ranks that prove themselves first (handshake.py, meeting.py)
and then only do as they are told (worker.py). With one scheduler nothing has to be deterministic.
"""

from __future__ import annotations

BACKEND = "glmspark-lockstep"
"""What `--distributed-executor-backend` calls it."""


class LockstepError(RuntimeError):
    """The ranks cannot work together, or no longer. The message says which rank and what was seen."""
