"""vLLM's own parser of `vllm serve`'s flags, wherever this vLLM keeps it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

# 0.33 and newer, then 0.32.
_PLACES = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args")


def _module() -> ModuleType:
    for place in _PLACES[:-1]:
        try:
            return import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise  # it is there, and what it needs is not
    return import_module(_PLACES[-1])


def make(prog: str) -> Any:
    """The parser. Flags count by their whole names only: who says which may be set says it of those.

    Raises ModuleNotFoundError where no vLLM, or one that keeps its parser elsewhere, is installed.
    """
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return _module().make_arg_parser(FlexibleArgumentParser(prog=prog, allow_abbrev=False))


def validator() -> Callable[[argparse.Namespace], None]:
    """vLLM's check of flags that exclude each other."""
    check: Callable[[argparse.Namespace], None] = _module().validate_parsed_serve_args
    return check


def whole_help() -> str:
    """What `vllm serve --help=all` prints, after a line with vLLM's version."""
    import vllm

    parser = make("vllm serve")
    parser._search_keyword = "all"  # as vLLM's own command sets it
    return f"vLLM {vllm.__version__}\n{parser.format_help()}"
