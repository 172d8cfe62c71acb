"""Quoting happens once: whatever the arguments, the node's shell hands on the same."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.nodes.ssh import Address, command_line

WORD = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in {"_", "PATH", "LC_ALL", "LANG", "PWD", "OLDPWD", "SHLVL", "IFS"}
)


@settings(max_examples=60)
@given(st.lists(WORD, max_size=6), st.dictionaries(NAME, WORD, max_size=3))
def test_a_shell_hands_on_what_was_given(words: list[str], env: dict[str, str]) -> None:
    argv = ["printf", "%s\\0", *words, *(f"${name}" for name in env)]
    line = command_line(argv, env)
    out = subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout.decode()
    assert out.split("\0")[:-1] == ([*words, *(f"${name}" for name in env)] or [""])
    for name, value in env.items():
        line = command_line(["sh", "-c", f'printf %s "${name}"'], env)
        shown = subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout.decode()
        assert shown == value


@pytest.mark.parametrize(
    ("argv", "env"),
    [([], {}), (["a\0b"], {}), (["a"], {"": "x"}), (["a"], {"a=b": "x"}), (["a"], {"b": "\0"})],
)
def test_what_no_process_can_be_given_is_refused(argv: list[str], env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"empty|NUL|not a name"):
        command_line(argv, env)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("spark1", Address("spark1")),
        ("me@spark1:2222", Address("spark1", port=2222, user="me")),
        ("10.0.0.1", Address("10.0.0.1")),
        ("fe80::1", Address("fe80::1")),
        ("me@[fe80::1]:22", Address("fe80::1", port=22, user="me")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address


@pytest.mark.parametrize(
    "text", ["", "@host", "host:0", "host:x", "host:70000", "-oProxyCommand=x", "a b", "a/b", "[::1"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Address.parse(text)
