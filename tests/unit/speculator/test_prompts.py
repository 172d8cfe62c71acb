"""The file of prompts that a capture reads."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.speculator.prompts import Prompt, read_prompts
from glmspark.speculator.shape import DrafterError


def test_prompts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"messages": [{"role": "user", "content": "Hi"}], "kind": "talk", "template": {"a": false}}\n\n'
        '{"messages": [{"role": "user", "content": "2+2="}], "tools": null}\n'
    )
    first, second = read_prompts(path)
    assert first == Prompt([{"role": "user", "content": "Hi"}], "talk", None, {"a": False})
    assert (second.kind, second.tools, second.template) == ("text", None, {})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 has no messages"),
        ('{"kind": "x"}', "line 1 has no messages"),
        ('{"messages": []}', "each message needs a role"),
        ('{"messages": ["Hi"]}', "each message needs a role"),
        ('{"messages": [{"content": "Hi"}]}', "each message needs a role"),
        ('{"messages": [{"role": "user"}], "kid": "x"}', "'kid' is not known"),
        ('{"messages": [{"role": "user"}], "kind": 3}', "kind is not a str"),
        ("", "holds no prompts"),
    ],
)
def test_a_line_that_is_none_is_named(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    with pytest.raises(DrafterError, match=said):
        read_prompts(path)


@given(st.binary(max_size=80))
def test_any_bytes_are_prompts_or_one_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_bytes(data)
    with contextlib.suppress(DrafterError):
        assert read_prompts(path)


def test_a_missing_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match="cannot read"):
        read_prompts(tmp_path / "none")
