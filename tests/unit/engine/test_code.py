"""Questions to code that is not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from glmspark.engine import code as look
from glmspark.engine.code import Code, CodeNotFoundError

SOURCE = """
import somewhere_that_is_not_installed

class Base: ...

if True:
    class Runner(Base, mixins.Other):
        def __init__(self, config):
            self.buffer: Buffer | None = None
            self.sparse = hasattr(config, "index_topk")

        async def run(self, one, /, two, *rest, three=3, **more):
            assert self.buffer is not None
            if self.mode == Mode.NONE:
                return
            if selector.use_sparse:
                raise NotImplementedError("no")

        def _dummy_run(self):
            self.buffer = (
                make()
            )
try:
    def late(): ...
except ImportError:
    pass
"""


@pytest.fixture
def code(tmp_path: Path) -> Code:
    package = tmp_path / "engine"
    (package / "worker").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('this must not run')")
    (package / "worker" / "__init__.py").write_text("")
    (package / "worker" / "runner.py").write_text(SOURCE)
    return Code(package, package="engine")


def test_definitions_are_found_wherever_they_stand(code: Code) -> None:
    assert look.bases(code.find("engine.worker.runner", "Runner")) == ["Base", "mixins.Other"]
    run = code.find("engine.worker.runner", "Runner.run")
    assert look.parameters(run) == ["self", "one", "two", "*rest", "three", "**more"]
    assert code.find("engine.worker.runner", "late").name == "late"
    assert "must not run" in code.source("engine")


@pytest.mark.parametrize(
    ("module", "name", "seen"),
    [
        ("engine.worker.runner", "Runner.stop", "engine.worker.runner has no Runner.stop"),
        ("engine.worker.other", "Runner", "no module engine.worker.other"),
        ("elsewhere.runner", "Runner", "elsewhere.runner is not part of engine"),
    ],
)
def test_what_is_missing_is_named(code: Code, module: str, name: str, seen: str) -> None:
    with pytest.raises(CodeNotFoundError, match=seen):
        code.find(module, name)


def test_what_methods_do(code: Code) -> None:
    runner = code.find("engine.worker.runner", "Runner")
    assert look.methods_assigning(runner, "buffer") == {"__init__": ["None"], "_dummy_run": ["make()"]}
    assert look.tests_attribute(runner, "index_topk")
    assert not look.tests_attribute(runner, "index_top")
    run = code.find("engine.worker.runner", "Runner.run")
    assert look.asserts_not_none(run, "buffer")
    assert not look.asserts_not_none(run, "other")
    assert look.raises_if(run, "use_sparse")
    assert not look.raises_if(run, "Mode")
    assert look.returns_if(run, "Mode")
    assert not look.returns_if(run, "use_sparse")


def test_a_question_to_the_wrong_kind_is_an_error(code: Code) -> None:
    runner = code.find("engine.worker.runner", "Runner")
    with pytest.raises(TypeError, match="is not a function"):
        look.parameters(runner)
    run = code.find("engine.worker.runner", "Runner.run")
    for question in (look.bases, lambda node: look.methods_assigning(node, "x")):
        with pytest.raises(TypeError, match="is not a class"):
            question(run)


def test_an_overlay_stands_for_the_file(code: Code) -> None:
    other = Code(code.root, package="engine", overlay={"engine.worker.runner": "class Other: ..."})
    with pytest.raises(CodeNotFoundError):
        other.find("engine.worker.runner", "Runner")
    assert other.find("engine.worker.runner", "Other")
    assert code.find("engine.worker.runner", "Runner")


def test_a_package_that_is_not_installed() -> None:
    with pytest.raises(CodeNotFoundError, match="the package no_such_package is not installed"):
        Code.installed("no_such_package")
