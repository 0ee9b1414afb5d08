"""Two ways to spell arguments that are no JSON object: between marks each, and as Python does.

Plain data and how to write it; reading is :mod:`edgewise.run.tools.parse`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewise.run.tools.python_literals import is_keyword, spell_literal

__all__ = ["MarkedArguments", "PythonCalls", "spell_value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedArguments:
    r"""Each argument between marks: ``<parameter=NAME>\nVALUE\n</parameter>``.

    Attributes:
        opening: What stands before the name.
        middle: What stands between name and value.
        closing: What stands behind the value.
        quoted: Whether a text is spelled as JSON spells it. Otherwise it stands as it is, and
            only the tool's schema tells ``5`` from ``"5"``.
        pythonic: Whether other values are spelled as Python does: ``True``, ``{'a': None}``.
    """

    opening: str
    middle: str
    closing: str
    quoted: bool = False
    pythonic: bool = False

    def spell(self, arguments: Mapping[str, Any]) -> str:
        """Return the arguments as the model is expected to write them."""
        return "".join(
            f"{self.opening}{name}{self.middle}{self.spell_value(value)}{self.closing}"
            for name, value in arguments.items()
        )

    def spell_value(self, value: Any) -> str:
        """Return one value as the model is expected to write it."""
        if isinstance(value, str) and not self.quoted:
            return value
        return spell_value(value, pythonic=self.pythonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCalls:
    """Calls as Python's: ``[weather(town="Ems", days=3), other()]``.

    Attributes:
        opening: The bracket before the first of several, or nothing.
        join: What stands between two of them; ``None`` where each has marks of its own.
        closing: The bracket behind the last.
        pythonic: Whether values are spelled as Python does, not as JSON.
    """

    opening: str = ""
    join: str | None = None
    closing: str = ""
    pythonic: bool = True

    def spell(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return one call as the model is expected to write it.

        Raises:
            ValueError: an argument's name is none that Python takes.
        """
        for key in arguments:
            if not is_keyword(key):
                raise ValueError(f"{key!r} cannot stand before =")
        values = (f"{k}={spell_value(v, pythonic=self.pythonic)}" for k, v in arguments.items())
        return f"{name}({', '.join(values)})"


def spell_value(value: Any, *, pythonic: bool) -> str:
    """Return JSON-like data as Python or as JSON spells it."""
    return spell_literal(value) if pythonic else json.dumps(value, ensure_ascii=False)
