"""vLLM's CPU worker, made fit for pipeline parallelism. Imported in worker processes only."""

from __future__ import annotations

from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker


class PipelineCPUWorker(CPUWorker):
    """Gives the model runner the two attributes that only a GPU start, or only the last stage, would set.

    - `intermediate_tensors`: the buffer a later stage receives hidden states into. Upstream allocates it in
      the profiling run, which the CPU skips when nothing is compiled.
    - `drafter`: set by upstream on the last stage only, read on every stage when a drafter is configured.
    """

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Load as upstream does, then set what is missing."""
        super().load_model(load_dummy_weights=load_dummy_weights)
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens,
                dtype=runner.model_config.dtype,
                device=runner.device,
            )
        if not hasattr(runner, "drafter"):
            runner.drafter = None
