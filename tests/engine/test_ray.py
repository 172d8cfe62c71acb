"""Ray nodes: two stages on two nodes say what transformers says; whoever goes takes the others along."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from glmspark.engine.ray.node import FAILED, GONE, STOPPED
from tests.engine.ranks import Layout
from tests.engine.ray_nodes import RayNodes
from tests.engine.reference import Reference
from tools.glm_tiny.prompts import FIXED_PROMPTS

SECRET = "0123456789abcdef" * 4


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def secret(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    return {"GLMSPARK_RAY_SECRET_FILE": str(file)}


def assert_nothing_left(processes: list[psutil.Process], shared: set[Path], scratch: Path) -> None:
    _, alive = psutil.wait_procs(processes, timeout=1)
    assert not alive
    assert not [path for path in shared if path.exists()]
    left = [path for path in scratch.glob("*/*") if not path.name.startswith("torchinductor")]
    assert not left, left


@pytest.mark.timeout(400)
def test_two_stages_on_two_nodes(
    checkpoint: Path, reference: Reference, tmp_path: Path, scratch: Path, secret: dict[str, str]
) -> None:
    """The answers; each stage on the node that the plan has it on; and a killed worker that ends all."""
    plan = {"GLMSPARK_FABRIC": "127.0.0.2@lo,127.0.0.3@lo"}
    with RayNodes(
        checkpoint, Layout(1, 2), tmp_path, environment={**secret, **plan}, scratch=scratch
    ) as nodes:
        asked = [(reference.prompt_ids(prompt), prompt.max_tokens) for prompt in FIXED_PROMPTS[:6]]
        for (ids, _), out in zip(asked, nodes.complete(asked), strict=True):
            assert not reference.disagreements(ids, out)
        # Each node's log has its own worker's words.
        assert "Worker_PP0" in nodes.log(0)
        assert "Worker_PP1" in nodes.log(1)
        assert "Worker_PP1" not in nodes.log(0)
        processes, shared = nodes.everyone(), nodes.shared_memory()
        assert shared
        worker = nodes.find(1, "ray::RayWorker")
        assert SECRET not in " ".join(" ".join(process.cmdline()) for process in processes)
        assert worker.environ()["VLLM_HOST_IP"] == "127.0.0.3"
        time.sleep(1.5)  # a segment made right before the kill may not have been seen yet
        worker.kill()
        assert nodes.end_all(10) == [GONE, FAILED]
    assert_nothing_left(processes, shared, scratch)
    assert "vLLM's worker ended on this node" in nodes.log(1)
    assert "vLLM's worker on node 127.0.0.3 has ended" in nodes.log(0)


@pytest.mark.timeout(200)
def test_however_a_node_ends_all_do_and_nothing_is_left(
    checkpoint: Path, tmp_path: Path, scratch: Path
) -> None:
    """A dead raylet, a SIGTERM, a kill. No model is served here: the head waits for a third node."""
    plan = {"GLMSPARK_FABRIC": "127.0.0.2@lo,127.0.0.3@lo,127.0.0.4@lo"}
    nodes = RayNodes(checkpoint, Layout(1, 3), tmp_path, environment=plan, nodes=3, scratch=scratch)
    try:
        nodes.start_node(0)
        nodes.start_node(1)
        nodes.await_line(1, "joined the head")
        processes = nodes.everyone()
        nodes.find(1, "raylet").kill()
        assert nodes.end_all(10) == [GONE, FAILED]
        assert "Ray's raylet ended on this node" in nodes.log(1)
        assert "node 127.0.0.3 has ended: Ray's raylet ended on this node" in nodes.log(0)
        assert_nothing_left(processes, set(), scratch)

        # Told to stop: the other node hears of it, and nothing is left in three seconds.
        nodes.processes.clear()
        nodes.start_node(0)
        nodes.start_node(1)
        nodes.await_line(1, "joined the head")
        processes = nodes.everyone()
        began = time.monotonic()
        nodes.terminate(0)
        assert nodes.end_all(5) == [STOPPED, STOPPED]
        assert time.monotonic() - began < 3
        assert "was stopped; ending this node" in nodes.log(1)
        assert_nothing_left(processes, set(), scratch)

        # Killed without a word: its processes go all the same, and the other node hears of it.
        nodes.processes.clear()
        nodes.start_node(0)
        nodes.start_node(1)
        nodes.await_line(1, "joined the head")
        processes = nodes.everyone()
        nodes.processes[0].kill()
        assert nodes.processes[1].wait(10) == GONE
        assert "the head at" in nodes.log(1)
        psutil.wait_procs(processes, timeout=3)
        assert_nothing_left(processes, set(), scratch)
    finally:
        nodes.stop()


@pytest.mark.timeout(100)
def test_a_head_that_waits_in_vain(checkpoint: Path, tmp_path: Path, scratch: Path) -> None:
    plan = {"GLMSPARK_FABRIC": "127.0.0.2@lo,127.0.0.3@lo"}
    nodes = RayNodes(checkpoint, Layout(1, 2), tmp_path, environment=plan, scratch=scratch)
    command = nodes.command
    nodes.command = lambda rank: [  # type: ignore[method-assign]
        "2" if word == "60" else word for word in command(rank)
    ]
    try:
        nodes.start_node(0)
        assert nodes.processes[0].wait(60) == GONE
        assert "1 of 2 nodes are here after 2 s: 127.0.0.2; missing: 127.0.0.3" in nodes.log(0)
        assert not list(scratch.glob("*/*"))
    finally:
        nodes.stop()
