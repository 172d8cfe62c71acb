"""A rank's worker: it does what rank 0 calls for, in that order, until it is told that it may end."""

from __future__ import annotations

import logging
import os
import pickle
import queue
import threading
import traceback
from multiprocessing import Lock
from typing import Any

from vllm.envs import enable_envs_cache
from vllm.platforms import current_platform
from vllm.tracing import maybe_init_worker_tracer
from vllm.v1.executor.multiproc_executor import WorkerProc
from vllm.v1.executor.vllm_net_devices import set_worker_net_device
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.serial_utils import run_method
from vllm.v1.worker.worker_base import WorkerWrapperBase

from glmspark.engine.lockstep import cores, memory
from glmspark.engine.lockstep.link import Frame, Link
from glmspark.engine.lockstep.settings import AGENT_STORE
from glmspark.engine.lockstep.switchboard import BYE, NOBODY

logger = logging.getLogger("vllm.glmspark.lockstep")

BOOT = "__boot__"
"""The method of the first call: build the worker, join the group at the address given, load the model."""


class LockstepWorker:
    """One rank's worker and its link to rank 0."""

    def __init__(self, vllm_config: Any, link: Link, rank: int, local_rank: int) -> None:
        self.vllm_config = vllm_config
        self.link = link
        self.rank = rank
        self.local_rank = local_rank
        self.worker: WorkerWrapperBase | None = None
        self._address = ""
        self._sending = threading.Lock()
        self._outputs: queue.SimpleQueue[tuple[int, AsyncModelRunnerOutput]] | None = None

    def run(self) -> str | None:
        """Serve calls until the last one; the reason of the end where rank 0 gave one.

        Raises LinkError where rank 0 goes without a word or says what it cannot have said.
        """
        while True:
            number, method, args, kwargs, only = pickle.loads(self.link.receive())  # noqa: S301 - authenticated
            if method == BYE:
                return args[0] if args else None
            try:
                value = self._run(method, args, kwargs)
                if only == NOBODY and value is not None:
                    raise TypeError(f"{method} returned a {type(value).__name__} that nobody waits for")
            except Exception as error:  # rank 0 decides what becomes of it
                logger.exception("lockstep: rank %d failed in %s", self.rank, method)
                self._refuse(number, error)
                continue
            if only is None or only == self.rank:
                self._answer(number, value)

    def _run(self, method: str | bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if method == BOOT:
            self._address = args[0]
            return self.boot(*args)
        if self._address:  # all ranks have answered the first call, so they have met
            memory.forget(self._address)
            self._address = ""
        return run_method(self.worker, method, args, kwargs)

    def boot(self, address: str) -> None:
        """What vLLM's own executors do in a worker's process before its first call. address: host:port."""
        set_worker_net_device(self.local_rank, self.vllm_config)
        maybe_init_worker_tracer("vllm.worker", "worker", f"Worker_{self.rank}")
        # torchrun's store would be taken for the one that rank 0's worker is about to open.
        os.environ.pop(AGENT_STORE, None)
        parallel = self.vllm_config.parallel_config
        if current_platform.is_cpu():
            cores.bind(self.local_rank, parallel.world_size)
        self.worker = WorkerWrapperBase(rpc_rank=0, global_rank=self.rank)
        self.worker.init_worker(
            [
                {
                    "vllm_config": self.vllm_config,
                    "local_rank": self.local_rank,
                    "rank": self.rank,
                    "distributed_init_method": memory.join_address(address),
                    "is_driver_worker": self.rank % parallel.tensor_parallel_size == 0,
                    "shared_worker_lock": Lock(),
                }
            ]
        )
        WorkerProc.setup_proc_title_and_log_prefix(enable_ep=parallel.enable_expert_parallel)
        self.worker.init_device()
        WorkerProc.setup_proc_title_and_log_prefix(enable_ep=parallel.enable_expert_parallel)
        self.worker.load_model()
        current_platform.update_block_size_for_backend(self.vllm_config)
        if self.vllm_config.scheduler_config.async_scheduling:
            self._outputs = queue.SimpleQueue()
            threading.Thread(target=self._copy_outputs, name="LockstepOutputs", daemon=True).start()
        enable_envs_cache()

    def _answer(self, number: int, value: Any) -> None:
        if isinstance(value, AsyncModelRunnerOutput):
            if self._outputs is not None:  # its copy from the device is waited for elsewhere
                self._outputs.put((number, value))
                return
            value = value.get_output()
        self._send(number, True, value)

    def _refuse(self, number: int, error: Exception) -> None:
        last = "".join(traceback.format_exception(error))[-4000:]
        self._send(number, False, f"{type(error).__name__}: {error}\n{last}")

    def _send(self, number: int, ok: bool, value: Any) -> None:
        frame = Frame.of(pickle.dumps((number, ok, value), pickle.HIGHEST_PROTOCOL))
        with self._sending:
            self.link.send(frame)

    def _copy_outputs(self) -> None:
        assert self._outputs is not None  # noqa: S101 - set before this thread was started
        device = getattr(self.worker, "device", None)
        if device is not None:
            current_platform.set_device(device)  # else CUDA makes a context on device 0 for this thread
        while True:
            number, output = self._outputs.get()
            try:
                self._send(number, True, output.get_output())
            except Exception as error:  # as in run
                logger.exception("lockstep: rank %d failed to copy its output", self.rank)
                self._refuse(number, error)
