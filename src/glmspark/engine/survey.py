"""The state of every patch on the vLLM at hand, for people and programs that ask from outside an engine."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Any

from glmspark.engine.code import Code, CodeNotFoundError
from glmspark.engine.patch import Outcome, Target
from glmspark.engine.registry import PATCHES, apply
from glmspark.engine.start_method import VARIABLE, prepared


@dataclass(frozen=True)
class Survey:
    """The vLLM at hand (None where there is none) and what becomes of each patch on it (empty then)."""

    target: Target | None
    outcomes: tuple[Outcome, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON data: `vllm` (version, platform, capability, dense, or null) and `patches`."""
        states = {outcome.patch.name: outcome for outcome in self.outcomes}
        target = self.target
        return {
            "vllm": target
            and {
                "version": target.version,
                "platform": target.platform,
                "capability": target.capability,
                "dense_attention": target.dense,
            },
            "patches": [
                {
                    "name": patch.name,
                    "title": patch.title,
                    "state": str(states[patch.name].state) if states else None,
                    "why": states[patch.name].why if states else None,
                    "upstream": patch.upstream,
                    "reason": patch.reason,
                    "link": patch.link,
                    "versions": patch.versions,
                }
                for patch in PATCHES
            ],
        }


def survey() -> Survey:
    """Apply the patches in this process, as in every rank's, and report what became of each.

    Takes seconds, for it imports vLLM, and keeps standard output clean of what that prints. Where vLLM is not
    installed, nothing is imported. Raises `PatchRefusedError` for a bad GLMSPARK_* variable only: a patch
    that does not fit is in the report.
    """
    try:
        code = Code.installed()
    except CodeNotFoundError:
        return Survey(None, ())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if prepared(os.environ) is not None:  # the answer is for a rank, and each of them is prepared so
        os.environ[VARIABLE] = "fork"
    with contextlib.redirect_stdout(sys.stderr):
        target = Target.at_hand()
        outcomes = apply(target, code, refuse=False)
    return Survey(target, tuple(outcomes))
