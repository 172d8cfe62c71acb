"""Hidden states of chosen layers, carried from stage to stage, so that a drafter on the last stage sees all.

A drafter such as EAGLE-3, DFlash or DSpark reads the target's hidden states after several layers (auxiliary
states). vLLM's protocol for pipeline stages is `EagleModelMixin`'s: each stage packs the states of its own
layers into its `IntermediateTensors`, the last one collects them. Layer number L stands for the state after
L layers, which belongs to the stage that computed layer L - 1. vLLM's GLM classes collect states on their own
stage only; `CarriesAuxStates` makes any of them speak the protocol. patches/pipeline_aux_states.py says why.

And `SumsAuxStates` is for the decoder with DSA, whose layers hand on sums that are still to be added up over
the tensor-parallel ranks. patches/sparse_aux_states.py says why.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed import (
    get_pp_group,
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
)
from vllm.model_executor.models.interfaces import EagleModelMixin
from vllm.sequence import IntermediateTensors


def staged(model_class: type[Any]) -> type[Any]:
    """`model_class`, a decoder of vLLM's DeepSeek family, with its auxiliary states carried over stages."""
    return type(f"Staged{model_class.__name__}", (CarriesAuxStates, model_class), {})


def summed(model_class: type[Any]) -> type[Any]:
    """`model_class`, vLLM's decoder with DSA, with its auxiliary states added up over the ranks."""
    return type(f"Summed{model_class.__name__}", (SumsAuxStates, model_class), {})


class CarriesAuxStates(EagleModelMixin):
    """To stand before a decoder class: what it computes stays, its auxiliary states are carried along."""

    supports_aux_hidden_states_over_pp = True
    _layers_wanted: tuple[int, ...] = ()

    @property
    def aux_hidden_state_layers(self) -> tuple[int, ...]:  # type: ignore[override]
        """Layers whose states are wanted, all stages' together. The owner of the decoder sets it."""
        return self._layers_wanted

    @aux_hidden_state_layers.setter
    def aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        self._layers_wanted = tuple(sorted(set(layers)))
        for hook in self.__dict__.pop("_hooks", []):
            hook.remove()
        if not self._layers_wanted:
            return
        self._aux_slot_base_cached = self._aux_upstream_total_cached = 0
        self._cache_aux_pp_layout()
        self._captured: list[torch.Tensor] = []
        if not get_pp_group().is_last_rank:
            # Upstream throws these away; on the last stage it returns them.
            self._hooks = [
                self.layers[layer].register_forward_pre_hook(self._capture) for layer in self._own_layers()
            ]

    def _own_layers(self) -> list[int]:
        """Wanted layers before which this stage captures; the state at its start is the previous one's."""
        first = self.start_layer if get_pp_group().is_first_rank else self.start_layer + 1
        return [layer for layer in self._layers_wanted if first <= layer < self.end_layer]

    def _capture(self, _layer: Any, arguments: tuple[Any, ...]) -> None:
        positions, hidden_states, residual = arguments[:3]
        self._captured.append(self.whole_state(hidden_states, residual, positions))

    def whole_state(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None, positions: torch.Tensor
    ) -> torch.Tensor:
        """A layer's input, [tokens, hidden size], the same on every rank."""
        upstream = getattr(super(), "whole_state", whole)
        state: torch.Tensor = upstream(hidden_states, residual, positions)
        return state

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        """As upstream; with the states of earlier stages before this one's, in the order of the layers."""
        if not self._layers_wanted:
            return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
        pp = get_pp_group()
        self._captured.clear()
        output = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
        if pp.is_last_rank:
            hidden_states, own = output if isinstance(output, tuple) else (output, [])
            if not pp.is_first_rank and self.start_layer in self._layers_wanted:
                own = own[1:]  # the previous stage has sent it
            states = [*self.collect_remote_aux_hidden_states(intermediate_tensors), *own]
            return (hidden_states, states) if states else hidden_states
        own = list(self._captured)
        if self.end_layer in self._layers_wanted:
            own.append(self.whole_state(output["hidden_states"], output["residual"], positions))
        output.tensors.update(self.pack_local_aux_hidden_states(own))
        if intermediate_tensors is not None and not pp.is_first_rank:
            # The V2 runner hands on what came from before; the V1 runner does not.
            for number in range(self._aux_slot_base_cached):
                name = f"{self.AUX_HIDDEN_STATE_KEY}{number}"
                output.tensors.setdefault(name, intermediate_tensors[name])
        return output


class SumsAuxStates:
    """To stand before the decoder with DSA: its auxiliary states are those of the whole model.

    Its layers leave the sum over the ranks to the next layer's norm, and it adds a rank's own part to the
    residual where a state is wanted. Here that part is added up first, one all-reduce a wanted layer.
    """

    _hooked: tuple[int, ...] = ()

    def whole_state(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None, positions: torch.Tensor
    ) -> torch.Tensor:
        """A layer's input, [tokens, hidden size], added up over the ranks.

        The embedding, which has no residual yet, is whole already.
        """
        if residual is None:
            return hidden_states.clone()  # it becomes the residual, which the norms write in place
        # Some communicators work in place, and the layer still needs its own part.
        return whole(tensor_model_parallel_all_reduce(hidden_states.clone()), residual, positions)

    def _watch(self, wanted: tuple[int, ...]) -> None:
        for hook in self.__dict__.pop("_sum_hooks", []):
            hook.remove()
        if behind := [layer for layer in wanted if layer >= len(self.layers)]:  # type: ignore[attr-defined]
            raise ValueError(
                f"the drafter reads the state after layer {behind[0]}; GLM with DSA gives none behind its "
                f"last layer ({len(self.layers)} layers)"  # type: ignore[attr-defined]
            )
        self._sums: list[torch.Tensor] = []
        self._sum_hooks = [
            self.layers[layer].register_forward_pre_hook(self._sum)  # type: ignore[attr-defined]
            for layer in wanted
            if self.start_layer <= layer < self.end_layer  # type: ignore[attr-defined]
        ]
        self._hooked = wanted

    def _sum(self, _layer: Any, arguments: tuple[Any, ...]) -> None:
        positions, hidden_states, residual = arguments[:3]
        self._sums.append(self.whole_state(hidden_states, residual, positions))

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        """As upstream, with the states of this stage added up."""
        wanted: tuple[int, ...] = tuple(sorted(self.aux_hidden_state_layers))  # type: ignore[attr-defined]
        if wanted != self._hooked:
            self._watch(wanted)
        if wanted:
            self._sums.clear()
        output = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)  # type: ignore[misc]
        if not isinstance(output, tuple):
            return output
        return output[0], list(self._sums)


def whole(
    hidden_states: torch.Tensor, residual: torch.Tensor | None, positions: torch.Tensor
) -> torch.Tensor:
    """A layer's input as the next stage would see it, of all tokens where each rank holds a part of them."""
    state = hidden_states if residual is None else hidden_states + residual
    if state.shape[0] != positions.shape[0]:
        state = tensor_model_parallel_all_gather(state, 0)[: positions.shape[0]]
    return state
