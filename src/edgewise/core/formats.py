"""Number formats of weights and activations, in the field's terms.

A recipe states what it wants: ``int4``, ``int4-g32-sym``, ``w4a8-g32``, ``f16``. Whatever it leaves
open is the runtime's choice. A runtime offers exact formats; the first that meets every stated
constraint is taken, and if none does the recipe is refused with the nearest offer. Nothing is
rounded to something similar.

Grammar of a format: ``f32 | f16 | bf16 | intB`` followed, for integers, by any of ``-gN`` (N
values share a scale), ``-channel`` (one scale per output row), ``-tensor`` (one scale), ``-sym``
or ``-asym``, ``-ST`` (scale type: ``f32``, ``f16``, ``bf16``, ...). A prefix ``wXaY`` states
weight and activation bits together: ``w4a16``, ``w4a8``, ``w8a8s`` (``s``: static activation
ranges, from a calibration set).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from edgewise.errors import InputError, UnsupportedError

__all__ = [
    "Activation",
    "FormatQuery",
    "OfferedFormat",
    "TensorFormat",
    "choose",
    "parse_format",
    "parse_query",
]

_FLOATS = {"f32": 32, "bf16": 16, "f16": 16}
_NAMES_IN_HINT = 8
_WHOLE = {"channel": 0, "tensor": -1}
_SCALES = ("f32", "f16", "bf16", "e8m0")
_HEAD = re.compile(r"(?:(?P<float>f32|f16|bf16)|int(?P<bits>[1-9]))(?=-|$)")
_PAIR = re.compile(r"w(?P<weight>[1-9]|16|32)a(?P<act>8s|8|16|32)(?=-|$)")


class Activation(StrEnum):
    """How the inputs of a matrix product are represented while it is computed.

    ``FLOAT`` is weight-only quantisation. ``INT8_DYNAMIC`` rounds activations to 8 bits with a
    range found at run time, ``INT8_STATIC`` with a range fixed by calibration.
    """

    FLOAT = "float"
    INT8_DYNAMIC = "int8-dynamic"
    INT8_STATIC = "int8-static"


class TensorFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The exact format of a tensor's values.

    Attributes:
        kind: ``float`` or ``int``.
        bits: Bits of one value, scales not counted.
        brain: For 16-bit floats, whether it is bfloat16.
        group_size: Values that share a scale; 0 for one scale per output row, -1 for one per
            tensor. ``None`` for floats.
        symmetric: Whether zero is represented exactly by an integer in the middle, with no zero
            point or minimum beside the scale. ``None`` for floats.
        scale: Number format of the scale, e.g. ``f16``. Empty for floats.
    """

    kind: str
    bits: int
    brain: bool = False
    group_size: int | None = None
    symmetric: bool | None = None
    scale: str = ""

    def __str__(self) -> str:
        """Return the canonical text, e.g. ``int4-g32-sym-f16``."""
        if self.kind == "float":
            return "bf16" if self.brain else f"f{self.bits}"
        group = {0: "channel", -1: "tensor"}.get(self.group_size or 0, f"g{self.group_size}")
        parts = [f"int{self.bits}", group, "sym" if self.symmetric else "asym", self.scale]
        return "-".join(part for part in parts if part)


class FormatQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a recipe states about a format; ``None`` leaves the choice to the runtime."""

    text: str
    kind: str | None = None
    bits: int | None = None
    brain: bool | None = None
    group_size: int | None = None
    symmetric: bool | None = None
    scale: str | None = None
    activation: Activation | None = None

    def misses(self, offered: TensorFormat, activation: Activation | None = None) -> int:
        """Return how far an offer is from what is stated: 0 when it meets every constraint."""
        distance = 0
        if self.kind is not None and offered.kind != self.kind:
            distance += 64
        if self.bits is not None and offered.bits != self.bits:
            distance += 16 + abs(offered.bits - self.bits)
        if self.brain is not None and offered.brain != self.brain:
            distance += 8
        if self.activation is not None and activation not in {None, self.activation}:
            distance += 4
        if self.group_size is not None and offered.group_size != self.group_size:
            distance += 3
        if self.symmetric is not None and offered.symmetric != self.symmetric:
            distance += 2
        if self.scale is not None and offered.scale != self.scale:
            distance += 1
        return distance


class OfferedFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way a runtime's exporter can represent a model, stated exactly.

    Attributes:
        name: The runtime's own name for it, e.g. ``q4_0`` or ``8da4w-g32``. Unique per runtime.
        weights: Format of the matrices between embedding and head.
        embedding: Format of the token embedding.
        output: Format of the output matrix (the head).
        activation: How activations enter the matrix products.
        methods: Calibration methods the exporter offers for it; the first is the default.
        note: What the exact fields cannot say, e.g. a mixture of types.
    """

    name: str
    weights: TensorFormat
    embedding: TensorFormat
    output: TensorFormat
    activation: Activation = Activation.FLOAT
    methods: tuple[str, ...] = ("rtn",)
    note: str = ""

    @property
    def words(self) -> str:
        """Return the format in one line: weights, activations, embedding and head."""
        return (
            f"{self.weights} weights, {self.activation} activations, "
            f"embedding {self.embedding}, head {self.output}"
        )


def parse_format(text: str) -> TensorFormat:
    """Return the exact format a complete text names.

    Raises:
        InputError: the text is malformed, or leaves something open.
    """
    query = parse_query(text)
    if query.kind == "float":
        return TensorFormat(kind="float", bits=query.bits or 0, brain=bool(query.brain))
    if query.bits is None or query.group_size is None or query.symmetric is None:
        raise InputError(
            "format-incomplete",
            f"{text!r} leaves group size or symmetry open",
            hint="write it out, e.g. int4-g32-sym-f16",
        )
    return TensorFormat(
        kind="int",
        bits=query.bits,
        group_size=query.group_size,
        symmetric=query.symmetric,
        scale=query.scale or "",
    )


def parse_query(text: str) -> FormatQuery:
    """Return what a format text states; see the module's grammar.

    Raises:
        InputError: the text is malformed or contradicts itself.
    """
    lowered = text.strip().lower()
    pair = _PAIR.match(lowered)
    if pair is not None:
        found, rest = _pair(pair), lowered[pair.end() :]
    else:
        head = _HEAD.match(lowered)
        if head is None:
            raise _malformed(text)
        found, rest = _head(head), lowered[head.end() :]
    for word in rest.split("-")[1:]:
        key, value = _word(word, text)
        if found.get("kind") == "float" or found.get(key) is not None:
            raise _malformed(text)
        found[key] = value
    return msgspec.convert({"text": text, **found}, type=FormatQuery)


def choose(
    offered: Sequence[OfferedFormat],
    *,
    runtime: str,
    weights: str,
    embedding: str | None = None,
    output: str | None = None,
    activation: Activation | None = None,
    method: str | None = None,
) -> OfferedFormat:
    """Return the first offered format that meets every constraint.

    Args:
        offered: What the runtime offers, most recommended first.
        runtime: Name of the runtime, for the refusal.
        weights: A format text, or the runtime's own name of an offer.
        embedding: Format text for the token embedding, if stated.
        output: Format text for the head, if stated.
        activation: Activation format, if stated.
        method: Calibration method, if stated.

    Raises:
        InputError: a text is malformed.
        UnsupportedError: no offer meets every constraint; names the nearest one.
    """
    by_name = {offer.name: offer for offer in offered}
    named = by_name.get(weights.strip().lower())
    if named is not None:
        query = FormatQuery(text=weights)
        candidates: Sequence[OfferedFormat] = (named,)
    else:
        query = _query_or_unknown_name(weights, runtime, offered)
        candidates = offered
    wanted = activation or query.activation
    beside = [
        (parse_query(text), which)
        for text, which in ((embedding, "embedding"), (output, "output"))
        if text is not None
    ]

    def distance(offer: OfferedFormat) -> int:
        stated = msgspec.structs.replace(query, activation=wanted)
        total = 4 * stated.misses(offer.weights, offer.activation)
        for constraint, which in beside:
            total += constraint.misses(getattr(offer, which))
        if method is not None and method not in offer.methods:
            total += 2
        return total

    best = min(candidates, key=distance, default=None)
    if best is None or distance(best):
        raise _refusal(runtime, weights, embedding, output, wanted, method, best, offered)
    return best


def _query_or_unknown_name(
    weights: str, runtime: str, offered: Sequence[OfferedFormat]
) -> FormatQuery:
    try:
        return parse_query(weights)
    except InputError as error:
        names = [offer.name for offer in offered]
        some = ", ".join(names[:_NAMES_IN_HINT]) or "none"
        more = len(names) - _NAMES_IN_HINT
        raise UnsupportedError(
            "recipe-unsupported",
            f"{runtime} has no format called {weights!r}",
            context={"runtime": runtime, "offered": names},
            hint=f"it offers: {some}{f' and {more} more' if more > 0 else ''}; "
            "or say what you need, e.g. int4-g32",
        ) from error


def _refusal(
    runtime: str,
    weights: str,
    embedding: str | None,
    output: str | None,
    activation: Activation | None,
    method: str | None,
    nearest: OfferedFormat | None,
    offered: Sequence[OfferedFormat],
) -> UnsupportedError:
    stated = [weights]
    stated += [f"embedding {embedding}"] if embedding else []
    stated += [f"head {output}"] if output else []
    stated += [f"{activation} activations"] if activation else []
    stated += [f"method {method}"] if method else []
    if nearest is None:
        hint = "this runtime exports nothing here"
    else:
        methods = f"; methods: {', '.join(nearest.methods)}" if method else ""
        hint = f"the nearest it offers is {nearest.name}: {nearest.words}{methods}"
    return UnsupportedError(
        "recipe-unsupported",
        f"{runtime} cannot honour the recipe {', '.join(stated)}",
        context={
            "runtime": runtime,
            "nearest": nearest.name if nearest else None,
            "offered": [offer.name for offer in offered],
        },
        hint=hint,
    )


def _pair(match: re.Match[str]) -> dict[str, object]:
    weight, act = int(match["weight"]), match["act"]
    found: dict[str, object] = {"bits": weight, "kind": "float" if weight > 8 else "int"}
    found["activation"] = {
        "8": Activation.INT8_DYNAMIC,
        "8s": Activation.INT8_STATIC,
    }.get(act, Activation.FLOAT)
    return found


def _head(match: re.Match[str]) -> dict[str, object]:
    name = match["float"]
    if name:
        return {"kind": "float", "bits": _FLOATS[name], "brain": name == "bf16"}
    return {"kind": "int", "bits": int(match["bits"])}


def _word(word: str, text: str) -> tuple[str, object]:
    if word in _WHOLE:
        return "group_size", _WHOLE[word]
    if re.fullmatch(r"g[1-9][0-9]{0,4}", word):
        return "group_size", int(word[1:])
    if word in {"sym", "asym"}:
        return "symmetric", word == "sym"
    if word in _SCALES:
        return "scale", word
    raise _malformed(text)


def _malformed(text: str) -> InputError:
    return InputError(
        "format-malformed",
        f"{text!r} is no number format",
        hint="write e.g. f16, int8-channel, int4-g32-sym, w4a8-g32 or w8a8s",
    )
