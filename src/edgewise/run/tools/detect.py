"""How a template spells calls, found out by giving it some.

A conversation with two calls of made-up names is rendered, and the same one with a plain answer
in their place. Where the two differ stands what the model would have written. From the places of
the names and arguments in it follows the format, and it counts only when the parser gets exactly
those calls back out of it. Where that fails, the calls are explained in the prompt instead.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Final

from edgewise.core.bundle import TextSettings
from edgewise.errors import InputError, IntegrityError
from edgewise.models.template import ChatTemplate
from edgewise.run.tools.formats import PROMPT_FORMAT, RawCall, ToolFormat
from edgewise.run.tools.learn import learn
from edgewise.run.tools.render import called, tool_message

__all__ = ["detect_format"]

_CALLS: Final[tuple[RawCall, ...]] = (
    ("probe_alpha", {"first": "kilo", "count": 7, "inner": {"list": [1, "two"]}}),
    ("probe_bravo", {"second": "lima", "flag": True}),
)
_IDS: Final = ("call_000000000000000000000001", "call_000000000000000000000002")
_TOOL: Final = "probe_tool"
# A character that no template writes, so that the common end is not one of the answer's.
_ANSWER: Final = "\u2042probe answer\u2042"
_RESULT: Final = "probe_result"
_TOOL_DEFINITION: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": _TOOL,
        "description": "Probe.",
        "parameters": {
            "type": "object",
            "properties": {"first": {"type": "string", "description": "A word."}},
            "required": ["first"],
        },
    },
}
# Marks that models write before bare JSON although their template does not; only where it, or
# the vocabulary, has them.
_ALSO: Final = ("<|python_tag|>",)


def detect_format(template: ChatTemplate, text: TextSettings) -> ToolFormat:
    """Return how calls are spelled for a model, or the format that is explained in the prompt.

    Takes some ten renders of a short conversation; nothing of it is kept here.
    """
    probe = _Probe(template, text)
    if probe.knows_tools():
        for calls in (_CALLS, _CALLS[:1]):
            for takes_text, short_ids in product((False, True), repeat=2):
                way = ToolFormat(begin="", takes_text=takes_text, takes_short_ids=short_ids)
                form = probe.learned(calls, way)
                if form is not None:
                    return form
    return replace(
        PROMPT_FORMAT, system_turn=probe.has_system_turn(), instead_of=probe.unread_spelling()
    )


class _Probe:
    def __init__(self, template: ChatTemplate, text: TextSettings) -> None:
        self._template = template
        self._text = text

    def knows_tools(self) -> bool:
        """Return whether the template writes tools into the prompt."""
        asked = [{"role": "user", "content": "Hello"}]
        rendered = self._render(asked, prompt=True)
        return rendered is not None and _TOOL in rendered

    def has_system_turn(self) -> bool:
        """Return whether the template writes what the system says."""
        said = {"role": "system", "content": _ANSWER}
        rendered = self._render([said, {"role": "user", "content": "Hello"}], prompt=True)
        return rendered is not None and _ANSWER in rendered

    def unread_spelling(self) -> str | None:
        """Return the name of a known spelling in which the template writes calls, if it is one."""
        turn: dict[str, Any] = {"role": "assistant", "content": ""}
        way = ToolFormat(begin="")
        turn["tool_calls"] = [called(way, _IDS[0], *_CALLS[0])]
        written = self._render([{"role": "user", "content": "Hello"}, turn]) or ""
        is_harmony = "<|channel|>" in written and f"to=functions.{_CALLS[0][0]}" in written
        return "harmony channels" if is_harmony else None

    def learned(self, calls: tuple[RawCall, ...], way: ToolFormat) -> ToolFormat | None:
        """Return the format, if the template takes calls in this way."""
        named = list(zip(_IDS, calls, strict=False))
        asked = {"role": "user", "content": "Hello"}
        asked_for = [called(way, id_, *call) for id_, call in named]
        turn = {"role": "assistant", "content": "", "tool_calls": asked_for}
        results = [tool_message(way, id_, call[0], _RESULT) for id_, call in named]
        written = self._render([asked, turn])
        plain = self._render([asked, {"role": "assistant", "content": _ANSWER}])
        answered = self._render([asked, turn, *results], prompt=True)
        if written is None or plain is None or answered is None or _RESULT not in answered:
            return None
        ids = tuple(call["id"] for call in asked_for)
        form = learn(_difference(written, plain), calls, ids)
        return None if form is None else self._completed(form, way)

    def _completed(self, form: ToolFormat, way: ToolFormat) -> ToolFormat:
        known = (*self._text.special_tokens, self._template.source)
        also = [mark for mark in _ALSO if form.bare and any(mark in t for t in known)]
        form = replace(
            form,
            also_begin=tuple(also),
            takes_text=way.takes_text,
            takes_short_ids=way.takes_short_ids,
        )
        special = set(self._text.special_tokens)
        return replace(form, control=tuple(mark for mark in form.marks if mark in special))

    def _render(self, messages: list[dict[str, Any]], *, prompt: bool = False) -> str | None:
        try:
            return self._template.render(
                messages,
                add_generation_prompt=prompt,
                bos_token=self._text.bos_token,
                eos_token=self._text.eos_token,
                tools=[_TOOL_DEFINITION],
            )
        except (InputError, IntegrityError):
            return None


def _difference(written: str, plain: str) -> str:
    """Return what the first text has in the place where the second has something else."""
    start = _same(written, plain)
    end = len(written) - _same(written[start:][::-1], plain[start:][::-1])
    # Not in the middle of a tag: ``<|START_`` may well begin both.
    for opening, closing in ("<>", "[]"):
        before = written.rfind(opening, 0, start)
        if before > written.rfind(closing, 0, start) and written[before:start].split()[1:] == []:
            start = before
        inside = written.rfind(opening, start, end)
        after = written.find(closing, end)
        if inside > written.rfind(closing, start, end) and after >= 0:
            end = after + 1
    return written[start:end]


def _same(one: str, other: str) -> int:
    """Return with how many characters both texts begin alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
