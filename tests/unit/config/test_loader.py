import os
from pathlib import Path

import pytest

from glmspark.config import RecipeError, load_recipe, recipe_names


def failure(name) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load_recipe(name)
    return caught.value


def test_by_name_by_path_and_by_path_object(tmp_path):
    shipped = load_recipe("glm-tiny")
    copy = tmp_path / "mine.yaml"
    import glmspark.recipes

    copy.write_bytes((Path(glmspark.recipes.__path__[0]) / "glm-tiny.yaml").read_bytes())
    assert load_recipe(str(copy)) == shipped
    assert load_recipe(copy) == shipped


def test_unknown_name_lists_the_nearest_and_all():
    error = failure("glm-tyni")
    assert "did you mean glm-tiny?" in error.hint
    assert all(name in error.hint for name in recipe_names())
    assert (error.path, error.line) == ("glm-tyni", None)
    assert "recipes are" in failure("").hint


def test_a_name_that_is_a_file_here_says_how_to_write_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("x")
    assert "./mine.yaml" in failure("mine").hint


def test_a_dangling_link_does_not_suggest_itself(tmp_path):
    (tmp_path / "mine.yaml").symlink_to(tmp_path / "gone")
    error = failure(tmp_path / "mine.yaml")
    assert "no such file" in error.message
    assert "did you mean" not in error.hint


def test_missing_file_names_the_one_beside_it(tmp_path):
    (tmp_path / "cluster-a.yaml").write_text("x")
    assert "cluster-a.yaml" in failure(tmp_path / "cluster_a.yaml").hint
    assert "no such file" in failure(tmp_path / "zzz" / "q.yaml").message


def test_a_shipped_name_with_a_suffix_says_how_to_write_it(tmp_path):
    assert "write glm-tiny" in failure(tmp_path / "glm-tiny.yaml").hint


def test_an_error_as_json_has_every_problem(tmp_path):
    (tmp_path / "a.yaml").write_text("recipe: 2\nname: A\n")
    found = failure(tmp_path / "a.yaml").to_json()
    assert found["path"] == str(tmp_path / "a.yaml")
    assert found["line"] == found["problems"][0]["line"] == 1
    assert len(found["problems"]) == 5
    assert found["kind"] == "RecipeError"


@pytest.mark.parametrize(
    "name", ["a\0b.yaml", "x" * 5000 + ".yaml", "/" * 300, "\ud800.yaml", "\0", "x" * 5000]
)
def test_impossible_names(name):
    failure(name)


def test_what_is_no_file(tmp_path):
    assert "directory" in failure(tmp_path).message
    assert failure(tmp_path).next == "name the file in it"
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "not a regular file" in failure(tmp_path / "pipe.yaml").message
    assert failure(tmp_path / "pipe.yaml").next == "write a recipe file into a file, and name that"
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    assert "no such file" in failure(tmp_path / "loop.yaml").message
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    assert "not a regular file" in failure(tmp_path / "zero.yaml").message


def test_a_huge_file_is_not_read_whole(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    assert "larger than" in failure(path).message


def test_unreadable_file(tmp_path, monkeypatch):
    path = tmp_path / "secret.yaml"
    path.write_text("x")

    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "Permission denied" in failure(path).message
    assert failure(path).next == f"check the owner and mode of {tmp_path}"
