"""What goes wrong while weights spread, each at a random moment: nothing wrong is accepted, nothing whole
comes twice. Used by the tests, and twenty times each by bench/weights_faults.py."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glmspark.weights.relay.digest import CHUNK, digest
from glmspark.weights.relay.manifest import write_manifest
from tests.unit.weights.relays import Proxy, Relay, flip_on_disk, model, new_key, program, same

SIZES = {"a.safetensors": 4 * CHUNK + 4321, "b.safetensors": 2 * CHUNK, "c.json": 10, "config.json": 777}
TOTAL = sum(SIZES.values())
RATE = 200_000_000


class Scene:
    """A source, a link and a receiver; the receiver has its address once `go` is called."""

    def __init__(self, directory: Path, chance: random.Random, trusted: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.pyz = program(directory)
        self.chance = chance
        self.key = new_key(trusted)
        self.source = model(directory / "source", SIZES, chance.randrange(1000))
        self.target = directory / "target"
        # As a node that was fetched to has it: the hashes of what it gives are known.
        write_manifest(self.source, "blake3", {name: hashes(self.source / name) for name in SIZES})
        self.sender = Relay(self.pyz, self.source, SIZES, self.key, None)
        self.link = Proxy(self.sender.address, RATE)
        streams = chance.choice((1, 3))
        self.receiver = Relay(self.pyz, self.target, SIZES, self.key, "sender", streams=streams)

    def go(self) -> None:
        self.receiver.upstream("sender", self.link.address)

    def somewhere(self) -> None:
        """Wait until a random part has come over the link."""
        wanted = self.chance.random() * 0.9 * TOTAL
        end = time.monotonic() + 60
        while self.link.passed < wanted and time.monotonic() < end:
            time.sleep(0.002)

    def done(self) -> dict:
        """Wait for the end; checks that all is there and right."""
        said = self.receiver.until("done", "failed", seconds=90)
        assert said["t"] == "done", said
        assert same(self.source, self.target)
        assert not [one.name for one in self.target.iterdir() if one.name.endswith((".part", ".journal"))]
        return said

    def close(self) -> None:
        self.link.close()
        for one in (self.sender, self.receiver):
            if one.process.poll() is None:
                one.end()


def kill_sender(scene: Scene) -> None:
    scene.go()
    scene.somewhere()
    scene.sender.kill()
    scene.sender.start()
    scene.link.target = scene.sender.address
    said = scene.done()
    # At most what was on its way (in the link's and the sockets' buffers) came twice.
    assert said["received"] == TOTAL


def kill_receiver(scene: Scene) -> None:
    scene.go()
    scene.somewhere()
    scene.receiver.kill()
    verified = scene.receiver.last.get("verified", 0)
    scene.receiver.start()
    scene.go()
    said = scene.done()
    assert said["received"] + said["reused"] == TOTAL
    assert said["reused"] >= verified


def cut_link(scene: Scene) -> None:
    scene.go()
    for _ in range(3):
        scene.somewhere()
        scene.link.cut()
    assert scene.done()["received"] == TOTAL


def flip_on_wire(scene: Scene) -> None:
    scene.link.flip = scene.chance.randrange(5000, int(TOTAL * 0.95))
    scene.go()
    said = scene.done()
    assert scene.link.flip is None
    assert said["received"] == TOTAL
    assert said["broken"] + said["wrong"] >= 1


def flip_at_receiver(scene: Scene) -> None:
    """A verified chunk is damaged while nothing runs: it is found when the transfer goes on."""
    scene.go()
    scene.somewhere()
    scene.receiver.kill()
    parts = [one for one in scene.target.iterdir() if one.name.endswith(".part")] or [
        scene.target / "a.safetensors"
    ]
    flip_on_disk(parts[0], scene.chance.randrange(parts[0].stat().st_size))
    scene.receiver.start()
    scene.go()
    scene.done()


def flip_at_sender(scene: Scene) -> None:
    """A byte turns over on the disk that gives while it gives: nobody takes it, and its file is named."""
    scene.go()
    scene.somewhere()
    shard, at = scene.source / "a.safetensors", scene.chance.randrange(SIZES["a.safetensors"])
    flip_on_disk(shard, at)
    said = scene.receiver.until("done", "failed", seconds=90)
    flip_on_disk(shard, at)
    if said["t"] == "failed":
        assert "a.safetensors came 3 times from sender" in said["error"], said
        assert not (scene.target / "a.safetensors").exists()
        verified = scene.receiver.last.get("verified", 0)
        scene.receiver.kill()
        scene.receiver.start()
        scene.go()
        again = scene.done()
        assert again["received"] + again["reused"] == TOTAL
        assert again["reused"] >= verified
    else:
        assert same(scene.source, scene.target)


def hashes(path: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    data = path.read_bytes()
    found = [digest("blake3", data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]
    return {"size": len(data), "mtime_ns": path.stat().st_mtime_ns, "digests": b"".join(found).hex()}


FAULTS: dict[str, Callable[[Scene], None]] = {
    one.__name__.replace("_", " "): one
    for one in (kill_sender, kill_receiver, cut_link, flip_on_wire, flip_at_receiver, flip_at_sender)
}


def happen(name: str | Callable[[Scene], None], directory: Path, seed: int) -> None:
    """One fault in a scene of its own; encrypted and trusted by turns."""
    scene = Scene(directory, random.Random(seed), trusted=bool(seed % 2))
    try:
        (FAULTS[name] if isinstance(name, str) else name)(scene)
    finally:
        scene.close()
