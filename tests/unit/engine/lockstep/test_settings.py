"""What the environment must say, and whom the secret's file may be shown to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmspark.engine.addresses import AddressError, Rank
from glmspark.engine.lockstep.settings import SECRET_FILE, Settings, SettingsError
from glmspark.engine.serve import lockstep_of


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Rank 1 of 2, as a launcher sets it."""
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("ab" * 32 + "\n")
    return {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "198.18.0.1",
        "MASTER_PORT": "29600",
        "VLLM_HOST_IP": "198.18.0.2",
        SECRET_FILE: str(secret),
    }


def test_torchruns_variables_say_all(environ: dict[str, str]) -> None:
    settings = Settings.read(environ)
    assert settings.place == Rank(2, 1, "198.18.0.1", 29600)
    assert (settings.local_rank, settings.host_ip) == (0, "198.18.0.2")
    assert settings.secret == b"ab" * 32
    assert "abab" not in repr(settings)
    assert (settings.start, settings.step, settings.call) == (1800, 300, 600)


def test_limits_can_be_set(environ: dict[str, str]) -> None:
    environ |= {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "40", "GLMSPARK_LOCKSTEP_CALL_S": "2.5"}
    assert (Settings.read(environ).step, Settings.read(environ).call) == (40, 2.5)
    environ |= {"GLMSPARK_LOCKSTEP_STEP_S": "50", "GLMSPARK_LOCKSTEP_START_S": "60"}
    assert (Settings.read(environ).step, Settings.read(environ).start) == (50, 60)


def test_under_torchrun_the_next_port_is_taken(environ: dict[str, str]) -> None:
    environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    assert Settings.read(environ).port == 29601


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_missing_variable_is_named(environ: dict[str, str], name: str) -> None:
    del environ[name]
    with pytest.raises(SettingsError, match=rf"needs {name} in the environment"):
        Settings.read(environ)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "2"),
        ("RANK", "-1"),
        ("RANK", "one"),
        ("RANK", "٣"),
        ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", "99999999999"),
        ("LOCAL_RANK", "7"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65535"),
        ("GLMSPARK_LOCKSTEP_START_S", "0"),
        ("GLMSPARK_LOCKSTEP_STEP_S", "soon"),
        ("GLMSPARK_LOCKSTEP_CALL_S", "nan"),
        ("GLMSPARK_LOCKSTEP_CALL_S", "inf"),
    ],
)
def test_a_wrong_value_is_named(environ: dict[str, str], name: str, value: str) -> None:
    environ[name] = value
    with pytest.raises(SettingsError, match=f"{name}="):
        Settings.read(environ)


@given(st.integers(0, 0o777))
def test_nobody_else_may_read_the_secret(tmp_path_factory: pytest.TempPathFactory, mode: int) -> None:
    path = tmp_path_factory.getbasetemp() / "modes"
    path.write_text("ab" * 32)
    path.chmod(mode | 0o400)
    environ = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "1",
        SECRET_FILE: str(path),
    }
    if mode & 0o077:
        with pytest.raises(SettingsError, match="may be read by others"):
            Settings.read(environ)
    else:
        assert Settings.read(environ).secret == b"ab" * 32


def test_what_is_no_secret(environ: dict[str, str], tmp_path: Path) -> None:
    path = Path(environ[SECRET_FILE])
    for content, message in (("short", "holds 5 bytes"), ("x" * 5000, "holds 4097 bytes")):
        path.write_text(content)
        with pytest.raises(SettingsError, match=message):
            Settings.read(environ)
    environ[SECRET_FILE] = str(tmp_path)
    with pytest.raises(SettingsError, match="cannot read"):
        Settings.read(environ)
    environ[SECRET_FILE] = "/dev/null"
    with pytest.raises(SettingsError, match="is not a regular file"):
        Settings.read(environ)
    environ[SECRET_FILE] = ""
    with pytest.raises(SettingsError, match="is not set"):
        Settings.read(environ)


def test_one_rank_alone_needs_no_secret(environ: dict[str, str]) -> None:
    environ |= {"RANK": "0", "WORLD_SIZE": "1", SECRET_FILE: ""}
    assert Settings.read(environ).secret == b""


def test_the_backend_is_told_by_its_name(environ: dict[str, str]) -> None:
    flags = ["MODEL", "-tp", "2", "--distributed-executor-backend"]
    assert lockstep_of([*flags, "mp"], environ) is None
    assert lockstep_of(["MODEL"], environ) is None
    found = lockstep_of([*flags, "glmspark-lockstep"], environ)
    assert found is not None
    assert found.rank == 1
    assert lockstep_of(["MODEL", "--distributed-executor-backend=glmspark-lockstep"], environ) == found


@pytest.mark.parametrize("words", [["--headless"], ["--nnodes", "2"], ["-r", "1"], ["--master-addr=h"]])
def test_the_place_is_said_once(environ: dict[str, str], words: list[str]) -> None:
    flags = ["MODEL", "--distributed-executor-backend", "glmspark-lockstep"]
    with pytest.raises(AddressError, match="cannot go with glmspark-lockstep"):
        lockstep_of([*flags, *words], environ)
