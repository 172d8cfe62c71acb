"""Where the plugin meets a GLM's configuration: before vLLM chooses platform defaults, in every process that
makes one.

vLLM keeps one `VerifyAndUpdateConfig` class per architecture in `MODELS_CONFIG_MAP` and calls it while
building `VllmConfig`. `on_glm_config` puts a subclass of the registered one there, which first does what
upstream does and then runs the patches' own rules. An error raised by a rule is the launch's error, before
any rank loads a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glmspark.engine.code import Code, CodeNotFoundError

ARCHITECTURE = "GlmMoeDsaForCausalLM"
MODULE = "vllm.model_executor.models.config"

Rule = Callable[[Any], None]

_rules: list[Rule] = []


def on_glm_config(rule: Rule) -> None:
    """Have `rule(vllm_config)` called for every `VllmConfig` of a GLM, in the order of registration."""
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    upstream = MODELS_CONFIG_MAP[ARCHITECTURE]
    if not _rules:

        class GlmConfig(upstream):  # type: ignore[valid-type, misc]
            """Upstream's configuration of the architecture, then glmspark's rules."""

            @staticmethod
            def verify_and_update_config(vllm_config: Any) -> None:
                """Upstream's defaults first: a rule sees the configuration as vLLM would run it."""
                upstream.verify_and_update_config(vllm_config)
                for registered in _rules:
                    registered(vllm_config)

        MODELS_CONFIG_MAP[ARCHITECTURE] = GlmConfig
    _rules.append(rule)


def missing_hook(code: Code) -> str | None:
    """Why `on_glm_config` would not work on this code; None if it would."""
    upstream = code.find(MODULE, ARCHITECTURE)
    if not any(getattr(item, "name", "") == "verify_and_update_config" for item in upstream.body):
        return f"{MODULE}.{ARCHITECTURE} has no verify_and_update_config"
    if f'"{ARCHITECTURE}": {ARCHITECTURE}' not in code.source(MODULE):
        return f"MODELS_CONFIG_MAP in {MODULE} has no entry {ARCHITECTURE}"
    try:
        code.find("vllm.config.vllm", "VllmConfig.try_verify_and_update_config")
    except CodeNotFoundError as error:
        return str(error)
    return None
