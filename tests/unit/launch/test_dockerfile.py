"""The Dockerfiles, read as a linter reads them: one instruction after the other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from glmspark.launch.dockerfile import LabImage, SparkImage, lab_dockerfile, spark_dockerfile

SPARK = SparkImage(version="1.2.3", wheel="glmspark-1.2.3-py3-none-any.whl")
LAB = LabImage(version="1.2.3", base="glmspark-lab:base", path="/v/bin", vllm="0.32.0")
KNOWN = {"FROM", "LABEL", "RUN", "ENV", "COPY", "ENTRYPOINT", "CMD"}


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) with continued lines joined and comments left out."""
    joined = re.sub(r"\\\n", "", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


BOTH = pytest.mark.parametrize("text", [spark_dockerfile(SPARK), lab_dockerfile(LAB)], ids=["spark", "lab"])


@BOTH
def test_only_known_instructions_beginning_with_one_base(text: str) -> None:
    found = instructions(text)
    assert {name for name, _ in found} <= KNOWN
    assert [name for name, _ in found].count("FROM") == 1
    assert found[0][0] == "FROM"


@BOTH
def test_the_base_has_a_tag_and_it_is_not_latest(text: str) -> None:
    base = instructions(text)[0][1]
    name, colon, tag = base.rpartition(":")
    assert name
    assert colon
    assert tag not in ("", "latest")


@BOTH
def test_nothing_stands_before_the_command(text: str) -> None:
    """An image whose entrypoint is the engine's own command starts something else than it is told."""
    words = dict(instructions(text))
    assert words["ENTRYPOINT"] == "[]"
    assert isinstance(json.loads(words["CMD"]), list)


@BOTH
def test_no_secrets_and_no_statistics(text: str) -> None:
    assert not re.search(r"(?i)token|password|secret|api_key", text)
    env = next(rest for name, rest in instructions(text) if name == "ENV")
    assert 'DO_NOT_TRACK="1"' in env
    assert 'VLLM_NO_USAGE_STATS="1"' in env
    assert 'HF_HUB_OFFLINE="1"' in env


@BOTH
def test_labels_say_the_versions(text: str) -> None:
    label = next(rest for name, rest in instructions(text) if name == "LABEL")
    found = dict(re.findall(r'(\S+)="([^"]*)"', label))
    assert found["glmspark.version"] == "1.2.3"
    assert found["glmspark.vllm"] in ("0.33.0", "0.32.0")
    assert "glmspark.base" in found


def test_pip_installs_pinned_versions_only() -> None:
    runs = [rest for name, rest in instructions(spark_dockerfile(SPARK)) if name == "RUN"]
    wanted = [
        word
        for run in runs
        for step in run.split(" && ")
        if (words := step.split())[:2] == ["pip", "install"]
        for word in words[2:]
    ]
    wanted = [word for word in wanted if not word.startswith(("--", "https://", "/tmp/"))]
    assert wanted == ["vllm==0.33.0", "ray==2.60.0", "b12x==1.5.1"]


def test_apt_installs_little_and_leaves_no_lists() -> None:
    (run,) = [rest for name, rest in instructions(spark_dockerfile(SPARK)) if "apt-get" in rest]
    steps = [step.strip() for step in run.split(" && ")]
    assert steps[0] == "apt-get update"
    assert "--no-install-recommends" in steps[1]
    assert "--yes" in steps[1]
    assert "rm -rf /var/lib/apt/lists/*" in steps
    assert "sudo" not in run
    packages = steps[1].split("--no-install-recommends ")[1].split()
    assert packages == sorted(packages, key=lambda name: (name != "gcc", name))
    assert {"gcc", "libibverbs1", "ibverbs-providers", "librdmacm1t64", "libnuma1"} <= set(packages)


def test_no_other_place_is_named_than_pytorchs_index() -> None:
    """The base image's own registry and pip's own index are the engine's and pip's to know."""
    text = spark_dockerfile(SPARK)
    assert set(re.findall(r"https?://([^/\s]+)", text)) == {"download.pytorch.org"}
    assert re.findall(r"https?://", lab_dockerfile(LAB)) == []


def test_the_wheel_is_copied_and_not_left_twice() -> None:
    found = instructions(spark_dockerfile(SPARK))
    assert ("COPY", "glmspark-1.2.3-py3-none-any.whl /tmp/") in found
    assert any(
        "rm /tmp/glmspark-1.2.3-py3-none-any.whl" in rest and "pip install /tmp/" in rest for _, rest in found
    )


def test_what_is_pinned_can_be_another() -> None:
    text = spark_dockerfile(replace(SPARK, vllm="0.34.0", base="nvidia/cuda:13.1.0-devel-ubuntu24.04"))
    assert "vllm==0.34.0" in text
    assert 'glmspark.vllm="0.34.0"' in text
    assert text.splitlines()[1] == "FROM nvidia/cuda:13.1.0-devel-ubuntu24.04"


def check_of_the_build() -> str:
    (argv,) = [
        json.loads(rest) for name, rest in instructions(spark_dockerfile(SPARK)) if rest.startswith("[")
    ][:1]
    assert argv[:2] == ["python3", "-c"]
    code: str = argv[2]
    return code


@pytest.mark.parametrize(
    ("cuda", "nccl", "says"),
    [
        ("'13.0'", "2.30.7", None),
        ("None", "2.30.7", "torch 2.14.0 was built without CUDA"),
        ("'13.0'", "2.28.9", "NCCL 2.28.9: hangs when CUDA graphs"),
    ],
)
def test_the_builds_own_check(tmp_path, cuda: str, nccl: str, says: str | None) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        f"class version:\n    cuda = {cuda}\n__version__ = '2.14.0'\n"
    )
    info = tmp_path / f"nvidia_nccl_cu13-{nccl}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: {nccl}\n")
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\n{check_of_the_build()}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if says is None:
        assert (done.returncode, done.stdout) == (0, f"torch 2.14.0 CUDA 13.0 NCCL {nccl}\n"), done.stderr
    else:
        assert done.returncode == 1
        assert says in done.stderr
