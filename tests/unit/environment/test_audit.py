"""A killed pip's traces: made by hand here, file by file, and found again."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.environment import audit


def put(site: Path, name: str, files: dict[str, str], *, finished: bool = True) -> Path:
    """Install a package as pip does, up to its last step or just before it."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    rows = [[f"{info.name}/METADATA", "sha256=x", str((info / "METADATA").stat().st_size)]]
    for path, text in files.items():
        file = site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        rows.append([path, "sha256=x", str(len(text))])
    rows.append([f"{info.name}/RECORD", "", ""])
    if finished:
        (info / "INSTALLER").write_text("pip\n")
        rows.append([f"{info.name}/INSTALLER", "sha256=x", "4"])
        rows.append([f"{name}/__pycache__/x.pyc", "", ""])
        (site / name / "__pycache__").mkdir(parents=True, exist_ok=True)
        (site / name / "__pycache__" / "x.pyc").write_bytes(b"")
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    (info / "RECORD").write_text(text.getvalue())
    return info


def test_whole_packages_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path, "torch", {"torch/__init__.py": "x = 1\n"})
    assert audit.broken(tmp_path) == {}
    assert audit.leftovers(tmp_path) == []


def test_killed_before_the_last_step(tmp_path: Path) -> None:
    info = put(tmp_path, "torch", {"torch/__init__.py": ""}, finished=False)
    assert audit.broken(tmp_path) == {info: "installation did not finish"}


@pytest.mark.parametrize("file", ["RECORD", "METADATA"])
def test_killed_before_its_own_papers_were_written(tmp_path: Path, file: str) -> None:
    info = put(tmp_path, "torch", {"torch/__init__.py": ""})
    (info / file).unlink()
    assert audit.broken(tmp_path) == {info: "installation did not finish"}


def test_killed_while_taking_it_away(tmp_path: Path) -> None:
    info = put(tmp_path, "torch", {"torch/__init__.py": "", "torch/lib.so": "x" * 100})
    (tmp_path / "torch" / "lib.so").unlink()
    (tmp_path / "~orch").mkdir()
    (tmp_path / "~orch-1.0.dist-info").mkdir()
    assert audit.broken(tmp_path) == {info: "torch/lib.so is missing"}
    assert [path.name for path in audit.leftovers(tmp_path)] == ["~orch", "~orch-1.0.dist-info"]


def test_a_file_cut_short_is_found_and_a_longer_one_is_not(tmp_path: Path) -> None:
    torch = put(tmp_path, "torch", {"torch/lib.so": "x" * 100})
    put(tmp_path, "certifi", {"certifi/cacert.pem": "x" * 100})
    (tmp_path / "torch" / "lib.so").write_text("x" * 40)
    (tmp_path / "certifi" / "cacert.pem").write_text("x" * 100 + "our company's certificate")
    assert audit.broken(tmp_path) == {torch: "torch/lib.so is cut short"}


def test_two_packages_may_share_a_file(tmp_path: Path) -> None:
    put(tmp_path, "one", {"shared/__init__.py": "x" * 10})
    put(tmp_path, "two", {"shared/__init__.py": ""})
    assert audit.broken(tmp_path) == {}


def test_mending_hides_the_package_from_pip_and_keeps_the_others(tmp_path: Path) -> None:
    torch = put(tmp_path, "torch", {"torch/__init__.py": ""}, finished=False)
    typer = put(tmp_path, "typer", {"typer/__init__.py": ""})
    (tmp_path / "~orch").mkdir()
    (tmp_path / "~file").write_text("")
    audit.mend(audit.broken(tmp_path), audit.leftovers(tmp_path))
    assert not torch.exists()
    assert audit.infos(tmp_path) == [typer]
    assert audit.leftovers(tmp_path) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert audit.broken(tmp_path / "none") == {}
    assert audit.leftovers(tmp_path / "none") == []


@given(st.binary(max_size=400))
def test_a_record_of_any_bytes_is_no_crash(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    site = tmp_path_factory.mktemp("site")
    info = put(site, "torch", {"torch/__init__.py": ""})
    (info / "RECORD").write_bytes(data)
    assert info in audit.broken(site)
