import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.config.files import make_dir, read_json, write_atomic, write_json
from glmspark.config.paths import state_dir
from glmspark.errors import StateError


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_written_whole_with_its_mode(tmp_path):
    path = tmp_path / "a.json"
    old = os.umask(0o077)
    try:
        write_atomic(path, b"x" * 100_000, mode=0o644)
    finally:
        os.umask(old)
    assert path.read_bytes() == b"x" * 100_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    write_json(path, {"b": 1, "a": "é"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == '{\n  "a": "\\u00e9",\n  "b": 1\n}\n'
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("step", ["fsync", "fchmod", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failing_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step, code):
    path = tmp_path / "a.json"
    write_json(path, {"old": True})

    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path if step == "replace" else os, step, fail)
    with pytest.raises(StateError) as caught:
        write_json(path, {"new": True})
    monkeypatch.undo()
    assert os.strerror(code) in caught.value.message
    assert str(path) in caught.value.message
    if code == errno.ENOSPC:
        assert "free some space" in caught.value.next
    assert read_json(path) == {"old": True}
    assert names(tmp_path) == ["a.json"]


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(StateError, match="No such file"):
        write_atomic(tmp_path / "no" / "a", b"")
    assert names(tmp_path) == []


def test_files_and_directory_are_synced_before_and_after_the_rename(tmp_path, monkeypatch):
    calls = []
    real_fsync, real_replace = os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (calls.append(str(Path(f"/proc/self/fd/{fd}").readlink())), real_fsync(fd))
    )
    monkeypatch.setattr(Path, "replace", lambda self, to: (calls.append("rename"), real_replace(self, to))[1])
    write_atomic(tmp_path / "a", b"1")
    assert calls[1:] == ["rename", str(tmp_path)]
    assert calls[0].startswith(str(tmp_path / ".a."))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@settings(max_examples=40)
@given(json_values)
def test_json_comes_back_equal(value):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "v.json"
        write_json(path, value)
        assert read_json(path) == value


def test_undecodable_text_is_kept(tmp_path):
    write_json(tmp_path / "a", {"log": "caf\udce9"})
    assert read_json(tmp_path / "a") == {"log": "caf\udce9"}


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a": 1} x'])
def test_what_is_not_json_is_a_state_error(tmp_path, raw):
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    with pytest.raises(StateError, match="not valid JSON"):
        read_json(path)


def test_missing_json(tmp_path):
    with pytest.raises(StateError, match="cannot read"):
        read_json(tmp_path / "a.json")


@pytest.mark.timeout(20)
def test_json_from_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(StateError, match="not a regular file"):
        read_json(tmp_path / "a.json")


def test_make_dir(tmp_path):
    make_dir(tmp_path / "a" / "b")
    make_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot create"):
        make_dir(tmp_path / "file" / "x")
    with pytest.raises(StateError, match="cannot create"):
        make_dir(tmp_path / "file")


@pytest.mark.parametrize(
    ("env", "want"),
    [
        ({"GLMSPARK_STATE_DIR": "/s", "XDG_STATE_HOME": "/x"}, "/s"),
        ({"XDG_STATE_HOME": "/x"}, "/x/glmspark"),
        ({"XDG_STATE_HOME": "relative"}, "/h/.local/state/glmspark"),
        ({"GLMSPARK_STATE_DIR": "", "XDG_STATE_HOME": ""}, "/h/.local/state/glmspark"),
        ({"GLMSPARK_STATE_DIR": "~/s"}, "/h/s"),
    ],
)
def test_state_dir(monkeypatch, env, want):
    for name in ("GLMSPARK_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert state_dir() == Path(want)
