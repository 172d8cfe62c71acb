import socket

import pytest

from glmspark.models.errors import CheckpointError
from glmspark.models.files import LocalFiles
from glmspark.models.inspection import inspect
from glmspark.weights.hub import HubFiles, parse_hub
from tests.unit.models.test_inspection import INDEX, QUANTIZED, seed
from tests.unit.weights.hub import REPOSITORY, serving
from tools.headers import write_shard


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("org/name", ("org/name", "main")), ("o/n.m-1@refs/pr/3", ("o/n.m-1", "refs/pr/3"))],
)
def test_names_of_repositories(text, parsed):
    assert parse_hub(text) == parsed


@pytest.mark.parametrize("text", ["", "name", "a/b/c", "a/b@", "a/../b", "a/b@../c", "a /b", "http://a/b"])
def test_what_names_no_repository(text):
    with pytest.raises(CheckpointError, match="names no repository"):
        parse_hub(text)


def test_a_repository_reads_as_its_directory_does(tmp_path):
    made = seed(True)
    QUANTIZED["joined-scales-differ"](made)
    path = made.write(tmp_path / "m")
    with serving(path) as hub:
        files = HubFiles(REPOSITORY, endpoint=hub.url)
        there, here = inspect(files), inspect(LocalFiles(path))
        files.close()
    assert there.problems == here.problems
    assert there.classes == here.classes
    assert there.where == "hf:org/model@main"
    assert all(asked for _, asked in hub.asked)


def test_of_a_large_repository_only_the_headers_come(tmp_path):
    path = seed().write(tmp_path / "m")
    (path / INDEX).unlink()
    write_shard(path / "large.safetensors", {"model.layers.0.large.weight": ("BF16", (10**6, 10**5))})
    with serving(path) as hub:
        files = HubFiles(REPOSITORY, endpoint=hub.url)
        found = inspect(files)
        files.close()
    assert found.nbytes > 200e9
    assert [problem.rule for problem in found.problems] == ["extra-tensors"]
    assert hub.sent == files.received + len(hub.metadata) < 500e3


def test_a_connection_that_breaks_is_tried_again(tmp_path):
    path = seed().write(tmp_path / "m")
    with serving(path) as hub:
        hub.broken = 2
        files = HubFiles(REPOSITORY, endpoint=hub.url)
        assert inspect(files).problems == ()
        files.close()


def test_a_server_without_ranges_is_refused(tmp_path):
    write_shard(tmp_path / "large.safetensors", {"a": ("BF16", (10**6, 10**5))})
    with serving(tmp_path) as hub:
        hub.ranges = False
        files = HubFiles(REPOSITORY, endpoint=hub.url)
        with pytest.raises(CheckpointError, match="sends no ranges"):
            files.read("large.safetensors", [(0, 8)])
        files.close()


def test_a_repository_that_is_not_there(tmp_path):
    with serving(tmp_path) as hub:
        with pytest.raises(CheckpointError, match="cannot look at hf:org/other@main") as caught:
            HubFiles("org/other", endpoint=hub.url)
        assert "hf auth login" in str(caught.value.next)


@pytest.mark.parametrize("size", [None, -1, 1 << 60, True])
def test_a_size_that_is_none_is_not_believed(tmp_path, monkeypatch, size):
    """Without its size a file would be left out; a list of the chunks of an endless one takes all memory."""
    monkeypatch.setattr("tests.unit.weights.hub.hashes", lambda _: {"size": size})
    (tmp_path / "tokenizer.json").write_text("{}")
    with serving(tmp_path) as hub, pytest.raises(CheckpointError, match=r"'tokenizer.json' has the size"):
        HubFiles(REPOSITORY, endpoint=hub.url)


def test_a_hub_that_cannot_be_reached_is_said_to_be_so():
    """Its HTTP client's own errors come through huggingface_hub: httpx's or httpx2's, by its version."""
    with socket.socket() as taken:  # bound and not listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(CheckpointError, match=r"cannot look at hf:org/model@main: .*refused") as caught:
            HubFiles(REPOSITORY, endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert "HF_ENDPOINT" in str(caught.value.next)
