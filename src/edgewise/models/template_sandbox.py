"""A Jinja environment in which no single operation can take long or produce much.

A chat template comes with a model, so it is as untrusted as the rest of the file. The time limit
of a render works by an exception raised in the rendering thread, which Python can only deliver
between two operations. So every operation that could run or grow without bound in C is checked
*before* it runs: operators, joins, filters, method calls, slices, and collections nested so that
their text would be exponentially larger than they are. What results are worth is added up, which
bounds the memory of one render.

This module imports jinja2 at its top; it is imported only when a template is rendered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from typing import Any, Final

from jinja2 import Environment, Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from edgewise.models.template_limits import (
    FILTER_CHECKS,
    METHOD_CHECKS,
    check_format,
    check_int,
    check_percent,
    check_value,
    concat,
    count_made,
    joinable,
    metered,
    str_join,
    tojson,
    weight,
)

__all__ = ["build_environment"]

_FILTER_NAMES: Final = frozenset(
    {
        "abs",
        "attr",
        "batch",
        "capitalize",
        "center",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "format",
        "groupby",
        "indent",
        "int",
        "items",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "safe",
        "select",
        "selectattr",
        "slice",
        "sort",
        "string",
        "sum",
        "title",
        "trim",
        "truncate",
        "unique",
        "upper",
        "urlencode",
    }
)

_STR_METHODS: Final = frozenset(
    {
        "capitalize",
        "casefold",
        "center",
        "count",
        "endswith",
        "find",
        "format",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "islower",
        "isnumeric",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "ljust",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rjust",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
        "zfill",
    }
)
_METHODS: Final[tuple[tuple[type, frozenset[str]], ...]] = (
    (str, _STR_METHODS),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index"})),
    (LoopContext, frozenset({"changed", "cycle"})),
)
_VIEWS: Final = (KeysView, ValuesView, ItemsView)
# What generated code passes along with every call, for functions that want the context.
_JINJA_KWARGS: Final = frozenset({"_loop_vars", "_block_vars"})
# Their results are generators of lists that nobody would weigh.
_LISTED: Final = frozenset({"batch", "slice"})


def _guarded(name: str, function: Any) -> Any:
    """Return a filter that checks its input and counts its output."""
    check: Callable[..., Any] = FILTER_CHECKS.get(name, check_value)
    passes = getattr(function, "jinja_pass_arg", None)

    def call(*args: Any, **kwargs: Any) -> Any:
        first = 0 if passes is None else 1
        weight([*args[first + 1 :], *kwargs.values()])
        checked = check(*args[first:], **kwargs)
        result = function(*args[:first], checked, *args[first + 1 :], **kwargs)
        return metered(list(result) if name in _LISTED else result)

    guarded: Any = call
    if passes is not None:
        guarded.jinja_pass_arg = passes  # what jinja2's own decorators set
    return guarded


class _Generator(CodeGenerator):
    """Passes every collection and slice that a template writes through ``metered``."""

    def _metered(self, visit: Callable[[Any, Frame], None], node: Any, frame: Frame) -> None:
        self.write("environment.metered(")
        visit(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._metered(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._metered(super().visit_Dict, node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.arg, nodes.Slice):  # a copy, which jinja2 makes without asking
            self._metered(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._metered(super().visit_Tuple, node, frame)
        else:  # a target of an assignment
            super().visit_Tuple(node, frame)


class _GuardedTemplate(Template):
    """Replaces the joins that generated code imports from jinja2's runtime."""

    @classmethod
    def from_code(
        cls,
        environment: Environment,
        code: Any,
        globals: Any,  # noqa: A002 - as jinja2
        uptodate: Any = None,
    ) -> Template:
        template = super().from_code(environment, code, globals, uptodate)
        names: dict[str, Any] = vars(template)["root_render_func"].__globals__
        names["str_join"] = names["markup_join"] = str_join
        return template


class _GenerationTag(Extension):
    """``{% generation %}``: marks what the model wrote, for training. Here it only renders."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _GuardedEnvironment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    template_class = _GuardedTemplate
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    concat = staticmethod(concat)
    metered = staticmethod(metered)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check a binary operation, run it, and count its result."""
        if operator == "+" and isinstance(left, str | list | tuple):
            if isinstance(right, str | list | tuple):
                count_made(len(left) + len(right))
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int):
                    each = len(one) if isinstance(one, str) else weight(one)
                    count_made(each * max(other, 0))
        elif operator == "%" and isinstance(left, str):
            check_percent(left, right)
        if isinstance(left, int) and isinstance(right, int):
            check_int(operator, left, right)
        return metered(super().call_binop(context, operator, left, right))

    def is_safe_callable(self, obj: Any) -> bool:
        """Return whether a template may call this: only what is listed here."""
        if isinstance(obj, Macro | LoopContext | Undefined) or obj in (safe_range, dict, Namespace):
            return True
        if getattr(obj, "edgewise_template_function", False) is True:
            return True
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        return any(isinstance(owner, kind) and name in names for kind, names in _METHODS)

    def wrap_str_format(self, value: Any) -> Any:
        """Leave ``str.format`` as it is: :meth:`call` and :meth:`getattr` decide about it."""
        del value

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, PYI063 - as jinja2
        """Call what may be called, within the limits."""
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        given = {key: value for key, value in kwargs.items() if key not in _JINJA_KWARGS}
        if not __self.is_safe_callable(__obj):
            message = f"a call of a {type(__obj).__name__} {str(name)[:64]}"
            raise SecurityError(message)
        weight([args, given])  # also because ``varargs`` makes a collection of them
        if isinstance(owner, str):
            check = METHOD_CHECKS.get(name)
            if name == "join" and args:
                args = (joinable(args[0], owner), *args[1:])
            elif name == "format":
                check_format(owner, [args, given])
            elif check is not None:
                check(owner, *args, **given)
        result = super().call(__context, __obj, *args, **kwargs)
        # A view of a dictionary cannot be weighed, a list can.
        return metered(list(result) if isinstance(result, _VIEWS) else result)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse at once, where jinja2 would print nothing."""
        message = f"access to {attribute!r} of a {type(obj).__name__}"
        raise SecurityError(message)


def _text_of(value: Any) -> Any:
    """Weigh what is about to be written."""
    return value if isinstance(value, str) else metered(value)


def _plain_number(value: Any, *args: Any, **kwargs: Any) -> Any:
    number = FILTERS["float"](value, *args, **kwargs)
    return number if not isinstance(number, float) or math.isfinite(number) else 0.0


def build_environment() -> Environment:
    """Return an environment with the extensions, filters and functions of chat templates."""
    environment = _GuardedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        finalize=_text_of,
        # Nothing of a template runs while it is compiled.
        optimized=False,
        cache_size=0,
    )
    environment.filters.clear()
    for name in sorted(_FILTER_NAMES):
        environment.filters[name] = _guarded(name, FILTERS[name])
    environment.filters["float"] = _guarded("float", _plain_number)
    environment.filters["tojson"] = _guarded("tojson", tojson)
    environment.globals.clear()
    environment.globals.update(range=safe_range, dict=dict, namespace=Namespace)
    return environment
