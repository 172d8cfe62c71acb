"""The first node downloads from a hub by range requests, and the next one gets it meanwhile."""

import hashlib

from glmspark.weights.hub import HubFiles
from tests.unit.weights.faults import SIZES
from tests.unit.weights.hub import REPOSITORY, serving
from tests.unit.weights.relays import Relay, model, new_key, program, same


def urls(hub, source, files, **wrong):
    """A relay's list of files, with the hashes that a hub states."""
    found = []
    for name, size in files.items():
        data = (source / name).read_bytes()
        known = {
            "sha256": hashlib.sha256(data).hexdigest() if name.endswith(".safetensors") else None,
            "blob": hashlib.sha1(f"blob {size}\0".encode() + data).hexdigest(),
        }
        found.append(
            {"name": name, "size": size, "from": {"url": hub.url(name), **known, **wrong.get(name, {})}}
        )
    return found


def test_a_chain_from_a_hub(tmp_path):
    source = model(tmp_path / "hub", SIZES)
    pyz, key = program(tmp_path), new_key(False)
    with serving(source) as hub:
        files = HubFiles(REPOSITORY, endpoint=hub.url)
        listed = urls(files, source, SIZES)
        assert {name: file.size for name, file in files.files.items()} == SIZES
        # A range longer than what this hub sends at once breaks off, and is asked for again from there.
        hub.broken = 1
        first = Relay(pyz, tmp_path / "a", {}, key, None, listed=listed)
        second = Relay(pyz, tmp_path / "b", SIZES, key, "a")
        second.upstream("a", first.address)
        assert second.until("done", "failed")["t"] == "done"
        assert first.until("done", "failed")["t"] == "done"
        asked = len(hub.asked)
        first.end()
        # What lies there is used after verification: nothing is asked for again.
        again = Relay(pyz, tmp_path / "a", {}, key, None, listed=listed)
        assert again.until("done", "failed")["reused"] == sum(SIZES.values())
        assert len(hub.asked) == asked
        again.end()
        second.end()
        files.close()
    assert same(source, tmp_path / "a")
    assert same(source, tmp_path / "b")


def test_what_is_not_what_the_hub_says_it_is_stays_out_everywhere(tmp_path):
    source = model(tmp_path / "hub", SIZES)
    pyz, key = program(tmp_path), new_key(True)
    with serving(source) as hub:
        files = HubFiles(REPOSITORY, endpoint=hub.url)
        listed = urls(files, source, SIZES, **{"b.safetensors": {"sha256": "0" * 64}})
        first = Relay(pyz, tmp_path / "a", {}, key, None, listed=listed)
        second = Relay(pyz, tmp_path / "b", SIZES, key, "a")
        second.upstream("a", first.address)
        said = first.until("done", "failed")
        assert said["t"] == "failed"
        assert "b.safetensors is not what the hub says it is" in said["error"]
        assert second.until("done", "failed")["t"] == "failed"
        first.end()
        second.end()
        files.close()
    for node in ("a", "b"):
        assert not (tmp_path / node / "b.safetensors").exists()
        assert (tmp_path / node / "a.safetensors").exists()


def test_a_file_that_the_hub_does_not_give(tmp_path):
    source = model(tmp_path / "hub", {"x.json": 5})
    with serving(source) as hub:
        gone = [
            {"name": "y.json", "size": 7, "from": {"url": f"{hub.url}/nowhere", "sha256": None, "blob": None}}
        ]
        first = Relay(program(tmp_path), tmp_path / "a", {}, new_key(True), None, listed=gone)
        said = first.until("done", "failed")
        first.end()
    assert said["t"] == "failed"
    assert "the hub does not give y.json" in said["error"]
