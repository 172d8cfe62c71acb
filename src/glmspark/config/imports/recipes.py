"""Recipes of formats v1 and v2 to our own, with an account of every key.

v1 is a bash text filled by str.format; v2 is a map of settings, with or without such a text. Both size the
KV cache by a share of GPU memory, which bounds nothing where GPU and host share one: a size must be given.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML

from glmspark.config.imports import Note
from glmspark.config.imports.command import (
    Serve,
    TemplateError,
    fill_lenient,
    fill_strict,
    first_command,
    length,
    parse_serve,
)
from glmspark.config.imports.formats import CANARIES, DTYPES, HOOKS, MEANT, V1_KEYS
from glmspark.config.loader import RecipeError, check_recipe
from glmspark.config.recipe import ENGINE_OWNED_ARGS, ENGINE_OWNED_ENV
from glmspark.config.units import format_size, parse_size
from glmspark.config.yamltree import Problem, YamlTree, read_yaml

KV_CACHE = 4 * 2**30
_BATCHED, _SEQS, _CONTEXT = 2048, 4, 32768


@dataclass(frozen=True)
class Imported:
    """A recipe taken over. text: our own format's file. notes: one for each key and flag. version: 1 or 2."""

    text: bytes
    notes: tuple[Note, ...]
    version: int


class _Builder:
    def __init__(self, data: Mapping[str, Any], tree: YamlTree) -> None:
        self.data = data
        self.tree = tree
        self.notes: list[Note] = []
        self.problems: list[Problem] = []
        self.model: dict[str, Any] = {}
        self.layout: dict[str, Any] = {}
        self.engine: dict[str, Any] = {}
        self.args: dict[str, Any] = {}
        self.env: dict[str, str] = {}
        self.kept: dict[str, Any] = {}

    def line(self, *loc: str | int) -> int | None:
        return self.tree.lines.get(loc)

    def note(self, outcome: Any, name: str, what: str, line: int | None = None) -> None:
        self.notes.append(Note(outcome, name, what, line if line is not None else self.line(name)))


def import_recipe(raw: bytes, path: str, *, kv_cache: str | None = None) -> Imported:
    """Our own recipe for a file of format v1 or v2. Raises RecipeError with all problems, with their lines.

    kv_cache: KV cache of a rank, such as 20GiB; a small one is chosen and said if none is given.
    """
    tree = read_yaml(raw)
    if tree.problems or not isinstance(tree.data, dict):
        raise RecipeError(path, tree.problems or [Problem(None, "a recipe is a mapping of keys")])
    data = tree.data
    if "recipe" in data and "recipe_version" not in data:
        raise RecipeError(path, [Problem(tree.lines.get(("recipe",)), "this is our own format already")])
    version = _version(data)
    builder = _Builder(data, tree)
    serve = _serve(builder, version)
    if builder.problems:
        raise RecipeError(path, builder.problems)
    _names(builder, path, serve)
    _flags(builder, serve)
    _environment(builder, {**_mapping(data.get("env")), **serve.env})
    _sizes(builder, kv_cache)
    _others(builder, version)
    if builder.problems:
        raise RecipeError(path, builder.problems)
    text = _dump(builder, path)
    _, problems = check_recipe(text)
    if problems:
        raise RecipeError(
            path, [Problem(None, f"what came out is not a recipe: {p.message}", p.hint) for p in problems]
        )
    return Imported(text, tuple(builder.notes), version)


def _version(data: Mapping[str, Any]) -> int:
    given = str(data.get("recipe_version", "")).strip()
    if given:
        return 1 if given.split(".")[0] == "1" else 2
    return 1 if "command" in data and set(data) <= V1_KEYS else 2


def _serve(builder: _Builder, version: int) -> Serve:
    """The command's flags; without a command (v2) the defaults are the flags."""
    defaults = _mapping(builder.data.get("defaults"))
    command = builder.data.get("command")
    if command is None:
        if version == 1:
            builder.problems.append(Problem(None, "a recipe of format v1 has a command", None))
        return Serve(flags={name.replace("_", "-"): value for name, value in defaults.items()})
    text = str(command)
    try:
        filled = _fill(builder, version, text, defaults)
        cut = first_command(filled)
        if cut.rest:
            at = None if cut.line is None else (builder.line("command") or 0) + cut.line
            first = cut.rest.splitlines()[0].strip()
            builder.note(
                "refused",
                "command",
                f"the command ends before {first[:60]!r} (a blank line after a backslash ends it): what "
                "follows was never part of it; put what was meant under engine.args",
                at,
            )
        serve = parse_serve(cut.text)
    except ValueError as error:
        builder.problems.append(Problem(builder.line("command"), str(error)))
        return Serve()
    builder.notes += serve.notes
    for name in defaults:
        if "{" + name + "}" in text:
            builder.note(
                "kept", f"defaults.{name}", "filled into the command", builder.line("defaults", name)
            )
        else:
            builder.note(
                "refused", f"defaults.{name}", "the command does not use it", builder.line("defaults", name)
            )
    return serve


def _fill(builder: _Builder, version: int, text: str, defaults: Mapping[str, Any]) -> str:
    if version == 1:
        return fill_strict(text, defaults)
    filled, left = fill_lenient(text, {**defaults, "model": builder.data.get("model", "")})
    for name in left:
        builder.note("kept", f"{{{name}}}", "no value for it: it stays as it is", builder.line("command"))
    try:
        strict = fill_strict(text, {**defaults, "model": builder.data.get("model", "")})
    except TemplateError:
        strict = filled
    if strict != filled:
        builder.note(
            "changed", "command", "its braces mean something else in format v1", builder.line("command")
        )
    return filled


def _names(builder: _Builder, path: str, serve: Serve) -> None:
    data = builder.data
    stem = re.sub(r"\.ya?ml$", "", path.rpartition("/")[2])
    wanted = str(data.get("name") or stem)
    name = re.sub(r"[^a-z0-9._-]+", "-", wanted.lower()).strip("-._")[:63] or "imported"
    builder.kept["name"] = name
    if name != wanted:
        builder.note("changed", "name", f"{wanted!r} to {name}")
    model = str(serve.model or data.get("model") or "")
    revision = serve.flags.pop("revision", None) or data.get("model_revision")
    if model.startswith("/"):
        source = f"path:{model}"
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", model, re.ASCII):
        source = f"hf:{model}@{revision or 'main'}"
        if revision is None:
            builder.note(
                "changed", "model", "no revision given: main; pin it, main may change", builder.line("model")
            )
    else:
        hint = "GGUF files are not served here" if ":" in model else None
        builder.problems.append(
            Problem(builder.line("model"), f"no model that can be taken over: {model!r}", hint)
        )
        return
    served = serve.flags.pop("served-model-name", None) or model.rpartition("/")[2]
    if isinstance(served, tuple | list):
        builder.note(
            "changed", "--served-model-name", f"one name only: {served[0]}; dropped {list(served[1:])}"
        )
        served = served[0]
    builder.model = {"source": source, "served_name": str(served)}


def _flags(builder: _Builder, serve: Serve) -> None:
    for flag, value in serve.flags.items():
        name = flag.replace("-", "_")
        take = _TYPED.get(name)
        if take is not None:
            take(builder, flag, value)
        elif name == "gpu_memory_utilization":
            builder.note(
                "changed", f"--{flag}", "bounds nothing on unified memory: engine.kv_cache_memory counts"
            )
        elif name in ENGINE_OWNED_ARGS:
            builder.note("refused", f"--{flag}", f"set by {ENGINE_OWNED_ARGS[name]}")
        elif name == "enable_auto_tool_choice":
            builder.note("changed", f"--{flag}", "comes with engine.tool_call_parser")
        elif re.fullmatch(r"[a-z][a-z0-9_]*", name):
            builder.args[name] = list(value) if isinstance(value, tuple) else value
            builder.note("kept", f"--{flag}", f"engine.args.{name}")
        else:
            builder.note("refused", f"--{flag}", "not a name of a vLLM argument")


def _number(section: str, key: str) -> Callable[[_Builder, str, Any], None]:
    def take(builder: _Builder, flag: str, value: Any) -> None:
        number = length(value)
        if number is None or number < 1:
            builder.problems.append(Problem(builder.line("command"), f"--{flag} is {value!r}, not a number"))
            return
        (builder.layout if section == "layout" else builder.engine)[key] = number
        builder.note("kept", f"--{flag}", f"{section}.{key}")

    return take


def _word(key: str) -> Callable[[_Builder, str, Any], None]:
    def take(builder: _Builder, flag: str, value: Any) -> None:
        if key == "dtype" and value not in DTYPES:
            value = {"half": "float16", "float": "float32"}.get(str(value), "auto")
            builder.note("changed", f"--{flag}", f"engine.dtype {value}")
        else:
            builder.note("kept", f"--{flag}", f"engine.{key}")
        builder.engine[key] = value

    return take


def _backend(builder: _Builder, flag: str, value: Any) -> None:
    named = {"ray": "ray", "mp": "mp", "external_launcher": "lockstep"}.get(str(value))
    if named is None:
        builder.note("refused", f"--{flag}", f"no backend of this name here: {value}")
        return
    builder.layout["backend"] = named
    builder.note("kept" if named == value else "changed", f"--{flag}", f"layout.backend {named}")


def _remote_code(builder: _Builder, flag: str, _: Any) -> None:
    builder.note("refused", f"--{flag}", "remote code is never run")


def _cache(builder: _Builder, flag: str, value: Any) -> None:
    number = length(value)
    if number:
        builder.engine["kv_cache_memory"] = number
        builder.note("kept", f"--{flag}", "engine.kv_cache_memory")


_TYPED: Mapping[str, Callable[[_Builder, str, Any], None]] = {
    "tensor_parallel_size": _number("layout", "tp"),
    "tensor_parallel": _number("layout", "tp"),
    "pipeline_parallel_size": _number("layout", "pp"),
    "pipeline_parallel": _number("layout", "pp"),
    "decode_context_parallel_size": _number("layout", "dcp"),
    "distributed_executor_backend": _backend,
    "max_model_len": _number("engine", "max_model_len"),
    "max_num_seqs": _number("engine", "max_num_seqs"),
    "max_num_batched_tokens": _number("engine", "max_num_batched_tokens"),
    "kv_cache_memory_bytes": _cache,
    "dtype": _word("dtype"),
    "enforce_eager": _word("enforce_eager"),
    "reasoning_parser": _word("reasoning_parser"),
    "tool_call_parser": _word("tool_call_parser"),
    "trust_remote_code": _remote_code,
}


def _environment(builder: _Builder, env: Mapping[str, Any]) -> None:
    for name, value in env.items():
        line = builder.line("env", name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if name in ENGINE_OWNED_ENV:
            builder.note("refused", f"env.{name}", f"set by {ENGINE_OWNED_ENV[name]}", line)
        elif "$" in text or "`" in text or "{" in text:
            builder.note("refused", f"env.{name}", "nothing is expanded here: write the value itself", line)
        elif name.startswith("GLMSPARK_") or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            builder.note("refused", f"env.{name}", "not a name that a recipe may set", line)
        elif re.search(r"TOKEN|SECRET|PASSWORD|API_KEY", name):
            builder.note("refused", f"env.{name}", "secrets stay out of recipes", line)
        else:
            builder.env[name] = text
            builder.note("kept", f"env.{name}", f"engine.env.{name}", line)


def _sizes(builder: _Builder, kv_cache: str | None) -> None:
    engine = builder.engine
    if kv_cache is not None:
        try:
            engine["kv_cache_memory"] = parse_size(kv_cache)
        except ValueError as error:
            builder.problems.append(Problem(None, f"KV cache: {error}"))
    for key, value in (
        ("max_model_len", _CONTEXT),
        ("max_num_seqs", _SEQS),
        ("max_num_batched_tokens", _BATCHED),
    ):
        if key not in engine:
            engine[key] = value
            builder.note("changed", f"engine.{key}", f"not given: {value}")
    if engine["max_num_batched_tokens"] < engine["max_num_seqs"]:
        engine["max_num_batched_tokens"] = engine["max_num_seqs"]
        builder.note("changed", "engine.max_num_batched_tokens", "raised to max_num_seqs")
    if "kv_cache_memory" not in engine:
        engine["kv_cache_memory"] = KV_CACHE
        builder.note(
            "changed",
            "engine.kv_cache_memory",
            f"not given: {format_size(KV_CACHE)} for each rank; give what the plan says fits",
        )


def _others(builder: _Builder, version: int) -> None:
    done = {"recipe_version", "name", "description", "model", "model_revision", "defaults", "env", "command"}
    unknown: dict[str, Any] = {}
    for key, value in builder.data.items():
        if key in done:
            continue
        if key in HOOKS:
            builder.note("refused", key, "it would run scripts; patches are the engine plugin's")
            continue
        unknown[key] = value
        what = MEANT.get(key, "has no meaning here")
        builder.note("kept", key, f"under imported, as it was; {what}")
    builder.kept["imported"] = {"recipe_version": str(version), **unknown}
    if builder.data.get("solo_only") or builder.data.get("mode") == "solo":
        builder.layout = {}


def _dump(builder: _Builder, path: str) -> bytes:
    engine = dict(builder.engine)
    engine["kv_cache_memory"] = format_size(engine["kv_cache_memory"]).replace(" ", "")
    if parse_size(engine["kv_cache_memory"]) != builder.engine["kv_cache_memory"]:
        engine["kv_cache_memory"] = builder.engine["kv_cache_memory"]
    if builder.args:
        engine["args"] = builder.args
    if builder.env:
        engine["env"] = builder.env
    data = {
        "recipe": 1,
        "name": builder.kept["name"],
        "description": str(builder.data.get("description") or f"taken over from {path.rpartition('/')[2]}"),
        "model": builder.model,
        "layout": {"tp": 1, "pp": 1} | builder.layout,
        "engine": engine,
        "canaries": [dict(one) for one in CANARIES],
        "imported": _plain(builder.kept["imported"]),
    }
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 100
    out = io.BytesIO()
    yaml.dump(data, out)
    return out.getvalue()


def _plain(value: Any) -> Any:
    """Lists again where reading made tuples of them."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}
