"""`glmspark image build`, with a docker that only says what it was asked."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from glmspark import __version__
from glmspark.launch import image_build
from tests.unit.cli.commands import Glmspark

TAG = f"glmspark:{__version__}"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` that writes down each call. The file `arch`: what it runs on; `fail`: builds fail."""
    place = tmp_path / "docker"
    (place / "bin").mkdir(parents=True)
    (place / "arch").write_text("linux/arm64")
    program = place / "bin" / "docker"
    program.write_text(
        f"#!/bin/sh\nhere={place}\n"
        'echo "$*" >> $here/calls\n'
        'case "$*" in\n'
        "  version*) cat $here/arch;;\n"
        "  *' build '*|build*) for last; do :; done; cp -r $last $here/context; test ! -e $here/fail;;\n"
        "  *inspect*) echo sha256:0123456789abcdef;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return place


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    file = tmp_path / f"glmspark-{__version__}-py3-none-any.whl"
    file.write_bytes(b"a wheel")
    return file


def calls(docker: Path) -> list[str]:
    return (docker / "calls").read_text().splitlines()


def test_the_files_alone_with_a_wheel_of_this_source(glmspark: Glmspark, tmp_path: Path) -> None:
    place = tmp_path / "new" / "context"
    done = glmspark("image", "build", "--write-only", place)
    assert done.code == 0, done.err
    assert f"next: docker build --platform linux/arm64 --tag {TAG} {place}" in done.out
    name = f"glmspark-{__version__}-py3-none-any.whl"
    assert {path.name for path in place.iterdir()} == {"Dockerfile", ".dockerignore", name}
    assert f"COPY {name} /tmp/" in (place / "Dockerfile").read_text()
    assert (place / ".dockerignore").read_text() == f"*\n!{name}\n"
    packed = zipfile.ZipFile(place / name).namelist()
    assert "glmspark/engine/plugin.py" in packed
    assert "glmspark/recipes/glm-tiny.yaml" in packed


def test_a_dockerfile_that_is_there_is_kept(glmspark: Glmspark, tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM mine")
    done = glmspark("image", "build", "--write-only", tmp_path, "--wheel", wheel)
    assert (done.code, (tmp_path / "Dockerfile").read_text()) == (2, "FROM mine")
    assert "--force" in done.err
    other = tmp_path / "other"
    other.mkdir()
    again = glmspark("image", "build", "--write-only", other, "--wheel", wheel, "--json")
    assert again.json["build"] == image_build.docker_build(TAG, "linux/arm64", str(other))


def test_it_is_built_where_that_can_be(glmspark: Glmspark, docker: Path, wheel: Path) -> None:
    done = glmspark("image", "build", "--wheel", wheel, "--json")
    assert done.code == 0, done.err
    assert done.json == {"tag": TAG, "id": "sha256:0123456789abcdef", "node": None}
    asked, built, looked = calls(docker)
    assert asked == "version --format {{.Server.Os}}/{{.Server.Arch}}"
    assert built.startswith(f"build --platform linux/arm64 --tag {TAG} /")
    assert looked == f"image inspect --format {{{{.Id}}}} {TAG}"
    assert {path.name for path in (docker / "context").iterdir()} == {
        "Dockerfile",
        ".dockerignore",
        wheel.name,
    }
    assert not Path(built.split()[-1]).exists()  # the context was temporary


def test_an_engine_of_another_kind_is_refused_before_it_begins(
    glmspark: Glmspark, docker: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (docker / "arch").write_text("linux/amd64")
    monkeypatch.setattr(image_build, "_QEMU", tmp_path)
    monkeypatch.setattr(image_build.machine, "machine", lambda: "x86_64")
    done = glmspark("image", "build", "--wheel", wheel)
    assert done.code == 1
    assert "this Docker Engine is linux/amd64 and cannot run the programs of linux/arm64" in done.err
    assert "DOCKER_HOST=ssh://" in done.err
    assert len(calls(docker)) == 1
    assert glmspark("image", "build", "--wheel", wheel, "--platform", "linux/amd64").code == 0
    (tmp_path / "qemu-aarch64").write_text("enabled")
    assert glmspark("image", "build", "--wheel", wheel).code == 0


def test_a_build_that_fails(glmspark: Glmspark, docker: Path, wheel: Path) -> None:
    (docker / "fail").touch()
    done = glmspark("image", "build", "--wheel", wheel, "--tag", "mine:1")
    assert done.code == 1
    assert "docker build left with 1" in done.err
    assert "--tag mine:1" in done.err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--lab", "--write-only", "/tmp/x"), 2, "--lab goes with neither"),
        (("--wheel", "/etc/passwd", "--write-only", "DIR"), 2, "/etc/passwd is no wheel of glmspark"),
        (("--lab",), 1, "no lab"),
    ],
)
def test_what_is_refused(
    glmspark: Glmspark, tmp_path: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    done = glmspark("image", "build", *(str(tmp_path / "d") if word == "DIR" else word for word in words))
    assert done.code == code
    assert text in done.err


def test_without_docker(glmspark: Glmspark, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    done = glmspark("image", "build", "--wheel", wheel)
    assert done.code == 1
    assert "cannot ask Docker: No such file or directory" in done.err
    assert "--write-only DIR" in done.err


def test_an_installed_glmspark_needs_its_wheel(
    glmspark: Glmspark, docker: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(image_build, "__file__", str(tmp_path / "lib/python/site-packages/glmspark/x.py"))
    done = glmspark("image", "build", "--write-only", tmp_path / "d")
    assert done.code == 1
    assert "--wheel FILE" in done.err
    assert json.dumps("Dockerfile") not in done.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--tag", "A B"), "'A B' is no image name"),
        (("--tag=--privileged",), "'--privileged' is no image name"),
        (("--tag", ""), "'' is no image name"),
        (("--platform", "arm64"), "'arm64' is no platform"),
        (("--platform", ""), "'' is no platform"),
    ],
)
def test_names_that_docker_would_refuse(
    glmspark: Glmspark, tmp_path: Path, wheel: Path, words: tuple[str, ...], text: str
) -> None:
    done = glmspark("image", "build", "--write-only", tmp_path / "d", "--wheel", wheel, *words)
    assert done.code == 2
    assert text in done.err
    assert not (tmp_path / "d").exists()
