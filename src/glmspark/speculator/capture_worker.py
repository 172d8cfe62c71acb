"""In a worker of vLLM: hidden states of chosen layers, kept as the model computes them.

Given to vLLM as `worker_extension_cls`; its methods are called through `collective_rpc`. Hooks look at the
model from outside, so nothing of what it computes changes; the engine runs without CUDA graphs, in which no
hook would be called.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class CapturesStates:
    """Methods that a worker gets."""

    def glmspark_capture(self, layers: list[int]) -> None:
        """Keep from now on what enters the model, its states after `layers` and its result.

        Raises ValueError for a layer that this rank does not have: captures run without pipeline stages.
        """
        from glmspark.engine.aux_states import whole

        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        decoder = model.model
        known = len(decoder.layers)
        if bad := [layer for layer in layers if not 0 < layer < known]:
            raise ValueError(f"the target has {known} layers: the state after layer {bad[0]} is not captured")
        state_of = getattr(decoder, "whole_state", whole)
        self._glmspark_steps: list[dict[str, Any]] = []
        step: dict[str, Any] = {}

        def begin(_module: Any, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            step.clear()
            step["tokens"], step["positions"] = kwargs["input_ids"], kwargs["positions"]
            step["states"] = []

        def state(_layer: Any, args: tuple[Any, ...]) -> None:
            positions, hidden_states, residual = args[:3]
            step["states"].append(state_of(hidden_states, residual, positions).to("cpu", copy=True))

        def end(_module: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any], output: Any) -> None:
            last = output[0] if isinstance(output, tuple) else output
            kept = {name: step[name].to("cpu", copy=True) for name in ("tokens", "positions")}
            kept |= {"states": step["states"], "last": last.to("cpu", copy=True)}
            self._glmspark_steps.append(kept)

        self._glmspark_hooks = [
            model.register_forward_pre_hook(begin, with_kwargs=True),
            *(decoder.layers[layer].register_forward_pre_hook(state) for layer in layers),
            model.register_forward_hook(end, with_kwargs=True),
        ]

    def glmspark_captured(self, path: str) -> int:
        """Stop keeping, and write what was kept to a file, on the first rank; returns its tokens.

        The file is safetensors: tokens, positions [n], states [n, layers * hidden size], last [n, hidden].
        """
        import torch
        from safetensors.torch import save_file

        for hook in self._glmspark_hooks:
            hook.remove()
        steps, self._glmspark_steps = self._glmspark_steps, []
        if self.rank or not steps:  # type: ignore[attr-defined]
            return 0
        found = {
            "tokens": torch.cat([s["tokens"] for s in steps]).to(torch.int64),
            "positions": torch.cat([s["positions"] for s in steps]).to(torch.int64),
            "states": torch.cat([torch.cat(s["states"], dim=-1) for s in steps]),
            "last": torch.cat([s["last"] for s in steps]),
        }
        aside = f"{path}.{os.getpid()}"
        save_file(found, aside)
        Path(aside).replace(path)
        return len(found["tokens"])
