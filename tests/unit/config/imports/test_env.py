"""The .env file of shell launchers: what is kept, changed, refused; nothing is run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.config.imports.env import parse_env
from glmspark.errors import GlmsparkError

SEED = """\
# the cluster, head first
CLUSTER_NODES="192.168.100.11,192.168.100.12, 192.168.100.13"
LOCAL_IP=192.168.100.11
export ETH_IF=enp1s0f0np0
IB_IF=rocep1s0f0,roceP2p1s0f0
MASTER_PORT=29519   # not the default
CONTAINER_NAME=glm
CONTAINER_NCCL_IB_DISABLE=1
CONTAINER_MALLOC_ARENA_MAX='1'
CONTAINER_HF_TOKEN=hf_abc
HOME_DIR=$HOME/models
SOMETHING=else
not a setting
"""


def test_a_whole_file() -> None:
    found = parse_env(SEED)
    assert found.hosts == ("192.168.100.11", "192.168.100.12", "192.168.100.13")
    assert found.interfaces == ("enp1s0f0np0",)
    assert found.hcas == ("rocep1s0f0", "roceP2p1s0f0")
    assert found.master_port == 29519
    assert found.container == {"NCCL_IB_DISABLE": "1", "MALLOC_ARENA_MAX": "1"}
    outcomes = {note.name: note.outcome for note in found.notes}
    assert outcomes == {
        "CLUSTER_NODES": "kept",
        "LOCAL_IP": "changed",
        "ETH_IF": "changed",
        "IB_IF": "changed",
        "MASTER_PORT": "kept",
        "CONTAINER_NAME": "changed",
        "CONTAINER_NCCL_IB_DISABLE": "kept",
        "CONTAINER_MALLOC_ARENA_MAX": "kept",
        "CONTAINER_HF_TOKEN": "refused",
        "HOME_DIR": "refused",
        "SOMETHING": "refused",
        "not a setting": "refused",
    }
    assert [note.line for note in found.notes] == sorted(note.line or 0 for note in found.notes)
    assert "hf_abc" not in "".join(note.what for note in found.notes)


def test_nodes_from_the_other_settings() -> None:
    assert parse_env("LOCAL_IP=10.0.0.1\nCOPY_HOSTS='10.0.0.2 10.0.0.3'\n").hosts == (
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.3",
    )


def test_no_nodes_is_one_clear_error() -> None:
    with pytest.raises(GlmsparkError, match=r"\.env names no nodes") as caught:
        parse_env("ETH_IF=eth0\n")
    assert "CLUSTER_NODES=" in (caught.value.next or "")


@pytest.mark.parametrize("value", ["$(reboot)", "`id`", "$X", '"$X"', "'unclosed", '"unclosed'])
def test_what_a_shell_would_run_is_refused(value: str) -> None:
    found = parse_env(f"CLUSTER_NODES=a\nCONTAINER_X={value}\n")
    assert found.container == {}
    assert found.notes[-1].outcome == "refused"


def test_a_setting_given_twice_is_said() -> None:
    found = parse_env("CLUSTER_NODES=a\nCLUSTER_NODES=b\n")
    assert found.hosts == ("b",)
    assert any("given twice" in note.what for note in found.notes)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_env(text)
    except GlmsparkError as error:
        assert "names no nodes" in error.message  # noqa: PT017 - which of both happens is up to the text
