"""Every error code that the source can raise, read from its syntax tree.

A code is the first argument of an error class. Where a function passes one of its own parameters
on (``def _bad(code, …): return InputError(code, …)``), the calls of that function are followed,
also through several functions; where a local name is passed, its assignments are read; where a
reader puts the prefix of a file format in front, the prefixes that its modules open are used.
A code that none of these rules can read is an error here: the list must never be partial.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import edgewise
from edgewise import errors

SOURCE = Path(edgewise.__file__).parent
ERROR_CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.EdgewiseError)
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Raised:
    """One place where a code can be raised."""

    code: str
    error: str
    place: str


@dataclass(frozen=True)
class _Helper:
    """A function whose parameter at ``index`` (without ``self``) becomes a code."""

    name: str
    index: int
    keyword: str
    error: str
    pattern: str  # "{}" for the code itself, "{prefix}-{}" for a prefixed one
    module: str

    def reaches(self, module: str) -> bool:
        """Return whether a module can call it: a private function is its own module's."""
        return module == self.module or not self.name.startswith("_")


class _Module:
    def __init__(self, path: Path, root: Path) -> None:
        self.name = path.relative_to(root).as_posix()
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.parents: dict[ast.AST, ast.AST] = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self.error_classes = {
            node.name: next(b.id for b in node.bases if isinstance(b, ast.Name))
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ClassDef)
            and any(isinstance(base, ast.Name) and base.id in ERROR_CLASSES for base in node.bases)
        }

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))

    def enclosing(self, node: ast.AST, kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> ast.AST:
        while not isinstance(node, kind):
            node = self.parents[node]
        return node

    def function(self, node: ast.AST) -> _Function | None:
        try:
            found = self.enclosing(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        except KeyError:
            return None
        assert isinstance(found, _Function)
        return found

    def prefixes(self) -> set[str]:
        """Return the format prefixes that this module opens files with."""
        return {
            word.value.value
            for call in self.calls()
            if _called(call) == "BoundedFile"
            for word in call.keywords
            if word.arg == "prefix"
            and isinstance(word.value, ast.Constant)
            and isinstance(word.value.value, str)
        }


@functools.cache
def raised_codes(root: Path = SOURCE) -> set[Raised]:
    """Return every code with its error class and where it is raised."""
    modules = [_Module(path, root) for path in sorted(root.rglob("*.py")) if path.stem != "errors"]
    all_prefixes = set().union(*(module.prefixes() for module in modules))
    subclasses = set().union(*(module.error_classes for module in modules))
    found: set[Raised] = set()
    helpers: set[_Helper] = set()
    fresh: list[_Helper] = []
    for module in modules:
        for call in module.calls():
            error = _error_class(module, call, subclasses)
            if error is not None and call.args:
                _read(module, call, call.args[0], error, "{}", found, fresh, all_prefixes)
    while fresh:
        helper = fresh.pop()
        if helper in helpers:
            continue
        helpers.add(helper)
        for module, call, argument in _uses(helper, modules):
            _read(module, call, argument, helper.error, helper.pattern, found, fresh, all_prefixes)
    return found


def _uses(helper: _Helper, modules: list[_Module]) -> Iterator[tuple[_Module, ast.Call, ast.expr]]:
    """Yield the calls of a helper that pass it a code, with that argument."""
    for module in modules:
        if not helper.reaches(module.name):
            continue
        for call in module.calls():
            argument = _argument(call, helper) if _called(call) == helper.name else None
            if argument is not None:
                yield module, call, argument


def _read(
    module: _Module,
    call: ast.Call,
    argument: ast.expr,
    error: str,
    pattern: str,
    found: set[Raised],
    fresh: list[_Helper],
    all_prefixes: set[str],
) -> None:
    place = f"{module.name}:{call.lineno}"
    if isinstance(argument, ast.JoinedStr):  # f"{self._prefix}-{code}"
        names = [v.value for v in argument.values if isinstance(v, ast.FormattedValue)]
        assert len(names) == 2, f"{place}: this code cannot be read"
        assert isinstance(names[1], ast.Name), f"{place}: this code cannot be read"
        fresh.append(_helper(module, call, names[1].id, error, "{prefix}-{}"))
        return
    texts = _texts(argument)
    if not texts and isinstance(argument, ast.Name):
        function = module.function(call)
        assert function is not None, f"{place}: this code cannot be read"
        parameters = [a.arg for a in [*function.args.args, *function.args.kwonlyargs]]
        if argument.id in parameters:
            fresh.append(_helper(module, call, argument.id, error, pattern))
            return
        texts = _assigned(function, argument.id)
    assert texts, f"{place}: this code cannot be read"
    for text in texts:
        if "{prefix}" not in pattern:
            found.add(Raised(text, error, place))
            continue
        for prefix in _formats(module, all_prefixes):
            found.add(Raised(f"{prefix}-{text}", error, place))


def _formats(module: _Module, all_prefixes: set[str]) -> set[str]:
    """Return the prefixes that apply: a reader's own, by its file name, or all of them."""
    own = {p for p in all_prefixes if Path(module.name).stem.startswith(p)}
    return own or all_prefixes


def _texts(node: ast.expr) -> set[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return _texts(node.body) | _texts(node.orelse)
    return set()


def _assigned(function: _Function, name: str) -> set[str]:
    texts: set[str] = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id == name:
                texts |= _texts(node.value)
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, value in zip(target.elts, node.value.elts, strict=True):
                    if isinstance(one, ast.Name) and one.id == name:
                        texts |= _texts(value)
    return texts


def _helper(module: _Module, call: ast.Call, name: str, error: str, pattern: str) -> _Helper:
    function = module.function(call)
    assert function is not None
    arguments = [a.arg for a in function.args.args if a.arg != "self"]
    index = arguments.index(name) if name in arguments else -1
    return _Helper(function.name, index, name, error, pattern, module.name)


def _argument(call: ast.Call, helper: _Helper) -> ast.expr | None:
    for word in call.keywords:
        if word.arg == helper.keyword:
            return word.value
    if 0 <= helper.index < len(call.args):
        return call.args[helper.index]
    return None


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _error_class(module: _Module, call: ast.Call, subclasses: set[str]) -> str | None:
    name = _called(call)
    if name in ERROR_CLASSES or name in subclasses:
        return name
    is_super = (
        name == "__init__"
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Call)
        and _called(call.func.value) == "super"
    )
    if is_super:
        try:
            owner = module.enclosing(call, ast.ClassDef)
        except KeyError:
            return None
        assert isinstance(owner, ast.ClassDef)
        if owner.name in module.error_classes:
            return owner.name
    return None
