"""A deployment's record beside its metrics; what its logs teach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glmspark.config import load_recipe
from glmspark.launch.forecast import compared, planned_run
from glmspark.launch.plan_lessons import learn
from glmspark.launch.record import Deployment, Endpoint, RankRecord, State, home

GIB = 2**30


def record(**changes: Any) -> Deployment:
    """GLM-5.2 on four nodes with RDMA."""
    plan = {
        "platform": "cuda",
        "tp": 4,
        "pp": 1,
        "kv_tokens": 156_928,
        "ranks": [{"hcas": ["rocep1s0f0"], "memory": {"weights": 96 * GIB, "graphs": GIB}}] * 4,
    }
    data: dict[str, Any] = {
        "id": "0" * 12,
        "name": "glm-5.2",
        "boot_id": "boot",
        "created": 0.0,
        "since": 1.0,
        "state": State.STOPPED,
        "recipe": load_recipe("glm-5.2-4x-mtp").model_dump(mode="json"),
        "plan": {**plan, **changes},
        "endpoint": Endpoint(host="h", port=1, url="http://h:1/v1", model="m", needs_key=False),
        "scratch": "/nowhere",
        "ranks": [],
    }
    return Deployment(**data)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    return tmp_path


def test_the_run_of_a_record():
    planned = planned_run(record())
    assert planned is not None
    run, drafter = planned
    assert (run.link.kind, run.tp, run.drafts, drafter) == ("roce", 4, 2, "mtp")
    found = compared(record(), speed=24.0, running=1, tokens=2.2)
    assert found is not None
    assert found.verdict == "as predicted"
    lines = "Using network Socket\n"
    slow = compared(record(), speed=6.0, running=1, tokens=2.2, said=lines)
    assert slow is not None
    assert slow.cause == "NCCL uses sockets where RDMA was planned"
    eager = compared(record(), speed=6.0, running=1, tokens=2.2, said="Using network IB\nEnforce eager set")
    assert eager is not None
    assert eager.cause == "it runs eagerly where CUDA graphs were planned"


@pytest.mark.parametrize("speed", [None, 0.0])
def test_nothing_is_compared_while_nothing_runs(speed):
    assert compared(record(), speed=speed, running=1, tokens=None) is None
    assert compared(record(), speed=20.0, running=0, tokens=None) is None


@pytest.mark.parametrize("changes", [{"platform": "cpu"}, {"tp": "x"}, {"ranks": None}, {"tp": 5}])
def test_no_prediction_without_a_plan_for_gpus(changes):
    assert compared(record(**changes), speed=20.0, running=1, tokens=None) is None


def test_logs_here_are_learned_from(state: Path):
    log = state / "rank-0.log"
    log.write_text("Model loading took 98.07 GiB memory\nGPU KV cache size: 150,016 tokens\n")
    rank = RankRecord(rank=0, node="here", argv=["x"], env={}, log=str(log))
    place = home("glm-5.2")
    place.path.mkdir(parents=True)
    place.write(record().model_copy(update={"ranks": [rank]}))
    (lesson,) = learn()
    assert lesson.recipe == "glm-5.2-4x-mtp"
    assert lesson.weights == pytest.approx(98.07 / 96)
    assert lesson.tokens == pytest.approx(150_016 / 156_928)
    assert learn() == [lesson]
