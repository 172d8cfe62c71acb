"""Rank 0's own worker, in a child of the engine core, so that a step that hangs there can be given up."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterable
from typing import Any

from glmspark.engine.lockstep.hangup import watch
from glmspark.engine.lockstep.link import Link, LinkError

logger = logging.getLogger("vllm.glmspark.lockstep")


def run_local_worker(
    vllm_config: Any,
    sock: socket.socket,
    keys: tuple[bytes, bytes],
    local_rank: int,
    foreign: Iterable[socket.socket],
) -> None:
    """The child's whole life; ends the process. keys: as the parent has them. foreign: the parent's sockets,
    which a fork has inherited and which must not stay open here."""
    for other in foreign:
        other.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches it; rank 0 decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from vllm.logger import configure_logging

    from glmspark.engine.lockstep.worker import LockstepWorker

    if logging_config := getattr(vllm_config, "logging_config", None):
        configure_logging(logging_config)
    link = Link(sock, keys[1], keys[0], "rank 0")
    watch(link.fileno(), None, os._exit)
    code = 0
    try:
        if reason := LockstepWorker(vllm_config, link, 0, local_rank).run():
            logger.info("lockstep: rank 0's worker ends: %s", reason.splitlines()[0])
    except LinkError as error:
        logger.info("lockstep: rank 0's worker ends: %s", error)
        code = 1
    finally:
        os._exit(code)
