"""vLLM's executor on rank 0: each of its calls goes to every rank's worker, rank 0's own among them."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from vllm.utils.network_utils import get_open_port, join_host_port
from vllm.utils.system_utils import get_mp_context
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.multiproc_executor import set_multiprocessing_worker_envs

from glmspark.engine.lockstep import LockstepError, facts, hangup, memory
from glmspark.engine.lockstep.link import Link
from glmspark.engine.lockstep.local import run_local_worker
from glmspark.engine.lockstep.meeting import Gathering, listen
from glmspark.engine.lockstep.settings import Settings
from glmspark.engine.lockstep.switchboard import Answers, Pending, Switchboard
from glmspark.engine.lockstep.worker import BOOT

logger = logging.getLogger("vllm.glmspark.lockstep")

_LEAVE = 2.0  # seconds rank 0's own worker gets to end by itself


def check_layout(parallel: Any, settings: Settings) -> None:
    """Raises LockstepError where vLLM's layout is not that of the ranks that were started."""
    if parallel.data_parallel_size > 1:
        raise LockstepError(
            f"--data-parallel-size {parallel.data_parallel_size}: lockstep has one scheduler; start one "
            f"deployment for each replica"
        )
    if parallel.world_size != settings.world:
        raise LockstepError(
            f"WORLD_SIZE={settings.world}, but the layout has {parallel.world_size} ranks: tensor parallel "
            f"size {parallel.tensor_parallel_size} x pipeline parallel size {parallel.pipeline_parallel_size}"
        )


class LockstepExecutor(Executor):
    """One scheduler, here; one worker a rank, wherever a launcher has started it."""

    supports_pp = True

    def _init_executor(self) -> None:
        self.settings = Settings.read()
        hangup.end_with_parent(os._exit)
        self._begun = time.monotonic()
        self._started = False
        self._sampled_apart = (
            self.model_config.runner_type == "generate"
            and not getattr(self.model_config, "is_diffusion", False)
            and not self.vllm_config.is_mm_encoder_only
            and self.vllm_config.kv_transfer_config is None
            and self.vllm_config.ec_transfer_config is None
        )
        self._board: Switchboard | None = None
        self._process: BaseProcess | None = None
        check_layout(self.parallel_config, self.settings)
        self.output_rank = self.settings.world - (
            self.parallel_config.tensor_parallel_size * self.parallel_config.prefill_context_parallel_size
        )
        try:
            self._open()
        except BaseException:
            self.shutdown()
            raise

    def _open(self) -> None:
        """Start the own worker, meet the others, and have all of them load."""
        door = listen(self.settings) if self.settings.world > 1 else None
        # Started before anyone connects, so it inherits no connection; it loads nothing before all agree.
        links = {0: self._start_worker(door)}
        if door is not None:
            mine = facts.gather(self.vllm_config)
            logger.info("lockstep: facts of rank 0 are %s (%d)", facts.digest(mine), len(mine))
            links |= Gathering(self.settings, door, mine).run()
        self._board = Switchboard(links)
        address = join_host_port(self.settings.host_ip, get_open_port())
        try:
            self._board.call(BOOT, (address,), limit=self._limit(), vital=True).result()
        finally:
            memory.forget(address)

    def _start_worker(self, door: socket.socket | None) -> Link:
        """Rank 0's own worker, in a process of its own."""
        set_multiprocessing_worker_envs(1)
        here, there = socket.socketpair()
        keys = os.urandom(32), os.urandom(32)
        foreign = [here] if door is None else [here, door]
        self._process = get_mp_context().Process(
            target=run_local_worker,
            args=(self.vllm_config, there, keys, self.settings.local_rank, foreign),
            name="VllmWorker-0",
            daemon=True,
        )
        self._process.start()
        there.close()
        return Link(here, *keys, "rank 0's own worker")

    @property
    def board(self) -> Switchboard:
        """The ranks. Raises LockstepError where they have not come together, or were let go."""
        if self._board is None:
            raise LockstepError("the ranks are not together")
        return self._board

    # -- calls --------------------------------------------------------------------------------------------

    def collective_rpc(  # type: ignore[override]
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """Have all ranks run `method` and return their answers, by rank. timeout: seconds; see Pending."""
        name = method if isinstance(method, str) else cloudpickle.dumps(method, pickle.HIGHEST_PROTOCOL)
        pending = self.board.call(
            name, args, kwargs, limit=self._limit(), vital=not self._started, finish=_by_rank
        )
        return pending if non_block else pending.result(timeout)

    def compile_or_warm_up_model(self) -> None:
        """The last call of a start. From then on an exception in a call that is no step is its caller's."""
        super().compile_or_warm_up_model()
        self._started = True

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:  # type: ignore[override]
        """One step of the model on every rank.

        Where tokens are sampled afterwards by a call of their own, this one has no answer but an exception.
        So it is not waited for: that next call is there when the ranks are done, and a step has one round
        trip.
        """
        self._started = True
        if self._sampled_apart and scheduler_output.total_num_scheduled_tokens > 0:
            self.board.tell("execute_model", (scheduler_output,))
            if not non_block:
                return None
            nothing: Future[None] = Future()
            nothing.set_result(None)
            return nothing
        pending = self._step("execute_model", scheduler_output)
        return pending if non_block else pending.result()

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:  # type: ignore[override]
        """The step's second half, on every rank."""
        pending = self._step("sample_tokens", grammar_output)
        return pending if non_block else pending.result()

    def execute_dummy_batch(self) -> None:
        """A step without requests."""
        self._step("execute_dummy_batch", aggregate=False).result()

    def take_draft_token_ids(self) -> Any:
        """What the last stage's drafter proposes."""
        return self._step("take_draft_token_ids", aggregate=False).result()

    def _step(self, method: str, *args: Any, aggregate: bool = True) -> Pending:
        """A call that changes what the ranks hold, answered by the rank that samples.

        With a KV or encoder cache connector every rank has something to say of a step, which is merged into
        the answer of that rank.
        """
        found = (self.kv_output_aggregator, self.ec_output_aggregator) if aggregate else ()
        aggregators = [one for one in found if one is not None]
        rank = self.output_rank

        def finish(answers: Answers) -> Any:
            outputs = _by_rank(answers)
            result = outputs[rank] if aggregators else answers[rank]
            for one in aggregators:
                result = one.aggregate(outputs, output_rank=rank)
            return result

        only = None if aggregators else rank
        return self.board.call(method, args, only=only, limit=self.settings.step, vital=True, finish=finish)

    def _limit(self) -> float:
        """Seconds for a call that is no step: what is left of the start, if that is more."""
        left = self._begun + self.settings.start - time.monotonic()
        return self.settings.call if self._started else max(left, self.settings.call)

    # -- health and end -----------------------------------------------------------------------------------

    def register_failure_callback(self, callback: Callable[[], None]) -> None:
        """Tell the engine core when the deployment fails while it waits for requests."""
        self.board.on_failure(callback)

    def check_health(self) -> None:
        """Raises LockstepError where the deployment has failed."""
        self.board.check()

    def shutdown(self) -> None:
        """Let every rank end; kill the own worker where it does not."""
        if self._board is not None:
            self._board.close()
            self._board = None
        process, self._process = self._process, None
        if process is not None:
            process.join(_LEAVE)
            if process.is_alive():
                process.kill()
                process.join()

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """Answers come when they are read, so a second step can be sent before the first is answered."""
        return True


def _by_rank(answers: Answers) -> list[Any]:
    return [answers[rank] for rank in sorted(answers)]
