"""Lockstep on two nodes of the lab, started by hand: over the fabric alone, and what a killed rank does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

import glmspark
from glmspark.lab.shell import shell_argv
from tests.engine.lockstep_ranks import write_secret
from tests.lab.virtual import VirtualSparks

NODES = ("spark1", "spark2")
CHECKPOINT = Path(glmspark.__file__).parent / "recipes" / "checkpoints" / "glm-tiny"
API, MEETING = 8008, 29608
SECRET = "/tmp/lockstep-secret"
FLAGS = {
    "served-model-name": "glm-tiny",
    "dtype": "float32",
    "max-model-len": "2048",
    "kv-cache-memory-bytes": str(128 << 20),
    "tensor-parallel-size": "2",
    "distributed-executor-backend": "glmspark-lockstep",
}

pytestmark = pytest.mark.timeout(240)


class Rank:
    """One rank in a node's namespaces, as a launcher of one's own would start it."""

    def __init__(self, lab: VirtualSparks, rank: int, log: Path) -> None:
        self.node, self.log = NODES[rank], log
        link = lab.cluster.node(self.node).fabric[0]  # type: ignore[union-attr]
        environment = {
            "RANK": rank,
            "WORLD_SIZE": 2,
            "LOCAL_RANK": 0,
            "MASTER_ADDR": lab.fabric(NODES[0])[0],
            "MASTER_PORT": MEETING,
            "VLLM_HOST_IP": link.address.ip,
            "GLOO_SOCKET_IFNAME": link.interface,
            "VLLM_CPU_OMP_THREADS_BIND": rank % (psutil.cpu_count() or 1),
            "GLMSPARK_LOCKSTEP_SECRET_FILE": SECRET,
        }
        words = ["env", *(f"{name}={value}" for name, value in environment.items())]
        words += [sys.executable, "-m", "glmspark.engine.serve", str(CHECKPOINT), "--enforce-eager"]
        for name, value in FLAGS.items():
            words += [f"--{name}", value]
        if rank == 0:
            words += ["--host", lab.address(self.node).host, "--port", str(API)]
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                shell_argv(lab.home, self.node, words, root=True), stdout=sink, stderr=subprocess.STDOUT
            )

    @property
    def main(self) -> psutil.Process:
        """The rank's own process, below the one that entered the node."""
        return psutil.Process(self.process.pid).children()[0]

    def said(self) -> str:
        return self.log.read_text(errors="replace")


@pytest.fixture
def ranks(lab: VirtualSparks, tmp_path: Path) -> Iterator[list[Rank]]:
    """Both ranks, serving."""
    secret = write_secret(tmp_path / "secret").read_bytes()
    for node in NODES:
        place = lab.path(node, SECRET)
        place.touch(mode=0o600)
        place.write_bytes(secret)
    ranks = [Rank(lab, rank, tmp_path / f"rank-{rank}.log") for rank in (0, 1)]
    try:
        wait_healthy(url(lab), ranks)
        yield ranks
    finally:
        for rank in ranks:
            if rank.process.poll() is None:
                for child in psutil.Process(rank.process.pid).children(recursive=True):
                    child.kill()
            rank.process.wait(10)
        for node in NODES:
            lab.path(node, SECRET).unlink()


def url(lab: VirtualSparks) -> str:
    return f"http://{lab.address(NODES[0]).host}:{API}"


def wait_healthy(base: str, ranks: list[Rank]) -> None:
    end = time.monotonic() + 200
    while True:
        try:
            if httpx.get(f"{base}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        for rank in ranks:
            assert rank.process.poll() is None, rank.said()[-3000:]
        assert time.monotonic() < end, "\n".join(rank.said()[-2000:] for rank in ranks)
        time.sleep(0.2)


def test_two_nodes_serve_and_end_together(lab: VirtualSparks, ranks: list[Rank]) -> None:
    client = openai.OpenAI(base_url=f"{url(lab)}/v1", api_key="none", max_retries=0)
    question = [{"role": "user", "content": "What is 37+48?"}]
    answer = client.chat.completions.create(model="glm-tiny", messages=question, temperature=0)  # type: ignore[arg-type]
    assert (answer.choices[0].message.content or "").endswith("85")
    # Each has a /dev/shm of its own: taken for one machine, they would wait in memory that they do not share.
    assert "CPU SHM communicator disabled for group tp" in ranks[0].said()
    assert f"rank 1 on {NODES[1]} ({lab.fabric(NODES[1])[0]}) has come" in ranks[0].said()
    assert f":{MEETING}" not in lab.shell(NODES[0], "ss", "-Hltn"), "the door stays open"

    stream = client.completions.create(
        model="glm-tiny", prompt=[10] * 9, max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    ranks[1].main.send_signal(signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        for _ in stream:
            pass
    assert ranks[0].process.wait(10) == 1
    ranks[1].process.wait(1)
    print(f"rank 1 killed: all gone after {time.monotonic() - begun:.1f} s")
    assert f"rank 1 on {NODES[1]} ({lab.fabric(NODES[1])[0]}) closed the connection" in ranks[0].said()
