"""Regular expressions, choices and grammars: what each lets through, and what is refused."""

from __future__ import annotations

import pytest
from tests.unit.run.structure.toy import refusal, spelled

from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import InputError, UnsupportedError
from edgewise.run.structure import Constrainer, audit, validate


def regex(source: str) -> Structure:
    return Structure(kind=StructureKind.REGEX, source=source)


def lark(source: str) -> Structure:
    return Structure(kind=StructureKind.LARK, source=source)


def gbnf(source: str) -> Structure:
    return Structure(kind=StructureKind.GBNF, source=source)


CASES = [
    (regex("[a-c]{2,3}"), ["ab", "abc"], ["a", "abcd", "ad", ""]),
    (regex("^[0-9]+$"), ["1", "123"], ["", "a", "1a", "$1"]),
    (regex(r"\$?a\$"), ["$a$", "a$"], ["a"]),
    (regex(r"a\\$"), ["a\\"], ["a", "a$"]),
    (regex("(a+)+"), ["a", "aaaa"], ["b", ""]),
    (regex("é|😀{2}"), ["é", "😀😀"], ["😀", "e"]),
    (regex("(?i)yes|no"), ["YES", "nO"], ["maybe"]),
    (regex("a*"), ["", "aa"], ["b"]),
    (lark('start: "a" start | "b"'), ["b", "aab"], ["a", "ba"]),
    (lark('start: start "a" | "b"'), ["b", "baa"], ["ab"]),
    (lark('start: start start | "a" | ""'), ["", "aaaa"], ["b"]),
    (lark('start: "<tool>" /[0-9]+/ # %json @x\n'), ["<tool>12"], ["<tool>"]),
    (lark('start: "%json" | "\\"<" // <[3]>\n'), ["%json", '"<'], ["<"]),
    (gbnf('root ::= "a" "b"* [c-e]{2,3}'), ["acc", "abbcde"], ["a", "acccc", "bcc"]),
    (gbnf("root ::= item+\nitem ::= [^\\n]+ # one line\n"), ["a b"], ["", "a\nb"]),
    (gbnf('root ::= ("x" | "y"\n | "z")?'), ["", "x", "z"], ["xy"]),
    (gbnf(r'root ::= "\x41\u00e9\U0001F600\"\\\n"'), ['Aé😀"\\\n'], ["A"]),
    (gbnf(r'root ::= [\]\[^-] [az-] "/"'), ["]-/", "[a/", "^z/", "--/"], ["ab/", "]b/"]),
    (gbnf("root ::= .{2}"), ["a\n", "é😀"], ["a", "abc"]),
    (gbnf('root ::= "(" root? ")"'), ["()", "((()))"], ["(", "())"]),
    (gbnf('root ::= list\nlist ::= "[" (list ("," list)*)? "]"'), ["[]", "[[],[[]]]"], ["[,]"]),
    (
        gbnf(
            'root ::= expr\nexpr ::= term (("+" | "-") term)*\n'
            'term ::= num | "(" expr ")"\nnum ::= [0-9]+ ("." [0-9]*)?'
        ),
        ["1+2", "(1.5-(2+3.))-4"],
        ["1+", "()", "1..2"],
    ),
    # Without recursion a terminal does not swallow what follows it.
    (gbnf('root ::= [a-z]+ end\nend ::= "end"'), ["xend", "endend"], ["end", "x"]),
    (gbnf("root ::= root2 root2\nroot2 ::= start\nstart ::= [a]"), ["aa"], ["a"]),
]


@pytest.mark.parametrize(("structure", "right", "wrong"), CASES)
def test_exactly_the_texts_of_a_structure_can_be_made(
    structure: Structure, right: list[str], wrong: list[str], constrainer: Constrainer
) -> None:
    matcher = constrainer.matcher(structure)
    assert audit(structure).enforced == (structure.kind.value,)
    for text in right:
        assert spelled(matcher, text.encode()), text
        assert validate(structure, text) == (), text
    for text in wrong:
        assert not spelled(matcher, text.encode()), text
        assert validate(structure, text), text


def test_a_choice_takes_texts_as_they_are(constrainer: Constrainer) -> None:
    options = ("a", "ab", "a.c", "(x)|y", "new\nline", "é", "/", '"')
    structure = Structure(kind=StructureKind.CHOICE, choices=options)
    matcher = constrainer.matcher(structure)
    for option in options:
        assert spelled(matcher, option.encode())
        assert validate(structure, option) == ()
    for text in ("", "abc", "axc", "(x)", "y", "new"):
        assert not spelled(matcher, text.encode())
        assert validate(structure, text)


@pytest.mark.parametrize(
    ("structure", "named"),
    [
        (regex("a(?=b)"), "look-around"),
        (regex("(?<!b)a"), "look-around"),
        (regex(r"\bfoo"), "lookaround"),
        (regex(r"(a)\1"), "backreference"),
        (lark('start: %json {"type": "integer", "x-guidance": {"lenient": true}}'), "%json"),
        (lark('%llguidance {"no_forcing": true}\nstart: "a"'), "%llguidance options"),
        (lark("start: <[65]>"), "a control token"),
        (lark("start: <|im_end|>"), "a control token"),
        (lark("start: @other"), "another grammar"),
        (lark("start[max_tokens=3]: /a*/"), "a limit or a stop in a rule"),
        (lark('start[stop="x"]: /a*/'), "a limit or a stop in a rule"),
        (gbnf("root ::= <think>"), "<"),
        (gbnf("root ::= !<think>"), "!"),
    ],
)
def test_what_a_grammar_may_not_hold_is_refused_by_name(structure: Structure, named: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        audit(structure)
    assert caught.value.code == "structure-unsupported"
    assert caught.value.context["keyword"] == named


@pytest.mark.parametrize(
    "structure",
    [
        regex("["),
        regex("a{2,1}"),
        regex(r"\ud800"),
        lark("nope: /a/"),
        lark('start: "a'),
        lark("start: other"),
        lark('start: A\nA: "x" A'),
        lark("start: start"),
        lark("{}"),
        gbnf('foo ::= "a"'),
        gbnf("root ::= foo"),
        gbnf("root ::= root"),
        gbnf('root ::= "a'),
        gbnf('root ::= ("a"'),
        gbnf("root ::= [a"),
        gbnf("root ::= [z-a]"),
        gbnf("root ::= []"),
        gbnf(r'root ::= "\ud800"'),
        gbnf(r'root ::= "\q"'),
        gbnf(r"root ::= [a\-z]"),
        gbnf('root ::= "a"{3,2}'),
        gbnf('root ::= "a"**'),
        gbnf('root ::= "a" extra ::= "b"'),
        gbnf('root ::= "a"\nroot ::= "b"'),
    ],
)
def test_malformed_structures_are_wrong_input(structure: Structure) -> None:
    with pytest.raises(InputError) as caught:
        audit(structure)
    assert caught.value.code == "structure-invalid"


HOSTILE = {
    "regex groups": regex("(" * 5000 + ")" * 5000),
    "regex repeats": regex("((a{100}){100}){100}"),
    "regex states": regex("(.*a.{300})"),
    "regex length": regex("(a|b)*" * 20_000),
    "lark groups": lark("start: " + "(" * 5000 + '"a"' + ")" * 5000),
    "lark rules": lark("start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(50_000))),
    "lark deep rules": lark(
        "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(4000)) + 'r4000: "a"'
    ),
    "lark deep terminals": lark(
        "start: R0\n" + "".join(f"R{i}: R{i + 1}\n" for i in range(4000)) + 'R4000: "a"'
    ),
    "lark ambiguity": lark('start: a\na: a a | b a | "x" | ""\nb: a b | ""'),
    "gbnf groups": gbnf("root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
    "gbnf doubling": gbnf(
        "root ::= r0\n"
        + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(60))
        + 'r60 ::= "a"'
    ),
    "gbnf chain": gbnf(
        "".join(f"r{i} ::= r{i + 1}\n" for i in range(4000)) + 'r4000 ::= "a"\nroot ::= r0'
    ),
    "gbnf repeats": gbnf('root ::= ("a"{1000}){1000}'),
}


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_structures_end_in_an_audit_or_a_typed_error(name: str) -> None:
    error = refusal(HOSTILE[name])
    codes = {"structure-invalid", "structure-too-large", "structure-unsupported"}
    assert error is None or error.code in codes
