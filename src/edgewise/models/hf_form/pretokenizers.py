"""The pre-tokenizers that GGUF names and tokenizer.json spells out.

A name stands for regular expressions inside llama.cpp. Only those that were compared with
llama.cpp on the same vocabulary are listed; another name is refused, since a wrong split gives
other tokens without any error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from edgewise.errors import UnsupportedError

__all__ = ["PreTokenizer", "by_name", "by_steps"]

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"

_LLAMA3: Final = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_REST}"
_QWEN2: Final = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_MARKS}|{_REST}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """A pre-tokenizer.

    Attributes:
        names: Names in GGUF that mean it; the first is written.
        steps: What tokenizer.json says, one object per step.
        ignore_merges: Whether a word that is a token is taken whole.
        add_bos: Whether llama.cpp puts a start token in front when the file does not say.
        note: How llama.cpp differs from the original, if it does.
    """

    names: tuple[str, ...]
    steps: tuple[dict[str, Any], ...]
    ignore_merges: bool = False
    add_bos: bool = False
    note: str = ""


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


_DIGITS: Final = {"type": "Digits", "individual_digits": True}

_TABLE: Final = (
    PreTokenizer(
        names=("gpt-2", "mpt", "olmo", "jais", "phi-2", "mellum", "exaone4"),
        steps=(_byte_level(use_regex=True),),
    ),
    PreTokenizer(
        names=(
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ),
        steps=(_DIGITS, _byte_level(use_regex=True)),
    ),
    PreTokenizer(
        names=("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"),
        steps=(_split(_LLAMA3), _byte_level(use_regex=False)),
        ignore_merges=True,
        add_bos=True,
    ),
    PreTokenizer(
        names=("smaug-bpe", "dbrx"), steps=(_split(_LLAMA3), _byte_level(use_regex=False))
    ),
    PreTokenizer(
        names=("qwen2", "deepseek-r1-qwen", "megrez", "hunyuan", "stablelm2", "solar-open"),
        steps=(_split(_QWEN2), _byte_level(use_regex=False)),
        note="llama.cpp does not normalise to NFC as Qwen's own tokenizer does; neither does this",
    ),
)


def by_name(name: str | None) -> PreTokenizer:
    """Return the pre-tokenizer that a GGUF file names.

    Raises:
        UnsupportedError: there are no rules for it (``pre-tokenizer-unsupported``).
    """
    for known in _TABLE:
        if name in known.names:
            return known
    raise _unknown(f"the pre-tokenizer {name!r}")


def by_steps(steps: list[dict[str, Any]], *, ignore_merges: bool) -> PreTokenizer:
    """Return the pre-tokenizer that tokenizer.json spells out.

    Raises:
        UnsupportedError: llama.cpp has no name for it (``pre-tokenizer-unsupported``).
    """
    wanted = [_essence(step) for step in steps]
    alike = [known for known in _TABLE if [_essence(step) for step in known.steps] == wanted]
    for known in alike:
        if known.ignore_merges == ignore_merges:
            return known
    raise _unknown("the pre-tokenizer of tokenizer.json")


def _essence(step: dict[str, Any]) -> tuple[Any, ...]:
    """Return what of a step changes how text is split."""
    kind = step.get("type")
    if kind == "ByteLevel":
        return kind, bool(step.get("add_prefix_space", True)), bool(step.get("use_regex", True))
    if kind == "Digits":
        return kind, bool(step.get("individual_digits"))
    if kind == "Split":
        pattern = step.get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        return kind, regex, step.get("behavior"), bool(step.get("invert"))
    return kind, repr(sorted(step.items()))


def _unknown(what: str) -> UnsupportedError:
    return UnsupportedError(
        "pre-tokenizer-unsupported",
        f"{what} has no counterpart that was compared with llama.cpp's",
        context={"known": sorted(name for known in _TABLE for name in known.names)},
        hint="use the checkpoint in the form it has",
    )
