"""Which modules a quantization config takes and which it leaves out, as vLLM reads it.

compressed-tensors: exact names, `re:` regular expressions from the name's start, and module classes (Linear).
ModelOpt: wildcards, and names as parts of names. fp8, AWQ and GPTQ: names and parts of names.
"""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glmspark.models.errors import CheckpointError

__all__ = ["Declared", "read_declared"]

_LIMIT_S = 10
_MATCH = """\
import json, re, sys
patterns, names = json.load(sys.stdin)
found = {}
for text in patterns:
    try:
        found[text] = [n for n, name in enumerate(names) if re.match(text, name)]
    except (re.error, RecursionError, OverflowError) as error:
        found[text] = str(error)
print(json.dumps(found))
"""


class Declared:
    """What config.json's quantization_config says. method: its quant_method. activations: bits of quantized
    inputs that need calibrated scales, or None. ignore: patterns of modules left as they are."""

    def __init__(
        self,
        method: str,
        ignore: Sequence[str],
        targets: Sequence[str],
        activations: int | None,
        algorithm: str | None,
    ) -> None:
        self.method = method
        self.ignore = tuple(ignore)
        self.targets = tuple(targets)
        self.activations = activations
        self.algorithm = algorithm

    def excluded(self, names: Sequence[str]) -> set[str]:
        """Those of the module names that the config leaves unquantized. Raises CheckpointError for patterns
        that are none, or that take for ever."""
        ignored = self._matching(self.ignore, names)
        if self.method != "compressed-tensors" or not self.targets or "Linear" in self.targets:
            return ignored
        return ignored | (set(names) - self._matching(self.targets, names))

    def _matching(self, patterns: Sequence[str], names: Sequence[str]) -> set[str]:
        if self.method == "compressed-tensors":
            exact = {pattern for pattern in patterns if not pattern.startswith("re:")}
            found = {name for name in names if name in exact}
            expressions = [pattern[3:] for pattern in patterns if pattern.startswith("re:")]
            return found | {names[i] for i in _matches(expressions, names)}
        parts = [pattern for pattern in patterns if not any(sign in pattern for sign in "*?[")]
        wild = [re.compile(fnmatch.translate(pattern)) for pattern in patterns if pattern not in set(parts)]
        within = re.compile("|".join(map(re.escape, parts))) if parts else None
        return {
            name
            for name in names
            if (within is not None and within.search(name)) or any(one.match(name) for one in wild)
        }


def _matches(expressions: Sequence[str], names: Sequence[str]) -> set[int]:
    """Indices of names that any expression matches. They come from a file that anyone may have written, so a
    process of its own tries them: one that backtracks without end can be ended."""
    if not expressions:
        return set()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _MATCH],
            input=json.dumps([list(expressions), list(names)]),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise _bad(f"a regular expression of it is not done after {_LIMIT_S} s") from None
    except subprocess.CalledProcessError as error:
        raise _bad(f"its regular expressions cannot be tried: {error.stderr[-200:]}") from None
    found: set[int] = set()
    for text, hits in json.loads(done.stdout).items():
        if isinstance(hits, str):
            raise _bad(f"{text[:100]!r} is no regular expression: {hits[:100]}")
        found.update(hits)
    return found


def read_declared(config: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> Declared | None:
    """The quantization_config of a config.json, or None. beside: hf_quant_config.json, where there is one.

    Raises CheckpointError for one that cannot be understood.
    """
    given = config.get("quantization_config")
    if given is None and beside is not None:
        inner = beside.get("quantization")
        given = {"quant_method": "modelopt", **inner} if isinstance(inner, dict) else None
    if given is None:
        return None
    if not isinstance(given, dict):
        raise _bad("it is not a mapping")
    method = given.get("quant_method")
    if not isinstance(method, str):
        raise _bad("quant_method is missing")
    groups = given.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise _bad("config_groups is not a map of groups")
    ignore: list[str] = []
    for key in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"):
        ignore += _texts(given.get(key), key)
    targets: list[str] = []
    bits: list[int] = []
    for group in groups.values():
        targets += _texts(group.get("targets"), "targets")
        inputs = group.get("input_activations")
        if isinstance(inputs, dict) and inputs.get("dynamic") not in (True, "local"):
            number = inputs.get("num_bits")
            bits.append(number if isinstance(number, int) else 0)
        elif isinstance(inputs, dict) and inputs.get("dynamic") == "local":
            bits.append(4)  # NVFP4 scales a group anew, and a tensor by its calibrated scale
    algorithm = given.get("quant_algo")
    algorithm = algorithm if isinstance(algorithm, str) else None
    if algorithm == "NVFP4" and not groups:
        bits.append(4)
    if algorithm is not None and algorithm.upper().startswith("W4A16"):
        bits = []
    return Declared(method, ignore, targets, min(bits) if bits else None, algorithm)


def _texts(value: object, key: str) -> Iterable[str]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _bad(f"{key} is not a list of names")
    if len(value) > 20_000 or sum(map(len, value)) > 2_000_000:
        raise _bad(f"{key} has {len(value)} entries")
    return value


def _bad(reason: str) -> CheckpointError:
    return CheckpointError(
        f"config.json: quantization_config: {reason}",
        step="read the quantization config",
        next="fetch config.json again; if it came so, the checkpoint is broken",
    )
