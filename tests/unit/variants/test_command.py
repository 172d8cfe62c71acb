import subprocess
import sys
from pathlib import Path

import pytest

from tools.glm_tiny.variants import RECORD, VARIANTS, VariantError, derive, is_current, record
from tools.glm_tiny.variants import __main__ as command


def test_help_names_every_variant_and_an_example(capsys):
    with pytest.raises(SystemExit) as ended:
        command.parser().parse_args(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"  {name} " in text for name in VARIANTS)
    assert "example:" in text


@pytest.mark.parametrize("words", [[], ["glm-5.2"], ["glm-tiny-reap", "--unknown"]])
def test_a_wrong_command_line_ends_with_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        command.parser().parse_args(words)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["all", "--to", "x"], "all takes neither --from nor --to"),
        (["dense", "--from", "x"], "dense needs --from and --to"),
    ],
)
def test_what_cannot_be_made_is_one_line_and_1(words, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["variants", *words])
    assert command.main() == 1
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_an_unknown_variant_names_those_there_are():
    with pytest.raises(VariantError, match=r"no variant is called 'glm-huge'; there are glm-tiny-reap, "):
        derive("glm-huge", Path("anywhere"))


def test_neither_the_list_nor_the_command_line_needs_torch():
    code = (
        "import sys; import tools.glm_tiny.variants.__main__, tools.glm_tiny.variants.layouts; "
        "sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode
        == 0
    )


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "glm-tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def written(tmp_path, source):
    """A folder that holds glm-tiny-nvfp4 of `source`, as far as its record says."""
    folder = tmp_path / "glm-tiny-nvfp4"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / RECORD).write_text(record("glm-tiny-nvfp4", source, {}))
    return folder


def test_a_variant_that_is_there_is_not_made_again(written, source, capsys):
    run(written, source)
    assert capsys.readouterr().out.startswith("glm-tiny-nvfp4: up to date")


def test_a_variant_of_another_checkpoint_is_not_overwritten_unasked(written, source):
    (source / "model.safetensors").write_bytes(b"other weights")
    assert not is_current("glm-tiny-nvfp4", source, written)
    with pytest.raises(VariantError, match="see --replace"):
        run(written, source)
    assert (written / "config.json").is_file()


def test_replace_never_removes_a_folder_that_is_no_checkpoint(tmp_path, source):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "letter.txt").write_text("dear")
    with pytest.raises(VariantError, match="is no checkpoint; it stays as it is"):
        run(folder, source, "--replace")
    assert (folder / "letter.txt").read_text() == "dear"


def run(target, source, *more):
    words = ["glm-tiny-nvfp4", "--from", str(source), "--to", str(target), *more]
    command.run(command.parser().parse_args(words))


def test_the_place_is_where_recipes_look(monkeypatch, tmp_path):
    monkeypatch.setenv("GLMSPARK_STATE_DIR", str(tmp_path))
    assert command.checkpoints() == tmp_path / "checkpoints"
    assert command.source_of(VARIANTS["glm-tiny-reap-nvfp4"], None) == tmp_path / "checkpoints/glm-tiny-reap"
    assert command.source_of(VARIANTS["glm-tiny-reap"], None).name == "glm-tiny"
    assert command.source_of(VARIANTS["glm-tiny-reap"], Path("here")) == Path("here")


def test_every_variant_starts_from_one_that_exists():
    assert all(v.source in {"glm-tiny", *VARIANTS} for v in VARIANTS.values())
