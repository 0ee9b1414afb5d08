"""A vocabulary small enough to walk through whole schemas, and texts drawn from a grammar."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import EdgewiseError
from edgewise.run.structure import Matcher, audit

ROOT = Path(__file__).parents[4]
DATA = Path(os.environ.get("EDGEWISE_EVAL_DATA", ROOT.parent / "shared" / "data"))
SUITE = DATA / "json_schema_suite" / "tests" / "draft2020-12"

END, TURN, CONTROL = 256, 257, 258
PIECES = ['{"', '":', '": ', '","', ', "', "true", "false", "null", "abc", "foo", "bar", "12", "é"]
TOKENS = [
    *(bytes([value]) for value in range(256)),
    *(b"", b"", b""),
    *(piece.encode() for piece in PIECES),
    *("😀".encode()[:2], "😀".encode()[2:], b"A"),
]


class ToyEngine:
    """An engine as far as structures need one: bytes, some pieces, two ends, a control token."""

    vocab_size = len(TOKENS) + 5  # as padded as real ones

    def token_bytes(self, token: int) -> bytes:
        return TOKENS[token] if token < len(TOKENS) else b""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text.encode())


def schema(value: Any) -> Structure:
    source = value if isinstance(value, str) else json.dumps(value)
    return Structure(kind=StructureKind.JSON_SCHEMA, source=source)


def refusal(structure: Structure) -> EdgewiseError | None:
    """Return why a structure is refused, or ``None`` when it is taken."""
    try:
        audit(structure)
    except EdgewiseError as error:
        return error
    return None


def spelled(matcher: Matcher, data: bytes) -> bool:
    """Whether a text can be made byte by byte, each allowed by the mask, and then ended."""
    state = matcher.fork()
    logits = np.zeros(ToyEngine.vocab_size, dtype=np.float32)
    for byte in data:
        if state.mask(logits)[byte] != 0:
            return False
        state.accept(byte)
    return state.complete and state.mask(logits)[END] == 0


def drawn(matcher: Matcher, rng: random.Random, most: int = 200) -> bytes | None:
    """Return a text of random allowed tokens, or ``None`` when it did not end in time.

    Tokens are drawn evenly, but an end is taken half of the time that it is allowed, so that
    texts end.
    """
    state, made = matcher.fork(), bytearray()
    logits = np.zeros(ToyEngine.vocab_size, dtype=np.float32)
    for _ in range(most):
        allowed = np.flatnonzero(state.mask(logits) == 0).tolist()
        ends = [one for one in allowed if one in {END, TURN}]
        rest = [one for one in allowed if one not in {END, TURN}]
        closing = [one for one in rest if TOKENS[one] in {b'"', b"}", b"]"}]
        if ends and (not rest or rng.random() < 0.5):
            state.accept(rng.choice(ends))
            return bytes(made)
        token = rng.choice(closing if closing and rng.random() < 0.3 else rest)
        state.accept(token)
        made += TOKENS[token]
    return None


def cases() -> Iterator[tuple[str, str, Any, list[dict[str, Any]]]]:
    """Yield file, description, schema and tests of the suite."""
    for path in sorted(SUITE.rglob("*.json")):
        for group in json.loads(path.read_text()):
            name = str(path.relative_to(SUITE)).removesuffix(".json")
            yield name, group["description"], group["schema"], group["tests"]
