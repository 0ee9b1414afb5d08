"""Structured output: an answer that has a given form, or a typed failure, never less.

The grammar masks the logits of every step; what no grammar can carry is checked when the answer is
finished; what can be neither is refused before anything is generated.
"""

from __future__ import annotations

from edgewise.core.structure import Structure
from edgewise.run.structure.grammar import Audit, prepare
from edgewise.run.structure.matcher import Constrainer, Matcher
from edgewise.run.structure.validate import validate

__all__ = ["Audit", "Constrainer", "Matcher", "audit", "validate"]


def audit(structure: Structure) -> Audit:
    """Return what of a structure is enforced and what is checked, without any tokenizer.

    Raises:
        InputError: the structure is malformed, or no text fits it.
        UnsupportedError: a part of it can be neither enforced nor checked, or a library that it
            needs is missing.
        ResourceError: it is too large.
    """
    return prepare(structure)[0].audit
