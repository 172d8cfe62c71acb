"""vLLM's code as text: what a patch's precondition looks at, without importing or running any of it.

A precondition asks small questions ("does this method still test for `index_topk`?") of the syntax tree. So
it is cheap (no torch import), has no side effects, and fails when the code it relies on has changed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import textwrap
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


class CodeNotFoundError(LookupError):
    """A module, class or function that a precondition looked for is not in this vLLM."""


class Code:
    """Read-only view of one installed package's source files.

    `overlay` replaces the text of single modules (module name to source), so that a test can show a patch an
    altered vLLM without touching the installed one.
    """

    def __init__(self, root: Path, *, package: str = "vllm", overlay: dict[str, str] | None = None) -> None:
        self.root = root
        self.package = package
        self._overlay = dict(overlay or {})
        self._trees: dict[str, ast.Module] = {}

    @classmethod
    def installed(cls, package: str = "vllm", **kwargs: dict[str, str] | None) -> Code:
        """The package as installed. Raises `CodeNotFoundError` where it is not; imports nothing of it."""
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise CodeNotFoundError(f"the package {package} is not installed")
        return cls(Path(next(iter(spec.submodule_search_locations))), package=package, **kwargs)

    def source(self, module: str) -> str:
        """Text of `module` (dotted name). Raises `CodeNotFoundError` if there is no such file."""
        if module in self._overlay:
            return self._overlay[module]
        parts = module.split(".")
        if parts[0] != self.package:
            raise CodeNotFoundError(f"{module} is not part of {self.package}")
        base = self.root.joinpath(*parts[1:])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path.read_text(encoding="utf-8")
        raise CodeNotFoundError(f"no module {module} in {self.root}")

    def tree(self, module: str) -> ast.Module:
        """Syntax tree of `module`, parsed once."""
        if module not in self._trees:
            self._trees[module] = ast.parse(self.source(module))
        return self._trees[module]

    def find(self, module: str, qualname: str) -> ast.ClassDef | Function:
        """The class or function `qualname` ("Class", "function", "Class.method") of `module`.

        Raises `CodeNotFoundError` naming what is missing.
        """
        body: list[ast.stmt] = self.tree(module).body
        node: ast.ClassDef | Function | None = None
        for name in qualname.split("."):
            node = next((item for item in _definitions(body) if item.name == name), None)
            if node is None:
                raise CodeNotFoundError(f"{module} has no {qualname}")
            body = node.body
        assert node is not None  # noqa: S101 - qualname has at least one part
        return node

    def segment(self, module: str, qualname: str) -> str:
        """The source text of `qualname`, as `find` finds it, with its decorators left out."""
        found = ast.get_source_segment(self.source(module), self.find(module, qualname))
        return found or ""


def _definitions(body: list[ast.stmt]) -> Iterator[ast.ClassDef | Function]:
    """Definitions in `body`, also inside its if/else and try blocks."""
    for item in body:
        if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield item
        elif isinstance(item, ast.If):
            yield from _definitions(item.body)
            yield from _definitions(item.orelse)
        elif isinstance(item, ast.Try):
            yield from _definitions(item.body)


def parameters(function: ast.AST) -> list[str]:
    """Names of a function's parameters in order, `*args` and `**kwargs` with their stars."""
    if not isinstance(function, Function):
        raise TypeError(f"{ast.dump(function)[:60]} is not a function")
    args = function.args
    names = [item.arg for item in (*args.posonlyargs, *args.args)]
    if args.vararg:
        names.append("*" + args.vararg.arg)
    names += [item.arg for item in args.kwonlyargs]
    if args.kwarg:
        names.append("**" + args.kwarg.arg)
    return names


def bases(node: ast.AST) -> list[str]:
    """Names of a class's bases as written ("Base", "module.Base")."""
    if not isinstance(node, ast.ClassDef):
        raise TypeError(f"{ast.dump(node)[:60]} is not a class")
    return [ast.unparse(base) for base in node.bases]


def tests_attribute(node: ast.AST, attribute: str) -> bool:
    """Whether `node` contains `hasattr(anything, "attribute")`."""
    return any(
        isinstance(item, ast.Call)
        and isinstance(item.func, ast.Name)
        and item.func.id == "hasattr"
        and len(item.args) == 2
        and isinstance(item.args[1], ast.Constant)
        and item.args[1].value == attribute
        for item in ast.walk(node)
    )


def raises_if(node: ast.AST, condition: str) -> bool:
    """Whether `node` contains `if ...condition...: raise ...` (condition as a name or attribute)."""
    return any(
        isinstance(item, ast.If)
        and _mentions(item.test, condition)
        and any(isinstance(inner, ast.Raise) for inner in item.body)
        for item in ast.walk(node)
    )


def returns_if(node: ast.AST, condition: str) -> bool:
    """Whether `node` contains `if ...condition...: return` without a value."""
    return any(
        isinstance(item, ast.If)
        and _mentions(item.test, condition)
        and any(isinstance(inner, ast.Return) and inner.value is None for inner in item.body)
        for item in ast.walk(node)
    )


def asserts_not_none(node: ast.AST, attribute: str) -> bool:
    """Whether `node` contains `assert self.attribute is not None`."""
    return any(
        isinstance(item, ast.Assert) and ast.unparse(item.test) == f"self.{attribute} is not None"
        for item in ast.walk(node)
    )


def assigns_attribute(node: ast.AST, attribute: str) -> list[str]:
    """Right-hand sides, as source, of every `self.attribute = ...` in `node`."""
    found = []
    for item in ast.walk(node):
        targets = item.targets if isinstance(item, ast.Assign) else []
        if isinstance(item, ast.AnnAssign) and item.value is not None:
            targets = [item.target]
        if any(ast.unparse(target) == f"self.{attribute}" for target in targets):
            found.append(ast.unparse(item.value))  # type: ignore[attr-defined]
    return found


def methods_assigning(node: ast.AST, attribute: str) -> dict[str, list[str]]:
    """For each method of the class `node` that assigns `self.attribute`: the right-hand sides."""
    if not isinstance(node, ast.ClassDef):
        raise TypeError(f"{ast.dump(node)[:60]} is not a class")
    found = {}
    for item in node.body:
        if isinstance(item, Function) and (values := assigns_attribute(item, attribute)):
            found[item.name] = values
    return found


def calls(node: ast.AST, function: str) -> list[ast.Call]:
    """Every call of `function` (its last name) in `node`."""
    return [
        item
        for item in ast.walk(node)
        if isinstance(item, ast.Call) and ast.unparse(item.func).rpartition(".")[2] == function
    ]


def mentions(node: ast.AST, name: str) -> bool:
    """Whether `name` occurs in `node` as a variable, an attribute or a keyword argument."""
    return _mentions(node, name) or any(
        isinstance(item, ast.keyword) and item.arg == name for item in ast.walk(node)
    )


def fields(node: ast.AST) -> list[str]:
    """Names of a class's annotated attributes, as a dataclass has them."""
    if not isinstance(node, ast.ClassDef):
        raise TypeError(f"{ast.dump(node)[:60]} is not a class")
    return [
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]


def text(node: ast.AST) -> str:
    """`node` as source, without comments and in one format."""
    return ast.unparse(node)


def fingerprint(source: str) -> str:
    """A short hash of what `source` says to Python: its tokens, without comments and layout.

    The same text gives the same hash on every Python, unlike a syntax tree's dump.
    """
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(textwrap.dedent(source)).readline)
    words = " ".join(token.string for token in tokens if token.type not in layout)
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def _mentions(test: ast.AST, name: str) -> bool:
    return any(
        (isinstance(item, ast.Name) and item.id == name)
        or (isinstance(item, ast.Attribute) and item.attr == name)
        for item in ast.walk(test)
    )


@cache
def installed_code() -> Code:
    """The installed vLLM's code, parsed once per process."""
    return Code.installed()
