"""What goes wrong while weights spread, each at a random moment: nothing wrong is accepted, nothing whole
comes twice. Used by the tests, and twenty times each by bench/weights_faults.py."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from glmspark.weights.relay.digest import CHUNK
from tests.unit.weights.relays import Proxy, Relay, flip_on_disk, model, new_key, program, same

SIZES = {"a.safetensors": 4 * CHUNK + 4321, "b.safetensors": 2 * CHUNK, "c.json": 10, "config.json": 777}
TOTAL = sum(SIZES.values())
RATE = 200_000_000


class Scene:
    """A source, a link and a receiver; the receiver has its address once `go` is called."""

    def __init__(self, directory: Path, chance: random.Random, trusted: bool) -> None:
        directory.mkdir(parents=True)
        self.pyz = program(directory)
        self.chance = chance
        self.key = new_key(trusted)
        self.source = model(directory / "source", SIZES, chance.randrange(1000))
        self.target = directory / "target"
        self.sender = Relay(self.pyz, self.source, SIZES, self.key, None)
        self.link = Proxy(self.sender.address, RATE)
        self.receiver = Relay(self.pyz, self.target, SIZES, self.key, "sender")
        self.received = 0

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
    scene.receiver.start()
    scene.go()
    said = scene.done()
    assert said["received"] + said["reused"] == TOTAL


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


FAULTS: dict[str, Callable[[Scene], None]] = {
    one.__name__.replace("_", " "): one
    for one in (kill_sender, kill_receiver, cut_link, flip_on_wire, flip_at_receiver)
}


def happen(name: str, directory: Path, seed: int) -> None:
    """One fault in a scene of its own; encrypted and trusted by turns."""
    scene = Scene(directory, random.Random(seed), trusted=bool(seed % 2))
    try:
        FAULTS[name](scene)
    finally:
        scene.close()
