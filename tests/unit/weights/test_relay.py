import json
import os
import socket
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmspark.weights.relay.digest import ALGORITHMS, CHUNK, chunks, digest, root, span
from glmspark.weights.relay.store import File
from tests.unit.weights.faults import FAULTS, SIZES, TOTAL, happen
from tests.unit.weights.relays import HOST, Relay, flip_on_disk, model, new_key, program, same


@given(st.integers(0, 40 * CHUNK))
def test_chunks_cover_a_file(size):
    spans = [span(size, index) for index in range(chunks(size))]
    assert sum(end - begin for begin, end in spans) == size
    assert all(0 < end - begin <= CHUNK for begin, end in spans)
    assert [end for _, end in spans[:-1]] == [begin for begin, _ in spans[1:]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_root_tells_every_chunk_its_place_and_the_size(algorithm):
    leaves = [digest(algorithm, bytes([n])) for n in range(5)]
    roots = {root(algorithm, 9, leaves[:count]) for count in range(6)}
    roots |= {root(algorithm, 10, leaves), root(algorithm, 9, leaves[::-1])}
    assert len(roots) == 8


def test_blake3_is_the_real_one():
    assert digest("blake3", b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.sampled_from(["good", "bad", "junk"]), st.integers(0, 2)), max_size=6),
    st.binary(max_size=20),
)
def test_a_journal_is_not_believed(tmp_path_factory, records, tail):
    directory = tmp_path_factory.mktemp("journal")
    data = bytes(CHUNK) + b"x" * CHUNK + b"y" * 10
    right = [digest("blake3", data[index * CHUNK : (index + 1) * CHUNK]) for index in range(3)]
    (directory / ".f.part").write_bytes(data)
    noted = b""
    for kind, index in records:
        said = right[index] if kind == "good" else digest("blake3", kind.encode())
        noted += (index + (kind == "junk") * 1000).to_bytes(4, "little") + said
    (directory / ".f.journal").write_bytes(noted + tail[:35])
    file = File(directory, "f", len(data), "blake3", None)
    file.begin()
    assert all(one is None or one == right[index] for index, one in enumerate(file.digests))
    assert {index for kind, index in records if kind == "good"} <= set(range(3)) - set(file.missing())
    file.close()


@pytest.fixture(scope="module")
def pyz(tmp_path_factory):
    return program(tmp_path_factory.mktemp("relay"))


def test_a_chain_passes_on_while_it_takes(pyz, tmp_path):
    source = model(tmp_path / "a", SIZES)
    key = new_key(False)
    relays = [Relay(pyz, source, SIZES, key, None, rate=60_000_000)]
    for before, name in (("a", "b"), ("b", "c")):
        relays.append(Relay(pyz, tmp_path / name, SIZES, key, before))
    # The last waits before there is anything to have.
    relays[2].upstream("b", relays[1].address)
    relays[1].upstream("a", relays[0].address)
    assert relays[2].until("done")["received"] == TOTAL
    assert relays[1].until("done")["received"] == TOTAL
    assert same(source, tmp_path / "b")
    assert same(source, tmp_path / "c")
    manifests = [(one / ".glmspark-weights.json") for one in (tmp_path / "b", tmp_path / "c")]
    assert len({json.loads(one.read_text())["files"]["a.safetensors"]["digests"] for one in manifests}) == 1
    assert [one.end() for one in relays] == [0, 0, 0]
    for one in (tmp_path / "b", tmp_path / "c"):
        assert not [path.name for path in one.iterdir() if path.name.endswith((".part", ".journal"))]


def test_what_is_there_is_used_after_verification(pyz, tmp_path):
    source = model(tmp_path / "a", SIZES)
    target, other = model(tmp_path / "b", SIZES), tmp_path / "cache" / "snapshots" / "abc"
    (target / "b.safetensors").unlink()
    other.parent.mkdir(parents=True)
    model(other, SIZES)
    (other / "a.safetensors").unlink()
    flip_on_disk(target / "a.safetensors", 2 * CHUNK + 5)
    (target / "c.json").write_text("too long for it")
    key = new_key(True)
    giver = Relay(pyz, source, SIZES, key, None)
    taker = Relay(pyz, target, SIZES, key, "a", elsewhere=[str(tmp_path / "cache" / "snapshots" / "*")])
    taker.upstream("a", giver.address)
    said = taker.until("done", "failed")
    assert said["t"] == "done", said
    # One chunk was wrong in `a`; `b` and `c` lay whole in the other layout.
    assert said["received"] == CHUNK
    assert (target / "b.safetensors").resolve() == other / "b.safetensors"
    assert same(source, target)
    giver.end()
    taker.end()


def test_a_damaged_source_is_named_and_nothing_of_it_accepted(pyz, tmp_path):
    source = model(tmp_path / "a", SIZES)
    key = new_key(True)
    first = Relay(pyz, source, SIZES, key, None)
    taker = Relay(pyz, tmp_path / "b", SIZES, key, "a")
    taker.upstream("a", first.address)
    taker.until("done")
    taker.end()
    first.end()
    # Now the source knows its hashes; a byte turns over, and the file looks untouched.
    status = (source / "a.safetensors").stat()
    again = Relay(pyz, source, SIZES, key, None)
    again.until("done")
    taker = Relay(pyz, tmp_path / "c", SIZES, key, "a")
    taker.upstream("a", again.address)
    taker.until("done")
    again.end()
    taker.end()
    flip_on_disk(source / "a.safetensors", 3 * CHUNK)
    os.utime(source / "a.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns))
    known = json.loads((tmp_path / "b" / ".glmspark-weights.json").read_text())
    known["files"]["a.safetensors"]["mtime_ns"] = status.st_mtime_ns
    (source / ".glmspark-weights.json").write_text(json.dumps(known))
    bad = Relay(pyz, source, SIZES, key, None)
    taker = Relay(pyz, tmp_path / "d", SIZES, key, "a")
    taker.upstream("a", bad.address)
    said = taker.until("done", "failed")
    assert said["t"] == "failed"
    assert "chunk 3 of a.safetensors came 3 times from a" in said["error"]
    assert not (tmp_path / "d" / "a.safetensors").exists()
    bad.end()
    taker.end()


@pytest.mark.parametrize("trusted", [False, True])
def test_whoever_does_not_know_the_secret_gets_nothing(pyz, tmp_path, trusted):
    source = model(tmp_path / "a", SIZES)
    giver = Relay(pyz, source, SIZES, new_key(trusted), None)
    taker = Relay(pyz, tmp_path / "b", SIZES, new_key(trusted), "a")
    taker.upstream("a", giver.address)
    host, port = giver.address.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as plain:
        plain.sendall(b'{"what": "chunks", "file": "c.json", "missing": "01"}' + bytes(100))
        got = b""
        try:
            while piece := plain.recv(1000):
                got += piece
        except OSError:
            pass
        assert len(got) < 1000
    assert taker.last.get("received", 0) == 0
    assert [one.name for one in (tmp_path / "b").iterdir() if one.name == "c.json"] == []
    taker.end()
    giver.end()


def test_it_listens_on_the_given_address_alone(pyz, tmp_path):
    giver = Relay(
        pyz, model(tmp_path / "a", {"x.json": 5}), {"x.json": 5}, new_key(True), None, listen=["127.0.0.2"]
    )
    assert giver.address.startswith("127.0.0.2:")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HOST, int(giver.address.split(":")[1])), timeout=2)
    assert giver.end() == 0


def test_its_end_comes_with_its_input(pyz, tmp_path):
    giver = Relay(pyz, model(tmp_path / "a", {"x.json": 5}), {"x.json": 5}, new_key(True), None)
    assert giver.end() == 0


def test_it_ends_when_whoever_started_it_is_gone_altogether(pyz, tmp_path):
    """Nobody reads any more, and the node that it takes from has not come: it waits for neither."""
    spec = {
        "directory": str(tmp_path / "b"),
        "algorithm": "blake3",
        "files": [{"name": name, "size": 5, "from": "a"} for name in ("x.json", "config.json")],
        "listen": [],
        "key": new_key(True),
    }
    pipe = subprocess.PIPE
    taker = subprocess.Popen([sys.executable, str(pyz), "run"], stdin=pipe, stdout=pipe, stderr=pipe)
    assert taker.stdin is not None
    assert taker.stdout is not None
    taker.stdin.write(json.dumps(spec).encode() + b"\n")
    taker.stdin.flush()
    assert b"listening" in taker.stdout.readline()
    taker.stdout.close()
    taker.stdin.close()
    try:
        assert taker.wait(10) == 0
    finally:
        taker.kill()


def test_two_transfers_do_not_write_into_one_directory(pyz, tmp_path):
    source = model(tmp_path / "a", {"x.json": 5})
    first = Relay(pyz, source, {"x.json": 5}, new_key(True), None)
    second = Relay(pyz, source, {"x.json": 5}, new_key(True), None)
    first.end()
    assert second.process.wait(10) == 1


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "a\nb"])
def test_names_that_lead_elsewhere_are_refused(pyz, tmp_path, name):
    taker = Relay(pyz, tmp_path / "b", {name: 5}, new_key(True), "a")
    assert taker.process.wait(10) == 1


def test_verify_names_what_is_damaged(pyz, tmp_path):
    source = model(tmp_path / "a", SIZES)
    key = new_key(True)
    giver = Relay(pyz, source, SIZES, key, None)
    taker = Relay(pyz, tmp_path / "b", SIZES, key, "a")
    taker.upstream("a", giver.address)
    taker.until("done")
    taker.end()
    giver.end()

    def verify():
        done = subprocess.run(
            [sys.executable, pyz, "verify", tmp_path / "b"], capture_output=True, text=True, check=False
        )
        said = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode, {one["name"]: one["problem"] for one in said if one["t"] == "file"}

    assert verify() == (0, dict.fromkeys(SIZES))
    flip_on_disk(tmp_path / "b" / "a.safetensors", CHUNK + 7)
    os.truncate(tmp_path / "b" / "c.json", 3)
    (tmp_path / "b" / "config.json").unlink()
    code, problems = verify()
    assert code == 1
    assert problems["a.safetensors"] == f"1 of 5 chunks are damaged, the first at byte {CHUNK}"
    assert problems["c.json"] == "has 3 bytes, not 10"
    assert "No such file" in problems["config.json"]
    assert problems["b.safetensors"] is None


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_a_random_moment(tmp_path, name):
    happen(name, tmp_path / "scene", list(FAULTS).index(name))


def test_what_a_kill_left_beside_a_whole_file_goes(pyz, tmp_path):
    """Killed between the rename and the journal's end."""
    source = model(tmp_path / "a", SIZES)
    target = model(tmp_path / "b", SIZES)
    (target / ".a.safetensors.journal").write_bytes(bytes(72))
    key = new_key(True)
    giver = Relay(pyz, source, SIZES, key, None)
    taker = Relay(pyz, target, SIZES, key, "a")
    taker.upstream("a", giver.address)
    assert taker.until("done", "failed")["reused"] == TOTAL
    assert sorted(one.name for one in target.iterdir() if one.name.startswith(".a")) == []
    giver.end()
    taker.end()


def test_a_file_of_another_size_goes_when_the_right_one_has_come(pyz, tmp_path):
    sizes = {"a.safetensors": 9, "config.json": 3}
    source, target = model(tmp_path / "a", sizes), tmp_path / "b"
    target.mkdir()
    (target / "a.safetensors").write_bytes(b"another revision's")
    key = new_key(True)
    giver = Relay(pyz, source, sizes, key, None)
    taker = Relay(pyz, target, sizes, key, "a")
    taker.upstream("a", giver.address)
    assert taker.until("done", "failed")["t"] == "done"
    for one in (giver, taker):
        one.end()
    assert same(source, target)
    assert not list(target.glob(".*.other"))
