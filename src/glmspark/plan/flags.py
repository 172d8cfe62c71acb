"""A recipe's engine settings as vLLM's own flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from glmspark.config.recipe import Draft, Engine, Recipe

__all__ = ["FlagValue", "engine_env", "engine_flags", "flag_words", "speculative_config"]

FlagValue = bool | int | float | str | tuple[str, ...]
"""True: the bare flag; False: its --no- form; a tuple: several words after one flag."""


def engine_flags(
    recipe: Recipe, *, tp: int, pp: int, dcp: int | None = None, draft_dir: str | None = None
) -> dict[str, FlagValue]:
    """vLLM's flags without dashes, e.g. {"max-model-len": 2048}: the same for every rank.

    dcp: instead of the layout's. draft_dir: where the drafter's checkpoint lies, for recipes that name one.
    What differs per rank (addresses, node rank, port) is the launcher's.
    """
    engine = recipe.engine
    flags: dict[str, FlagValue] = {
        "served-model-name": recipe.model.served_name,
        "tensor-parallel-size": tp,
        "pipeline-parallel-size": pp,
        "dtype": engine.dtype,
        "max-model-len": engine.max_model_len,
        "max-num-seqs": engine.max_num_seqs,
        "max-num-batched-tokens": engine.max_num_batched_tokens,
        "kv-cache-memory-bytes": engine.kv_cache_memory,
    }
    dcp = recipe.layout.dcp if dcp is None else dcp
    if dcp > 1:
        flags["decode-context-parallel-size"] = dcp
    if engine.enforce_eager:
        flags["enforce-eager"] = True
    if engine.reasoning_parser:
        flags["reasoning-parser"] = engine.reasoning_parser
    if engine.tool_call_parser:
        flags["enable-auto-tool-choice"] = True
        flags["tool-call-parser"] = engine.tool_call_parser
    if recipe.draft is not None:
        flags["speculative-config"] = _value(speculative_config(recipe.draft, draft_dir))
    for name, value in engine.args.items():
        flags[name.replace("_", "-")] = _value(value)
    return flags


def speculative_config(draft: Draft, directory: str | None) -> dict[str, Any]:
    """vLLM's speculative_config of a drafter. directory: where its checkpoint lies; its source's own name
    stands in where nobody has looked yet."""
    config: dict[str, Any] = {"method": draft.method, "num_speculative_tokens": draft.tokens}
    if draft.source is not None:
        config["model"] = directory or draft.source.name
    return config | draft.args


def _value(value: Any) -> FlagValue:
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, list | tuple):
        return tuple(
            json.dumps(item, sort_keys=True) if isinstance(item, dict | list | tuple) else _word(item)
            for item in value
        )
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a vLLM argument cannot be {type(value).__name__}")


def flag_words(flags: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """The flags as argv words.

    >>> flag_words({"dtype": "float32", "enforce-eager": True, "seed": 0})
    ('--dtype', 'float32', '--enforce-eager', '--seed', '0')
    """
    words: list[str] = []
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            words.append(f"--no-{name}")
        elif isinstance(value, tuple):
            words += [f"--{name}", *value]
        elif (word := _word(value)).startswith("-"):
            words.append(f"--{name}={word}")  # as a word of its own it would be taken for a flag
        else:
            words += [f"--{name}", word]
    return tuple(words)


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | float) or value is None else str(value)


def engine_env(recipe: Recipe) -> dict[str, str]:
    """Environment of every rank: the recipe's own and what the engine plugin reads."""
    engine: Engine = recipe.engine
    env = dict(engine.env)
    env["GLMSPARK_DENSE_ATTENTION"] = "1" if engine.dense_attention else "0"
    env["GLMSPARK_OPTIONAL_PATCHES"] = ",".join(recipe.patches.optional)
    if recipe.patches.required:
        env["GLMSPARK_REQUIRED_PATCHES"] = ",".join(recipe.patches.required)
    return env
