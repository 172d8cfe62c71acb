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
_rules_before: list[Rule] = []


def on_glm_config(rule: Rule) -> None:
    """Have `rule(vllm_config)` called for every `VllmConfig` of a GLM, in the order of registration."""
    _hook()
    _rules.append(rule)


def before_glm_config(rule: Rule) -> None:
    """The same before upstream's defaults: for settings that upstream leaves alone where they are set."""
    _hook()
    _rules_before.append(rule)


def _hook() -> None:
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    upstream = MODELS_CONFIG_MAP[ARCHITECTURE]
    if not (_rules or _rules_before):

        class GlmConfig(upstream):  # type: ignore[valid-type, misc]
            """Upstream's configuration of the architecture, then glmspark's rules."""

            @staticmethod
            def verify_and_update_config(vllm_config: Any) -> None:
                """Most rules come after upstream's defaults: they see the configuration as it would run."""
                for registered in _rules_before:
                    registered(vllm_config)
                upstream.verify_and_update_config(vllm_config)
                for registered in _rules:
                    registered(vllm_config)

        MODELS_CONFIG_MAP[ARCHITECTURE] = GlmConfig


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
