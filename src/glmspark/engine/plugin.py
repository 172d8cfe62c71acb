"""The entry point in `vllm.general_plugins`: every vLLM process loads it, whatever started it.

vLLM calls `register` in the API server, the engine core and each worker, before it reads its configuration.
It may be called more than once per process. `VLLM_PLUGINS` (vLLM's own variable) chooses which plugins load.
"""

from __future__ import annotations

import logging

from glmspark.engine import observe
from glmspark.engine.patch import Outcome, State

# vLLM configures the logger "vllm" only; as its child our lines reach the same place in the same format.
logger = logging.getLogger("vllm.glmspark")

_outcomes: list[Outcome] | None = None


def register() -> None:
    """Apply the patches that this vLLM and platform need. Does nothing the second time.

    Raises `PatchRefusedError` where a needed patch does not fit the code at hand: the launch stops there.
    """
    observe.register()
    global _outcomes  # noqa: PLW0603 - one vLLM per process, patched once
    if _outcomes is not None:
        return
    from glmspark.engine import registry
    from glmspark.engine.code import installed_code
    from glmspark.engine.patch import Target

    _outcomes = registry.apply(Target.at_hand(), installed_code())
    for outcome in _outcomes:
        level = logging.WARNING if outcome.state is State.SKIPPED else logging.INFO
        logger.log(level, "glmspark patch %s: %s (%s)", outcome.patch.name, outcome.state, outcome.why)


def outcomes() -> list[Outcome]:
    """What `register` did in this process; empty before it ran."""
    return list(_outcomes or [])
