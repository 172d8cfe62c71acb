"""The command of an old recipe: template, shell text, `vllm serve` flags. Nothing is run by a shell."""

from __future__ import annotations

import json
import re
import shlex
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glmspark.config.imports import Note

_PASSES = 10
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SHELL = {";", "&&", "||", "|", "&", ">", ">>", "<", "2>", "2>&1", "(", ")", "{", "}"}
_SHORT = {
    "tp": "tensor-parallel-size",
    "dcp": "decode-context-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "q": "quantization",
}
_SHORT |= {"dcp": "decode-context-parallel-size", "n": "nnodes", "r": "node-rank", "cc": "compilation-config"}


class TemplateError(ValueError):
    """A template that the old tool itself would have refused."""


def fill_strict(text: str, values: Mapping[str, Any]) -> str:
    """Format v1's rule: Python's str.format once, so `{{` is `{`, and an unknown name is an error.

    Raises TemplateError. Only plain names are filled: no attributes, indices, conversions or formats, which
    could reach into Python objects.
    """
    parts = []
    try:
        for literal, name, spec, conversion in string.Formatter().parse(text):
            parts.append(literal)
            if name is None:
                continue
            if spec or conversion or name not in values:
                shown = (
                    "{" + name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
                )
                raise TemplateError(
                    f"{shown} is not filled by defaults; a literal brace is written twice: {{{{ and }}}}"
                )
            parts.append(str(values[name]))
    except ValueError as error:
        if isinstance(error, TemplateError):
            raise
        raise TemplateError(f"the braces of the command do not match: {error}") from None
    return "".join(parts)


def fill_lenient(text: str, values: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Format v2's rule: known names are filled again and again, unknown ones stay; and those that stayed.

    Doubled braces are an escape, as in v1, only where as many open as close: the two braces that end plain
    JSON in JSON are none.
    """
    for _ in range(_PASSES):
        filled = _PLACE.sub(lambda found: str(values[found[1]]) if found[1] in values else found[0], text)
        if filled == text:
            break
        text = filled
    left = [found[1] for found in _PLACE.finditer(text)]
    if "{{" in text and text.count("{{") == text.count("}}"):
        text = text.replace("{{", "{").replace("}}", "}")
    return text, left


@dataclass(frozen=True)
class Cut:
    """The first command of a text. rest: what comes after it, with the line it begins on, or None."""

    text: str
    rest: str = ""
    line: int | None = None


def first_command(text: str) -> Cut:
    """The part of a shell text that is one command: up to the first line that does not go on.

    A backslash at the end joins lines. A blank line after one ends the command there, whatever the author
    meant, as bash would; comment lines before it do not count.
    """
    lines = text.splitlines()
    taken: list[str] = []
    for number, line in enumerate(lines):
        if not taken and (not line.strip() or line.lstrip().startswith("#")):
            continue
        goes_on = line.rstrip(" \t").endswith("\\") if line.strip() else False
        taken.append(line.rstrip(" \t").removesuffix("\\") if goes_on else line)
        if not goes_on:
            rest = [one for one in lines[number + 1 :] if one.strip() and not one.lstrip().startswith("#")]
            begin = next((i for i in range(number + 1, len(lines)) if lines[i].strip()), number)
            return Cut(" ".join(taken).strip(), "\n".join(rest), begin + 1 if rest else None)
    return Cut(" ".join(taken).strip())


@dataclass
class Serve:
    """A `vllm serve` command. flags: by name with dashes, in order; env: assignments before it."""

    model: str | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


def parse_serve(text: str) -> Serve:
    """The flags of one `vllm serve` command. Raises ValueError for anything that is not one."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise ValueError(f"the quotes of the command do not match: {error}") from None
    serve = Serve()
    while words and (words[0] in ("exec", "env") or _ASSIGNMENT.fullmatch(words[0])):
        match = _ASSIGNMENT.fullmatch(words[0])
        if match:
            serve.env[match[1]] = match[2]
        words.pop(0)
    words = _after_program(words)
    odd = next((word for word in words if word in _SHELL or "$(" in word or "`" in word), None)
    if odd is not None:
        raise ValueError(f"the command does more than serve: {odd!r} is the shell's")
    if words and not words[0].startswith("-"):
        serve.model = words.pop(0)
    while words:
        word = words.pop(0)
        name, value = _flag(word, words, serve)
        if name is None:
            serve.notes.append(Note("refused", word, "not a flag of vllm serve"))
        elif name == "model":
            serve.model = str(value)
        elif name in serve.flags:
            serve.notes.append(Note("changed", f"--{name}", "given twice: the last one counts"))
            serve.flags[name] = value
        else:
            serve.flags[name] = value
    return serve


def _after_program(words: list[str]) -> list[str]:
    if len(words) >= 2 and words[0].rpartition("/")[2] == "vllm" and words[1] == "serve":
        return words[2:]
    if len(words) >= 3 and words[0].rpartition("/")[2].startswith("python") and words[1] == "-m":
        if words[2] == "vllm.entrypoints.openai.api_server":
            return words[3:]
        if words[2].startswith("vllm.entrypoints.cli") and words[3:4] == ["serve"]:
            return words[4:]
    raise ValueError(f"only `vllm serve` is understood, this runs {' '.join(words[:3]) or 'nothing'}")


def _flag(word: str, words: list[str], serve: Serve) -> tuple[str | None, Any]:
    if word.startswith("-O") and not word.startswith("--"):
        level = word[2:] or (words.pop(0) if words and not words[0].startswith("-") else "2")
        return "optimization-level", _typed(level.removeprefix("="))
    if not word.startswith("-") or word in ("-", "--"):
        return None, None
    name, equals, value = word.lstrip("-").partition("=")
    if not word.startswith("--"):
        head, dot, key = name.partition(".")
        name = _SHORT.get(head, head) + dot + key
    name = name.replace("_", "-")
    if not equals:
        values = []
        while words and not _is_flag(words[0]):
            values.append(words.pop(0))
        if not values:
            return (name.removeprefix("no-"), False) if name.startswith("no-") else (name, True)
        if len(values) > 1:
            return name, tuple(_typed(one) for one in values)
        value = values[0]
    head, dot, key = name.partition(".")
    if dot:  # --compilation-config.mode 3 is a part of a JSON value
        whole = serve.flags.get(head)
        merged: dict[str, Any] = dict(whole) if isinstance(whole, dict) else {}
        at = merged
        *parents, last = key.replace("-", "_").split(".")
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = _typed(value)
        serve.flags.pop(head, None)
        return head, merged
    return name, _typed(value)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-[0-9.]+(e-?[0-9]+)?", word)


def _typed(text: str) -> Any:
    """A number, truth, JSON value or the text itself."""
    if text[:1] in "{[":
        try:
            return json.loads(text)
        except ValueError:
            return text
    if text in ("true", "True"):
        return True
    if text in ("false", "False"):
        return False
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,18}\.[0-9]{1,18}", text):
        return float(text)
    return text


def length(value: Any) -> int | None:
    """A token count as vLLM reads it: 131072, 128k (thousands) or 128K (of 1,024)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kKmM])", str(value))
    if match is None:
        return None
    unit = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}[match[2]]
    return int(float(match[1]) * unit)
