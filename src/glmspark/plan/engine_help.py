"""What `vllm serve --help=all` says of each flag, and whether a recipe's arguments fit it.

The text is argparse's, so its form is argparse's too: a flag's line stands two columns in and is never
wrapped, what explains it stands further in. Types are not in it but where a choice, a default or a remark
tells them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from glmspark.config.recipe import Recipe
from glmspark.config.yamltree import Loc

__all__ = ["EngineHelp", "Flag", "Misfit", "check_arguments", "parse_help"]

_FLAG_LINE = re.compile(r"  (--?[A-Za-z].*)")
_VERSION = re.compile(r"^vLLM (\S+)$", re.MULTILINE)
_DEFAULT = "(default: "
_NUMBER = re.compile(r"-?[0-9]*\.?[0-9]+(e-?[0-9]+)?", re.ASCII)
_SIZE = re.compile(r"-?[0-9]+(?:\.[0-9]+)?[kKmMgGtT]?", re.ASCII)


@dataclass(frozen=True)
class Flag:
    """One flag. names: with their dashes, all that mean it. switch: it takes no value; off: its name that
    turns it off, None where there is none. choices: the values it takes; closed: no others. many: several
    values. json: a mapping or list. number: a number for certain; often the help does not tell."""

    names: tuple[str, ...]
    switch: bool = False
    off: str | None = None
    choices: tuple[str, ...] = ()
    closed: bool = False
    many: bool = False
    json: bool = False
    number: bool = False


@dataclass(frozen=True)
class EngineHelp:
    """All flags, by each of their names. version: vLLM's, '' where the text does not say."""

    version: str
    flags: Mapping[str, Flag] = field(repr=False)


@dataclass(frozen=True)
class Misfit:
    """A setting that this vLLM would not take. place: its key in the recipe."""

    place: Loc
    message: str
    hint: str | None = None


def parse_help(text: str) -> EngineHelp:
    """The flags in the text of `vllm serve --help=all`. Raises ValueError where it is another text."""
    flags: dict[str, Flag] = {}
    for line, remark in _entries(text):
        flag = _flag(line, remark)
        for name in flag.names:
            flags.setdefault(name, flag)
    if "--max-model-len" not in flags or "--tensor-parallel-size" not in flags:
        raise ValueError("this is not the help of vLLM's server: it explains no --max-model-len")
    version = _VERSION.search(text)
    return EngineHelp(version[1] if version else "", flags)


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Each flag's line and the words that explain it."""
    line, words = "", list[str]()
    for row in text.splitlines():
        match = _FLAG_LINE.fullmatch(row.rstrip())
        if match:
            if line:
                yield line, " ".join(words)
            # A short one has its explanation on the same line, after a gap.
            line, _, first = match[1].partition("  ")
            words = [first.strip()] if first else []
        elif line and row.startswith("   "):
            words.append(row.strip())
        elif row.strip():
            if line:
                yield line, " ".join(words)
            line, words = "", []
    if line:
        yield line, " ".join(words)


def _flag(line: str, remark: str) -> Flag:
    names, metavar = [], ""
    for part in _parts(line):
        name, _, rest = part.partition(" ")
        names.append(name)
        metavar = rest.strip() or metavar
    given = frozenset(names)
    if not metavar:
        return Flag(
            tuple(names), switch=True, off=next(filter(None, (_off(one, given) for one in names)), None)
        )
    choices, closed = _choices(metavar)
    _, marked, last = remark.rpartition(_DEFAULT)
    value = last.removesuffix(")").strip() if marked else ""
    number = "human-readable" in remark or _NUMBER.fullmatch(value) is not None
    return Flag(
        tuple(names),
        choices=choices,
        closed=closed,
        many=" ..." in metavar,
        json="valid JSON string" in remark,
        number=number and not choices and " 'auto'" not in remark,
    )


def _parts(line: str) -> Iterator[str]:
    """The flag's names with their values: parted by commas, but not by those within brackets."""
    depth, begin = 0, 0
    for i, letter in enumerate(line):
        if letter in "{[":
            depth += 1
        elif letter in "}]":
            depth -= 1
        elif letter == "," and depth == 0 and line[i : i + 3] == ", -":
            yield line[begin:i]
            begin = i + 2
    yield line[begin:]


def _off(name: str, names: frozenset[str]) -> str | None:
    """Under which of its names a switch of this name is turned off: --no-x, or --disable-x for --enable-x."""
    stem = name.removeprefix("--")
    if stem.startswith("no-") and "--" + stem.removeprefix("no-") in names:
        return name
    for on, off in (("enable-", "disable-"), ("disable-", "enable-")):
        if stem.startswith(on) and "--" + off + stem.removeprefix(on) in names:
            return "--no-" + stem  # vLLM takes it beside the name that it shows
    return None


def _choices(metavar: str) -> tuple[tuple[str, ...], bool]:
    """Values named in braces are all there are, unless words follow; those in brackets are examples."""
    braces = re.match(r"\{([^}]*)\}(.*)", metavar)
    if braces:
        return tuple(braces[1].split(",")), not braces[2].strip()
    if metavar.startswith("['"):
        return tuple(re.findall(r"'([^']*)'", metavar)), False
    return (), False


def check_arguments(recipe: Recipe, known: EngineHelp) -> list[Misfit]:
    """Everything in a recipe's engine settings that this vLLM would refuse, or would not know."""
    found = []
    for place, name, value in _settings(recipe):
        dashed = "--" + name.replace("_", "-")
        flag = known.flags.get(dashed)
        if flag is None:
            found.append(Misfit(place, f"{_who(known)} has no argument {name}", _nearest(dashed, known)))
        elif (fault := _fault(flag, value)) is not None:
            found.append(Misfit(place, f"{name}: {fault[0]}", fault[1]))
    return found


def _settings(recipe: Recipe) -> Iterator[tuple[Loc, str, Any]]:
    """Each setting that becomes an argument: its key in the file, vLLM's name, the value."""
    engine, layout = recipe.engine, recipe.layout
    for key in ("dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        yield ("engine", key), key, getattr(engine, key)
    yield ("engine", "kv_cache_memory"), "kv_cache_memory_bytes", engine.kv_cache_memory
    for key in ("reasoning_parser", "tool_call_parser"):
        if getattr(engine, key) is not None:
            yield ("engine", key), key, getattr(engine, key)
    if engine.enforce_eager:
        yield ("engine", "enforce_eager"), "enforce_eager", True
    yield ("layout", "tp"), "tensor_parallel_size", layout.tp
    yield ("layout", "pp"), "pipeline_parallel_size", layout.pp
    if layout.dcp > 1:
        yield ("layout", "dcp"), "decode_context_parallel_size", layout.dcp
    if recipe.draft is not None:
        yield ("draft",), "speculative_config", {"method": recipe.draft.method}
    for name, value in engine.args.items():
        yield ("engine", "args", name), name, value


def _fault(flag: Flag, value: Any) -> tuple[str, str | None] | None:
    if flag.switch:
        if not isinstance(value, bool):
            return f"it is a switch, got {value!r}", "write true or false"
        if value is False and flag.off is None:
            return "it cannot be switched off", "leave it out"
        return None
    if isinstance(value, bool):
        return f"it takes a value, got {str(value).lower()}", _values(flag)
    if isinstance(value, dict):
        return None if flag.json else ("it takes no mapping", _values(flag))
    if isinstance(value, list | tuple):
        if not flag.many and not flag.json:
            return f"it takes one value, got {len(value)}", _values(flag)
        return next((bad for one in value if (bad := _fault_of_one(flag, one)) is not None), None)
    return _fault_of_one(flag, value)


def _fault_of_one(flag: Flag, value: Any) -> tuple[str, str | None] | None:
    text = str(value)
    if flag.closed and text not in flag.choices and text.lower().replace("-", "_") not in flag.choices:
        return f"{text!r} is not one of its values", _values(flag, text)
    if flag.number and not _SIZE.fullmatch(text):
        return f"it takes a number, got {text!r}", None
    return None


def _values(flag: Flag, given: str = "") -> str | None:
    if not flag.choices:
        return None
    near = difflib.get_close_matches(given, flag.choices, n=1, cutoff=0.5) if given else []
    guess = f"did you mean {near[0]}? " if near else ""
    shown = flag.choices if len(flag.choices) <= 24 else (*flag.choices[:24], "…")
    return f"{guess}values are {', '.join(shown)}"


def _nearest(dashed: str, known: EngineHelp) -> str:
    near = difflib.get_close_matches(dashed, known.flags, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0].removeprefix('--').replace('-', '_')}?"
    return "`vllm serve --help=all` lists all it has"


def _who(known: EngineHelp) -> str:
    return f"vLLM {known.version}" if known.version else "this vLLM"
