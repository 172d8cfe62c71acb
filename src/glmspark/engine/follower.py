"""A rank without an API: it ends when it is told to, when its worker has died, or when rank 0 is gone.

vLLM's own headless mode leaves two things open. Told to stop, it waits for a worker that sits in a socket and
never answers (14 s). And nothing tells it that rank 0 has died, so its worker stays, with all its memory.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

logger = logging.getLogger("vllm.glmspark.follower")

# Silence for idle + interval * count seconds means that rank 0's machine is gone.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}

WORKER_DIED = 1
RANK_0_GONE = 3

_ending = threading.Lock()


def follow(args: argparse.Namespace) -> NoReturn:
    """Run this node's workers until SIGTERM, SIGINT, the death of a worker, or of rank 0.

    Ends the process with 0 when told to, with 1 when a worker died, with 3 when rank 0 is gone.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    engine_args = AsyncEngineArgs.from_cli_args(args)
    config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER, headless=True)
    parallel = config.parallel_config

    def stop(number: int, _frame: FrameType | None) -> None:
        logger.info("follower: %s", signal.Signals(number).name)
        end(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    logger.info("follower: rank 0 is at %s:%d", parallel.master_addr, parallel.master_port)
    executor = MultiprocExecutor(config, monitor_workers=False)
    # All groups are formed here: rank 0's store listens, and a connection to it lives as long as its worker.
    link = connect(parallel.master_addr, parallel.master_port)
    threading.Thread(target=watch, args=(link, lambda: end(RANK_0_GONE)), daemon=True).start()
    executor.start_worker_monitor(inline=True)
    end(WORKER_DIED)
    while True:  # another thread is ending this process
        signal.pause()


def connect(address: str, port: int) -> socket.socket:
    """A connection to rank 0 that notices a machine that has vanished. Raises OSError where there is none."""
    link = socket.create_connection((address, port), timeout=10)
    link.settimeout(None)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return link


def watch(link: socket.socket, gone: Callable[[], object]) -> None:
    """Call `gone()` when the other side of `link` closes or cannot be reached any more."""
    try:
        while link.recv(4096):
            pass
        reason = "it closed the connection"
    except OSError as error:
        reason = str(error)
    logger.error("follower: rank 0 is gone (%s); ending this rank", reason)
    gone()


def end(code: int) -> None:
    """End the workers, which have nothing to hand over, then this process: an orderly exit takes seconds.

    The first reason counts. Whoever comes later (a killed worker is noticed, too) returns at once.
    """
    if not _ending.acquire(blocking=False):
        return
    workers = multiprocessing.active_children()
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(timeout=5)
    os._exit(code)
