from pathlib import Path

import pytest

from glmspark.config.recipe import ModelSource
from glmspark.models import CheckpointError, locate


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path / "state"))


def test_a_path_is_itself(tmp_path):
    assert locate(ModelSource("path", "/models/x")) == Path("/models/x")
    assert locate(ModelSource("path", "~/x")) == tmp_path / "x"


def test_a_variant_is_found_where_its_script_puts_it(tmp_path):
    source = ModelSource("package", "glm-tiny-reap")
    with pytest.raises(CheckpointError) as caught:
        locate(source)
    assert "has not been made yet" in caught.value.message
    assert caught.value.next.endswith("python -m tools.glm_tiny.variants glm-tiny-reap")
    (tmp_path / "state" / "checkpoints" / "glm-tiny-reap").mkdir(parents=True)
    assert locate(source) == tmp_path / "state" / "checkpoints" / "glm-tiny-reap"


def test_a_model_is_found_where_fetch_puts_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / ".local/share/glmspark/models/org--name@refs--pr--3"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    assert locate(ModelSource("hf", "org/name", "refs/pr/3")) == place


def test_an_unknown_package_checkpoint():
    with pytest.raises(CheckpointError, match="no checkpoint zzz comes with glmspark"):
        locate(ModelSource("package", "zzz"))


@pytest.mark.parametrize(
    ("variable", "below"), [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), (None, ".cache/huggingface/hub")]
)
def test_a_hub_model_is_found_in_each_cache_by_commit_and_by_branch(tmp_path, monkeypatch, variable, below):
    cache = tmp_path / below
    if variable:
        monkeypatch.setenv(variable, str(tmp_path))
    source = ModelSource("hf", "org/name", "main")
    with pytest.raises(CheckpointError) as caught:
        locate(source)
    assert caught.value.next == "`glmspark fetch RECIPE` brings it here"
    snapshot = cache / "models--org--name" / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    assert locate(ModelSource("hf", "org/name", "abc123")) == snapshot
    refs = cache / "models--org--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc123")
    assert locate(source) == snapshot
    (refs / "main").write_text("../..")
    with pytest.raises(CheckpointError):
        locate(source)
