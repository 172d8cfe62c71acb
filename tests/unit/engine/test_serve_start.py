"""What a rank settles before vLLM is imported."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from glmspark.engine import start_method
from glmspark.engine.addresses import Rank
from glmspark.engine.serve import prepare_environment, rank_of


def test_the_ranks_place_is_read_from_vllms_own_flags() -> None:
    assert rank_of(["MODEL", "-tp", "2"]) == Rank(1, 0, "127.0.0.1", 29501)
    words = (
        "MODEL --port 8000 --nnodes 3 --node-rank=2 --master-addr 198.18.0.1 --master-port 29600 --headless"
    )
    assert rank_of(words.split()) == Rank(3, 2, "198.18.0.1", 29600)
    assert rank_of(["MODEL", "-n", "2", "-r", "1"]) == Rank(2, 1, "127.0.0.1", 29501)


def test_no_statistics_are_sent_and_a_directory_needs_no_network(tmp_path: Path) -> None:
    environ = {"VLLM_NO_USAGE_STATS": "0"}
    prepare_environment(environ, ["org/model", "--port", "8000"])
    assert environ["VLLM_NO_USAGE_STATS"] == environ["DO_NOT_TRACK"] == "1"
    assert "HF_HUB_OFFLINE" not in environ
    prepare_environment(environ, [str(tmp_path)])
    assert environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("cpu", [True, False])
def test_only_an_eager_start_on_the_cpu_compiles_nothing(
    eager: bool, cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_method, "is_cpu_build", lambda: cpu)
    environ: dict[str, str] = {}
    prepare_environment(environ, ["MODEL", *(["--enforce-eager"] if eager else [])])
    assert environ.get("TORCH_COMPILE_DISABLE") == ("1" if eager and cpu else None)


def test_wrong_addresses_end_the_process_at_once() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "glmspark.engine.serve", "MODEL", "--nnodes", "2", "--node-rank", "5"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "glmspark.engine.serve: --node-rank 5 is not among 0..1 (--nnodes 2)\n"
    assert time.monotonic() - began < 5


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """An installed CPU build with the two libraries it wants preloaded."""
    found = [tmp_path / "libtcmalloc_minimal.so.4", tmp_path / "libgomp.so.1"]
    monkeypatch.setattr(start_method, "is_cpu_build", lambda: True)
    monkeypatch.setattr(start_method, "preloads", lambda: found)
    return found


def test_a_cpu_rank_is_prepared_to_fork_once(libraries: list[Path]) -> None:
    first = start_method.prepared({"LD_PRELOAD": "/x.so", "HOME": "/root"})
    assert first is not None
    assert first["LD_PRELOAD"] == ":".join([*map(str, libraries), "/x.so"])
    assert first["OMP_NUM_THREADS"] == "1"
    assert first["OMP_WAIT_POLICY"] == "passive"
    assert first["HOME"] == "/root"
    assert start_method.forks(first)
    assert start_method.prepared(first) is None


def test_who_wants_to_spawn_spawns(libraries: list[Path]) -> None:
    environ = {start_method.VARIABLE: "spawn"}
    assert start_method.prepared(environ) is None
    assert not start_method.forks(environ)


def test_without_the_openmp_library_vllms_own_way_holds(
    libraries: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_method, "preloads", lambda: libraries[:1])
    assert start_method.prepared({}) is None
    monkeypatch.setattr(start_method, "is_cpu_build", lambda: False)
    assert start_method.prepared({}) is None
