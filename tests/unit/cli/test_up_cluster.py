"""`glmspark up --cluster` where it must not even look at a node, and how it speaks of one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from glmspark.cli.progress import PlainDisplay
from glmspark.cli.up_cluster import tunnel
from glmspark.config.cluster import parse_cluster
from glmspark.launch.record import ClusterSite, State, home
from tests.unit.cli.commands import Done, Glmspark, toy_recipe
from tests.unit.launch.starts import make_start

NODES = """\
nodes:
  - {name: spark1, address: 192.0.2.1, fabric: [{interface: fab0, address: 10.0.0.1/24}]}
  - {name: spark2, address: 192.0.2.2, fabric: [{interface: fab0, address: 10.0.0.2/24}]}
"""


def cluster_file(directory: Path, runtime: str = "{image: 'i:1'}") -> Path:
    path = directory / "cluster.yaml"
    path.write_text(f"cluster: 1\nruntime: {runtime}\n{NODES}")
    return path


def refused(done: Done, *texts: str) -> None:
    assert done.code in (1, 2)
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    for text in texts:
        assert text in done.err


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("--tp", "2", "--pp", "2"), ("2 nodes are too few for 4 ranks", "--tp and --pp whose product is 2")),
        (("--nodes", "spark1,spark7"), ("no node spark7", "its nodes are spark1, spark2")),
        (("--nodes", ","), ("--nodes names no node",)),
        (("--nodes", "spark1"), ("1 node is too few for 2 ranks",)),
        (("--backend", "mpi"), ("there is no backend mpi", "mp, ray, lockstep")),
        (("--host", "10.0.0.1"), ("no API key is set",)),
        (("--restarts", "often"), ("--restarts often: expected N or N/MINUTES", "--restarts 3/30")),
        (("--restarts", "3/0"), ("--restarts 3/0: expected N or N/MINUTES",)),
    ],
)
def test_what_needs_no_look(
    glmspark: Glmspark, tmp_path: Path, words: tuple[str, ...], texts: tuple[str, ...]
):
    refused(glmspark("up", toy_recipe(tmp_path), "--cluster", cluster_file(tmp_path), *words), *texts)


def test_a_cluster_without_an_image(glmspark: Glmspark, tmp_path: Path) -> None:
    file = cluster_file(tmp_path, "{kind: docker}")
    refused(glmspark("up", toy_recipe(tmp_path), "--cluster", file), "names no image", "glmspark image build")


def test_a_cluster_file_that_is_not_there(glmspark: Glmspark, tmp_path: Path) -> None:
    refused(glmspark("up", toy_recipe(tmp_path), "--cluster", tmp_path / "none.yaml"), "no such file")


@pytest.mark.parametrize("option", ["--nodes", "--lock", "--locked"])
def test_options_of_a_cluster_without_one(glmspark: Glmspark, tmp_path: Path, option: str) -> None:
    refused(glmspark("up", toy_recipe(tmp_path), option, "x"), f"{option} is for a cluster")


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_lock_file_that_is_none(glmspark: Glmspark, tmp_path: Path, dry_run: tuple[str, ...]) -> None:
    (tmp_path / "l.json").write_text("{}")
    file = cluster_file(tmp_path)
    refused(
        glmspark("up", toy_recipe(tmp_path), "--cluster", file, "--locked", tmp_path / "l.json", *dry_run),
        "not a lock file",
        "--lock FILE",
    )


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_lock_file_that_could_not_be_written(
    glmspark: Glmspark, tmp_path: Path, dry_run: tuple[str, ...]
) -> None:
    for place in (tmp_path / "none/l.json", tmp_path):
        words = ("--cluster", cluster_file(tmp_path), "--lock", place, *dry_run)
        done = glmspark("up", toy_recipe(tmp_path), *words)
        refused(done, f"{place} cannot be written")


def test_one_that_serves_on_a_cluster_is_not_started_here(glmspark: Glmspark, tmp_path: Path) -> None:
    where, start = home("toy"), make_start("toy", "serves", "serves")
    start.cluster = ClusterSite(cluster={}, directories={})
    start.turn(State.READY)
    where.path.mkdir(parents=True)
    where.write(start)
    refused(glmspark("up", toy_recipe(tmp_path)), "toy already runs on here, here", "glmspark down toy")
    kept = where.read()
    assert kept is not None
    assert kept.state is State.READY
    where.record_file.unlink()


def test_the_tunnel_is_ssh_s_own() -> None:
    text = f"cluster: 1\nssh: {{user: me, port: 2222, identity_file: ~/.ssh/k}}\n{NODES}"
    start = make_start("toy", "serves")
    start.endpoint.port = 8000
    assert tunnel(parse_cluster(text.encode(), "c"), "spark2", start) == [
        *("ssh", "-N", "-L", "8000:127.0.0.1:8000", "-p", "2222", "-i", "~/.ssh/k", "me@192.0.2.2")
    ]


def test_steps_before_the_ranks_are_lines_and_progress_is_one() -> None:
    out = io.StringIO()
    display = PlainDisplay("toy", out)
    for text in ("reaching spark1", "copying i:1: 1 MiB of 5 MiB", "copying i:1: 2 MiB of 5 MiB", "looking"):
        display.note(text)
    lines = [line.split("  ", 1)[-1].strip() for line in out.getvalue().splitlines()]
    assert [line.split(" s  ")[-1] for line in lines] == [
        "reaching spark1",
        "copying i:1: 1 MiB of 5 MiB",
        "looking",
    ]
