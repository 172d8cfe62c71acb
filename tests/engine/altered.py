"""An altered vLLM for tests of preconditions: the installed one with one module's text changed."""

from __future__ import annotations

import re

from glmspark.engine.code import Code, installed_code


def altered(module: str, pattern: str, replacement: str) -> Code:
    """The installed vLLM with `pattern` replaced in one module; fails if that changes nothing."""
    source = installed_code().source(module)
    text = re.sub(pattern, replacement, source)
    assert text != source, f"{pattern!r} is not in {module}"
    return Code(installed_code().root, overlay={module: text})
