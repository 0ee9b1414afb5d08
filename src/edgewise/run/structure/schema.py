"""From a JSON schema to the schema of the grammar, with an account of every keyword.

Each keyword ends in one of three ways. It is handed to the grammar (*enforced*). It is left out
because what remains allows more and never less, and the finished text is checked (*checked*). Or
the schema is refused, by the keyword's name and place. The grammar's schema is written anew: only
what is understood here gets into it, its references are renamed, and no identifier, dialect or
option of the caller's reaches the library.
"""

from __future__ import annotations

from typing import Final

from edgewise.run.structure.document import Document
from edgewise.run.structure.parts import Relaxation, Translation
from edgewise.run.structure.schema_parts import PARTS
from edgewise.run.structure.schema_values import VALUES
from edgewise.run.structure.translator import Handler, Translator

__all__ = ["translate"]

_HANDLERS: Final[dict[str, Handler]] = {**VALUES, **PARTS}


def translate(document: Document, relaxed: frozenset[Relaxation]) -> Translation:
    """Return a schema for the library, and what became of each keyword.

    Raises:
        InputError: the schema is malformed, or no value is valid.
        UnsupportedError: a keyword can be neither enforced nor checked.
        ResourceError: it is too deep or too large.
    """
    return Translator(document, relaxed, _HANDLERS).run()
