"""Python's literals: what is read is what Python reads, and everything else is refused."""

from __future__ import annotations

import ast
import contextlib
import json
import time
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.run.tools.python_literals import LiteralError, arguments_at, is_keyword, literal

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(), one, max_size=4),
    max_leaves=12,
)


def read(text: str, depth_max: int = 20) -> Any:
    return arguments_at(text, 0, depth_max=depth_max)


@given(st.dictionaries(st.sampled_from(["a", "from", "größe", "_x"]), VALUES), st.booleans())
def test_what_python_or_json_writes_is_read(arguments: dict[str, Any], as_json: bool) -> None:
    def spelled(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False) if as_json else repr(value)

    text = "(" + ", ".join(f"{k}={spelled(v)}" for k, v in arguments.items()) + ")"
    assert read(text + "]x") == (arguments, len(text))


QUOTES = ("'", '"', '"""', "'''", "\\", "\\n", "\\x41", "\\u00e9", "\\101", "\\N{DIGIT ONE}", "\n")
SIGNS = ("[", "]", "(", ")", "{", "}", ",", ":", "1", "-1", "0x1", "1_0", "1.5", ".5", "1e9")
WORDS = ("True", "None", "b", "r", "f", "u", "a", " ", "+", "#", "\\ud83d", "\\\n", "\r", "0")
BITS = st.lists(st.sampled_from((*QUOTES, *SIGNS, *WORDS)), max_size=12).map("".join)


def tuples_as_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [tuples_as_lists(one) for one in value]
    if isinstance(value, dict):
        return {key: tuples_as_lists(one) for key, one in value.items()}
    return value


@given(BITS | st.text(st.characters(exclude_characters="\0"), max_size=20))
def test_whatever_is_read_python_reads_the_same(text: str) -> None:
    for whole in (text, f"'{text}'", f'"""{text}"""', f"[{text}]"):
        if any(word in whole for word in ("true", "false", "null")):
            continue  # JSON's
        try:
            value = literal(whole, depth_max=20)
        except LiteralError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            theirs = ast.literal_eval(whole.strip(" \t\r\n\f"))
        assert repr(tuples_as_lists(theirs)) == repr(value), whole


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("()", {}),
        ("( a = 1 , )", {"a": 1}),
        ('(a="it\'s", b=\'say "x"\')', {"a": "it's", "b": 'say "x"'}),
        ('(a="""two\nlines "quoted" here""")', {"a": 'two\nlines "quoted" here'}),
        ("(a='\\u00e9\\x41\\U0001F600\\n')", {"a": "éA😀\n"}),
        ("(a=[1, [2, {'b': (3, 4)}]], c=())", {"a": [1, [2, {"b": [3, 4]}]], "c": []}),
        ("(a=true, b=null, c=False)", {"a": True, "b": None, "c": False}),
        ("(a=')]</tool_call>', b=1)", {"a": ")]</tool_call>", "b": 1}),
        ("(from='a', class='b')", {"from": "a", "class": "b"}),
    ],
)
def test_arguments_as_models_write_them(text: str, arguments: dict[str, Any]) -> None:
    assert read(text) == (arguments, len(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        "(1)",
        "('a')",
        "(a)",
        "(a=)",
        "(a==1)",
        "(a=1 b=2)",
        "(a=1,,b=2)",
        "(,)",
        "(a=1, a=2)",
        "(a={'b': 1, 'b': 2})",
        "(a={1: 2})",
        "(a={'b'})",
        "(a=b)",
        "(a=f(x))",
        "(a=1+1)",
        "(a=-x)",
        "(a=1_000)",
        "(a=0x10)",
        "(a=007)",
        "(a=1.)",
        "(a=1j)",
        "(a=1e999)",
        "(a=" + "9" * 310 + ")",
        "(a='x' 'y')",
        "(a=r'x')",
        "(a=f'{x}')",
        "(a=b'x')",
        "(a='\\d')",
        "(a='\\101')",
        "(a='\\N{DIGIT ONE}')",
        "(a='\\u12')",
        "(a='\\U00110000')",
        "(a='\\ud83d\\ude00')",
        "(a='\ud800')",
        "(a='\n')",
        "(a='x\\\ny')",
        "(a='''x)",
        "(a=(1))",
        "(**{'a': 1})",
        "(*[1])",
        "(a=[1, ...])",
        "(a=lambda: 1)",
        "(a=1 if x else 2)",
        "(a=1 # b\n)",
        "(ﬁ=1)",
        "(a=" + "[" * 30 + "]" * 30 + ")",
        "(a=nan)",
        "(a=TRUE)",
    ],
)
def test_what_would_have_to_be_guessed_or_evaluated_is_refused(text: str) -> None:
    with pytest.raises(LiteralError):
        read(text)


def test_depth_is_bounded_whatever_the_stack() -> None:
    assert read("(a=" + "[" * 19 + "]" * 19 + ")", 20)
    for opening in ("[", "(", "{'a':"):
        with pytest.raises(LiteralError, match="deep"):
            read("(a=" + opening * 100_000, 48)


def test_names_that_python_would_change_are_no_keywords() -> None:
    assert [is_keyword(n) for n in ("a", "größe", "ﬁ", "a b", "1a", "a-b", "")] == [
        *(True, True, False, False, False, False, False)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("filling", ["'", "\\", "\\n", "a", "[", '"""', "a=1,", "('x',"])
def test_a_megabyte_takes_no_time(filling: str) -> None:
    for start in ("(a='", "(a=", "(", '(a="""'):
        started = time.perf_counter()
        with contextlib.suppress(LiteralError):
            read(start + filling * (1_000_000 // len(filling)))
        assert time.perf_counter() - started < 5
