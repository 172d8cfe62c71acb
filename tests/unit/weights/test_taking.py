"""What the side that takes does with remains of another transfer, with breaks, and with its own faults."""

import hashlib
import io
import json
import os
import socket
import ssl
import struct
import threading
import time
import urllib.request

import pytest

from glmspark.weights.relay import program as relay_program
from glmspark.weights.relay import pull
from glmspark.weights.relay.check import verify
from glmspark.weights.relay.digest import CHUNK, SIZE, digest, root
from glmspark.weights.relay.manifest import MANIFEST
from glmspark.weights.relay.serve import END, FRAME, WAIT, Pace, Server
from glmspark.weights.relay.store import File, TransferError
from glmspark.weights.relay.wire import TIMEOUT
from glmspark.weights.verify import Checked, _compare, _hear
from tests.unit.weights.relays import Relay, model, new_key, program, same


def test_remains_of_another_model_are_not_mixed_into_this_one(tmp_path):
    """An earlier transfer of a file with that name and size was broken off; its journal is right about it."""
    sizes = {"a.safetensors": 4 * CHUNK, "config.json": 10}
    source = model(tmp_path / "a", sizes)
    other = model(tmp_path / "other", sizes, seed=2)
    target = tmp_path / "b"
    target.mkdir()
    mine, theirs = ((one / "a.safetensors").read_bytes() for one in (source, other))
    # Chunk 0 is the other model's, chunk 1 is this one's.
    (target / ".a.safetensors.part").write_bytes(theirs[:CHUNK] + mine[CHUNK : 2 * CHUNK] + bytes(2 * CHUNK))
    (target / ".a.safetensors.journal").write_bytes(
        struct.pack(f"<I{SIZE}s", 0, digest("blake3", theirs[:CHUNK]))
        + struct.pack(f"<I{SIZE}s", 1, digest("blake3", mine[CHUNK : 2 * CHUNK]))
    )
    pyz, key = program(tmp_path), new_key(True)
    giver = Relay(pyz, source, sizes, key, None)
    taker = Relay(pyz, target, sizes, key, "a")
    taker.upstream("a", giver.address)
    said = taker.until("done", "failed")
    giver.end()
    taker.end()
    assert said["t"] == "done", said
    assert same(source, target)
    assert said["received"] == 3 * CHUNK + 10  # what is right of it stays


class Scripted:
    """A connection that gives bytes, and then breaks."""

    def __init__(self, *parts: bytes, pause: float = 0.0) -> None:
        self._data = b"".join(parts)
        self._pause = pause

    def send_json(self, value: object) -> None:
        pass

    def receive(self, count: int) -> memoryview:
        if len(self._data) < count:
            time.sleep(self._pause)
            raise ConnectionError("cut")
        data, self._data = self._data[:count], self._data[count:]
        return memoryview(data)

    def hear(self, count: int) -> memoryview:
        return self.receive(count)

    def close(self) -> None:
        pass


def test_a_break_after_a_long_wait_is_not_the_end(tmp_path, monkeypatch):
    """The other side had told all the time that it lives: the time to come back begins with the break."""
    monkeypatch.setattr(pull, "_AGAIN", 1.0)
    file = File(tmp_path, "a", 5, "blake2b", None)
    whole = [digest("blake2b", b"hello")]
    answer = FRAME.pack(END, SIZE, root("blake2b", 5, whole)) + whole[0]

    class Slow(Scripted):
        def receive(self, count: int) -> memoryview:
            time.sleep(0.4)
            return super().receive(count)

    wires = [Slow(*[FRAME.pack(WAIT, 0, bytes(SIZE))] * 4), Scripted(answer)]
    monkeypatch.setattr(pull, "connect", lambda *_: wires.pop(0))
    peer = pull.Peer("b", lambda: "198.18.0.1:1", {})
    assert peer.digests(file) == whole


def test_a_chunk_that_nobody_asked_for_is_not_written_over_a_verified_one(tmp_path, monkeypatch):
    monkeypatch.setattr(pull, "_AGAIN", 0.0)
    file = File(tmp_path, "a", CHUNK + 5, "blake2b", None)
    file.begin()
    file.put(1, 0, memoryview(b"right"))
    assert file.accept(1, digest("blake2b", b"right"), digest("blake2b", b"right"))

    class Odd(Scripted):
        def receive(self, count: int, _into: object = None) -> memoryview:
            return super().receive(count)

    wire = Odd(FRAME.pack(1, 5, digest("blake2b", b"wrong")) + b"wrong")
    monkeypatch.setattr(pull, "connect", lambda *_: wire)
    with pytest.raises(TransferError, match="sent 5 bytes for chunk 1"):
        pull.Peer("b", lambda: "198.18.0.1:1", {}).fetch(file)
    assert (tmp_path / ".a.part").read_bytes()[CHUNK:] == b"right"
    file.close()


def test_an_answer_that_is_no_http_is_asked_for_again(tmp_path):
    data = b"five!"
    answers = [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nConnection: close\r\n\r\n" + data,
    ]
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answer in answers:
            near, _ = server.accept()
            with near:
                near.recv(65536)
                near.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    url = f"http://127.0.0.1:{server.getsockname()[1]}/a"
    hub = pull.Hub(url, {}, sha256=hashlib.sha256(data).hexdigest(), blob=None, pace=Pace(None))
    file = File(tmp_path, "a", len(data), "blake2b", None)
    file.begin()
    hub.fetch(file)
    assert hub.check(file)
    file.close()
    server.close()


@pytest.mark.parametrize(
    "fault",
    [
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
        OSError(113, "No route to host"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
@pytest.mark.parametrize("when", ["asked", "answered"])
def test_what_the_network_does_is_not_taken_for_the_disk(tmp_path, monkeypatch, fault, when):
    data = b"five!"

    class Answer(io.BytesIO):
        status = 206
        breaks = False

        def readinto(self, view):
            if self.breaks:
                raise fault
            return super().readinto(view)

    tries = iter(range(9))

    def opened(*_, **__):
        first = next(tries) == 0
        if first and when == "asked":
            raise fault
        answer = Answer(data)
        answer.breaks = first
        return answer

    monkeypatch.setattr(pull._OPENER, "open", opened)
    monkeypatch.setattr(pull.time, "sleep", lambda _: None)
    file = File(tmp_path, "a", len(data), "blake2b", None)
    file.begin()
    pull.Hub("https://hub.example/a", {}, sha256=None, blob=None, pace=Pace(None)).fetch(file)
    assert not file.missing()
    # The disk's own faults end it.
    file.digests = [None]
    monkeypatch.setattr(file, "put", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        pull.Hub("https://hub.example/a", {}, sha256=None, blob=None, pace=Pace(None)).fetch(file)
    file.close()


def test_a_low_rate_leaves_no_connection_silent(tmp_path):
    """At 1 MB a second, shared by eight connections, a chunk takes longer than TIMEOUT."""
    (tmp_path / "a").write_bytes(bytes(CHUNK + 5))
    file = File(tmp_path, "a", CHUNK + 5, "blake2b", None)
    file.offer()
    server = Server({}, {}, 1_000_000)
    done: list[int] = []
    server._pace.take = done.append

    class Wire:
        def say(self, data: bytes) -> None:
            pass

        def send(self, data: memoryview) -> None:
            assert done[-1] == len(data)  # what it waited for goes at once

    server._chunks(Wire(), file, b"\x03", bytearray(CHUNK))
    assert sum(done) == CHUNK + 5
    assert max(done) * 8 / 1_000_000 < TIMEOUT / 10
    file.close()


def test_a_source_that_hashes_for_long_says_that_it_lives(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(3 * CHUNK))
    file = File(tmp_path, "a", 3 * CHUNK, "blake2b", None)
    file.offer()
    said: list[int] = []

    class Wire:
        def say(self, data: bytes) -> None:
            said.append(FRAME.unpack(data)[0] if len(data) == FRAME.size else len(data))

    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr("glmspark.weights.relay.serve.time.monotonic", lambda: next(clock))
    Server({}, {}, None)._digests(Wire(), file, bytearray(CHUNK))
    assert said[0] == WAIT
    assert said[-2:] == [END, 3 * SIZE]
    file.close()


def test_a_fault_of_its_own_is_told(tmp_path, monkeypatch, capsys):
    spec = {"directory": str(tmp_path), "algorithm": "blake2b", "files": [], "key": {}}
    transfer = relay_program.Transfer(spec)

    def broken() -> None:
        raise KeyError("odd")

    monkeypatch.setattr(transfer, "_check_room", broken)
    transfer._fetch_all()
    said = json.loads(capsys.readouterr().out)
    assert said["t"] == "failed"
    assert "KeyError('odd')" in said["error"]
    assert transfer.failed


@pytest.mark.parametrize(
    ("begin", "end", "kept"),
    [
        ("https://hub.example/a", "https://hub.example/b", True),
        ("http://hub.example/a", "https://hub.example/b", True),
        ("https://hub.example/a", "https://cdn.example/b", False),
        ("https://hub.example/a", "http://hub.example/b", False),
    ],
)
def test_the_token_goes_to_the_hub_alone(begin, end, kept):
    request = urllib.request.Request(begin, headers={"Authorization": "Bearer hidden", "Range": "bytes=0-1"})
    after = pull._Redirects().redirect_request(request, None, 302, "Found", {}, end)
    assert after.has_header("Authorization") is kept
    assert after.has_header("Range")


@pytest.mark.parametrize(
    "entries",
    [
        {"a": {"size": 5, "digests": ""}},  # nothing to compare with: whatever lies there would be right
        {"../a": {"size": 5, "digests": "00" * 32}},
        {"a": {"size": 5}},
        {"a": {"size": "5", "digests": "00" * 32}},
        ["a"],
    ],
)
def test_a_manifest_that_is_not_whole_verifies_nothing(tmp_path, capsys, entries):
    (tmp_path / "a").write_bytes(b"wrong")
    text = json.dumps({"algorithm": "blake2b", "chunk": CHUNK, "files": entries})
    (tmp_path / MANIFEST).write_text(text)
    assert not verify(tmp_path)
    (said,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert said["t"] == "failed"
    assert "no whole .glmspark-weights.json" in said["error"]


def kept(directory, *names):
    """Hashes kept of some of a directory's files."""
    found = {
        name: {"size": 2, "mtime_ns": 0, "digests": digest("blake2b", (directory / name).read_bytes()).hex()}
        for name in names
    }
    (directory / MANIFEST).write_text(json.dumps({"algorithm": "blake2b", "chunk": CHUNK, "files": found}))


def test_what_did_not_come_is_not_verified(tmp_path, capsys):
    """A transfer of parts was broken off: it keeps the hashes of each as it comes."""
    for name in ("a.safetensors", "b.safetensors", "config.json"):
        (tmp_path / name).write_text("{}")
    names = ["a.safetensors", "b.safetensors", "c.safetensors", "../d"]
    index = json.dumps({"weight_map": {name: name for name in names}})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    kept(tmp_path, "a.safetensors", "config.json")
    assert not verify(tmp_path)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["name"] for one in said if one["t"] == "file" and not one["ok"]] == ["c.safetensors"]
    assert said[-1]["unhashed"] == 2  # the other shard, and the index
    (tmp_path / "c.safetensors").write_text("{}")
    assert verify(tmp_path)
    (tmp_path / "config.json").unlink()
    kept(tmp_path, "a.safetensors")
    assert not verify(tmp_path)
    assert "config.json" in capsys.readouterr().out


def test_nodes_with_two_revisions_are_told_apart(tmp_path, capsys):
    """Each has what came to it; a part is compared by what it was cut out of."""
    found = {}
    for node, (data, of) in {"n1": ("aa", "11"), "n2": ("bb", "11"), "n3": ("aa", "22")}.items():
        place = tmp_path / node
        place.mkdir()
        (place / "config.json").write_text("{}" if node != "n2" else "[]")
        (place / "a.safetensors").write_text(data)
        (place / "index.json").write_text(node)
        kept(place, "a.safetensors", "config.json")
        manifest = json.loads((place / MANIFEST).read_text())
        manifest["files"]["a.safetensors"]["of"] = {"root": of * SIZE}
        (place / MANIFEST).write_text(json.dumps(manifest))
        assert verify(place)
        found[node] = Checked(node)
        for line in capsys.readouterr().out.splitlines():
            _hear(found[node], json.loads(line))
    _compare(found)
    assert {node: list(one.problems) for node, one in found.items()} == {
        "n1": [],
        "n2": ["config.json"],
        "n3": ["a.safetensors"],
    }
    assert "not of the file that n1 has" in found["n3"].problems["a.safetensors"]


def test_two_revisions_are_no_model(tmp_path):
    """A transfer over another revision is broken off: nobody takes what lies there for a model."""
    sizes = {"a.safetensors": 2, "b.safetensors": 3 * CHUNK, "config.json": 2}
    source, target = model(tmp_path / "a", sizes), model(tmp_path / "b", sizes, seed=2)
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    (target / "b.safetensors").write_bytes(bytes(5))
    gone = {"size": 2, "mtime_ns": 0, "digests": "00" * SIZE}
    manifest = {"algorithm": "blake3", "chunk": CHUNK, "files": {"gone": gone}}
    (target / MANIFEST).write_text(json.dumps(manifest))
    pyz, key = program(tmp_path), new_key(True)
    slow = Relay(pyz, source, sizes, key, None, rate=1_000_000)
    taker = Relay(pyz, target, sizes, key, "a", streams=1)
    taker.upstream("a", slow.address)
    assert taker.until("have", "failed")["name"] == "a.safetensors"
    taker.kill()
    assert not (target / "config.json").exists()
    slow.kill()
    giver = Relay(pyz, source, sizes, key, None)
    taker.start()
    taker.upstream("a", giver.address)
    said = taker.until("done", "failed")
    giver.end()
    taker.end()
    assert said["t"] == "done", said
    assert said["reused"] >= 4  # config.json was right, and was taken up again
    assert same(source, target)
    assert not list(target.glob(".config.json.*"))
    assert json.loads((target / MANIFEST).read_text())["files"].keys() == sizes.keys()


def test_a_disk_that_does_not_read_is_named(tmp_path):
    file = File(tmp_path, "a", 5, "blake2b", None)
    file.begin()
    file.close()
    file._handle = os.open(tmp_path / ".a.part", os.O_WRONLY)
    with pytest.raises(TransferError, match=r"/a cannot be read: Bad file descriptor"):
        file.read(0, bytearray(CHUNK))
    file.close()
