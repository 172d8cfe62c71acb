"""vLLM's parser is found where 0.32 and where 0.33 keep it. The vLLM here is a few files made for this."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CLI_ARGS = """\
def make_arg_parser(parser):
    parser.add_argument("--seen", default={place!r})
    return parser

def validate_parsed_serve_args(args):
    raise SystemExit(args.seen)
"""


def fake_vllm(root: Path, place: str, extra: str = "") -> None:
    for package in ("vllm", "vllm/entrypoints", "vllm/utils", f"vllm/entrypoints/{place}"):
        (root / package).mkdir(parents=True, exist_ok=True)
        (root / package / "__init__.py").write_text("__version__ = '0.99'\n")
    (root / "vllm/utils/argparse_utils.py").write_text(
        "import argparse\nclass FlexibleArgumentParser(argparse.ArgumentParser): pass\n"
    )
    (root / f"vllm/entrypoints/{place}/cli_args.py").write_text(extra + CLI_ARGS.format(place=place))


def run(root: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from glmspark.engine import argument_parser as a; {code}"],
        env={"PYTHONPATH": f"{root}:{ROOT / 'src'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("place", ["common", "launchers"])
def test_both_places(tmp_path: Path, place: str) -> None:
    fake_vllm(tmp_path, place)
    done = run(tmp_path, "print(a.make('x').parse_args([]).seen); a.validator()(a.make('x').parse_args([]))")
    assert (done.stdout, done.stderr.strip()) == (f"{place}\n", place)
    shown = run(tmp_path, "print(a.whole_help())").stdout
    assert shown.startswith("vLLM 0.99\nusage: vllm serve")
    assert "--seen" in shown


def test_a_part_of_an_option_is_no_option(tmp_path: Path) -> None:
    fake_vllm(tmp_path, "common")
    done = run(tmp_path, "a.make('x').parse_args(['--see', '1'])")
    assert done.returncode == 2
    assert "unrecognized arguments: --see 1" in done.stderr


def test_what_the_right_place_itself_lacks_is_said(tmp_path: Path) -> None:
    fake_vllm(tmp_path, "common", extra="import of_torch\n")
    fake_vllm(tmp_path, "launchers")
    assert "No module named 'of_torch'" in run(tmp_path, "a.make('x')").stderr
