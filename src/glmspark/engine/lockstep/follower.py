"""A rank other than 0: one process, which is the worker itself."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from typing import NoReturn

from glmspark.engine.lockstep import facts
from glmspark.engine.lockstep.hangup import RANK_0_GONE, STOPPED, signal_bytes, watch
from glmspark.engine.lockstep.link import LinkError
from glmspark.engine.lockstep.meeting import join
from glmspark.engine.lockstep.settings import Settings

logger = logging.getLogger("vllm.glmspark.lockstep")

FAILED = 1


def follow(args: argparse.Namespace, settings: Settings) -> NoReturn:
    """Find rank 0, agree with it, and work for it.

    Ends the process: 0 when told to stop, by a signal or by rank 0; 1 when the deployment failed; 3 when rank
    0 is gone. Raises LockstepError where the ranks do not come together.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(STOPPED))
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.executor.multiproc_executor import WorkerProc, set_multiprocessing_worker_envs

    from glmspark.engine.lockstep.executor import check_layout

    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER, headless=True
    )
    check_layout(config.parallel_config, settings)
    mine = facts.gather(config)
    logger.info("lockstep: facts of rank %d are %s (%d)", settings.rank, facts.digest(mine), len(mine))
    link = join(settings, mine)
    watch(link.fileno(), signal_bytes(), _end)
    set_multiprocessing_worker_envs(1)
    WorkerProc.setup_proc_title_and_log_prefix(enable_ep=False)
    from glmspark.engine.lockstep.worker import LockstepWorker

    try:
        reason = LockstepWorker(config, link, settings.rank, settings.local_rank).run()
    except LinkError as error:
        logger.error("lockstep: rank 0 is gone (%s); ending this rank", error)
        _end(RANK_0_GONE)
    if reason is not None:
        logger.error("lockstep: rank 0 ends the deployment: %s", reason)
        _end(FAILED)
    logger.info("lockstep: rank 0 says that it is over")
    _end(STOPPED)


def _end(code: int) -> NoReturn:
    """Leave at once: other ranks may be gone, and taking groups apart would wait for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
