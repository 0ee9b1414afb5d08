"""The grammar library: loading it, its limits, and compiling where it cannot take us down.

llguidance compiles by recursion in native code, and a stack that overflows there ends the
process. So every grammar is compiled on a thread with a stack of its own, and what is handed over
is bounded in depth before. Nothing here is lenient: a keyword the library does not know is an
error, never a warning.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from edgewise.errors import InputError, ResourceError, UnsupportedError

if TYPE_CHECKING:
    from types import ModuleType

    from llguidance import LLMatcher, LLTokenizer

__all__ = [
    "DOCUMENTATION",
    "GRAMMAR_CHARACTERS_MAX",
    "JSON_OPTIONS",
    "REGEX_CHARACTERS_MAX",
    "GrammarError",
    "accepts",
    "byte_tokenizer",
    "compiled",
    "is_beyond_limits",
    "json_grammar",
    "library",
    "malformed",
    "require_length",
    "too_large",
    "unsupported",
]

T = TypeVar("T")

DOCUMENTATION = "see the documentation on structured output"

# One space at most, after a comma and a colon: a model cannot emit endless whitespace. Without the
# letter u a string has one spelling only; with it, "\u0061" would pass for a key other than "a".
JSON_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "json_allowed_escapes": 'nrbtf\\"',
}

# Its work grows with the square of these (measured 2026-11-30: 0.3 s and 2 s at the bounds).
REGEX_CHARACTERS_MAX = 32_768
GRAMMAR_CHARACTERS_MAX = 65_536

# Reserved, not taken: pages are committed as they are touched. A level costs up to about 20 kB
# (measured, llguidance 1.9.1).
_STACK_BYTES = 64 << 20
_stack_lock = threading.Lock()

_LIMIT_WORDS = ("too large", "too many", "too big", "limit", "fuel", "too deeply", "panic")


class GrammarError(Exception):
    """The library does not take a grammar. Callers turn it into one of ours."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def is_limit(self) -> bool:
        """Whether the grammar is sound as far as one can tell, and too much."""
        return any(word in self.message.lower() for word in _LIMIT_WORDS)


def library() -> ModuleType:
    """Return llguidance.

    Raises:
        UnsupportedError: it is not installed here.
    """
    try:
        import llguidance  # noqa: PLC0415 - heavy, and absent in some workers
    except ImportError as error:
        raise UnsupportedError(
            "structure-library-missing",
            "structured output needs the package llguidance, which is not installed here",
            hint="pip install llguidance",
        ) from error
    return llguidance


def too_large(what: str) -> ResourceError:
    """Return the error for a structure that passes a limit."""
    return ResourceError(
        "structure-too-large",
        f"this structure is too large: {what}",
        hint="make it smaller or less nested, or constrain less of it",
    )


def require_length(text: str, most: int) -> None:
    """Refuse a part that would take too long to compile.

    Raises:
        ResourceError: it has more than ``most`` characters.
    """
    if len(text) > most:
        raise too_large(f"a pattern or grammar of more than {most} characters")


def json_grammar(schema: Any, **options: Any) -> str:
    """Return the library's grammar for a JSON schema; ``options`` replace :data:`JSON_OPTIONS`.

    Raises:
        EdgewiseError: the schema is nested too deeply to be handed over.
    """
    text = json.dumps(schema, ensure_ascii=False)
    try:
        made: str = library().LLMatcher.grammar_from_json_schema(
            text, overrides=options or JSON_OPTIONS
        )
    except ValueError as error:
        raise too_large(_first_line(str(error))) from error
    return made


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a matcher at the start of a grammar.

    Raises:
        GrammarError: the library does not take the grammar.
        UnsupportedError: the library is missing.
    """
    llguidance = library()
    limits = llguidance.LLParserLimits(verbose_errors=False)

    def build() -> LLMatcher:
        native: LLMatcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        return native

    native = _on_large_stack(build)
    if native.is_error():
        raise GrammarError(_first_line(native.get_error()))
    return native


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.partition("<state>")[0].splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error:")), "")
    return " ".join([*lines[:1], reason]).strip()[:300]


def _on_large_stack(work: Callable[[], T]) -> T:
    results: list[T] = []
    failures: list[BaseException] = []

    def target() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            failures.append(error)

    with _stack_lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=target, name="structure-compiler", daemon=True)
            thread.start()
        except RuntimeError as error:
            raise too_large("there is no memory for its compiler") from error
        finally:
            threading.stack_size(before)
    thread.join()
    if failures:
        raise GrammarError(f"panic: {failures[0]}") from failures[0]
    return results[0]


def is_beyond_limits(native: LLMatcher) -> bool:
    """Whether a matcher gave up because a step would have cost too much."""
    # It also counts as an error of its own when no token at all may follow.
    return bool(native.is_error()) and not native.get_error().startswith("NoExtension")


class _Bytes:
    """A vocabulary in which every byte is a token, and 256 ends the text."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.tokens = [*(bytes([value]) for value in range(256)), b""]

    def __call__(self, data: bytes | str) -> list[int]:
        return list(data.encode() if isinstance(data, str) else data)


@lru_cache(maxsize=1)
def byte_tokenizer() -> LLTokenizer:
    """Return the vocabulary with which structures are audited and texts are checked."""
    llguidance = library()
    made: LLTokenizer = llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Bytes()), eos_token=[256], slices=[]
    )
    return made


@lru_cache(maxsize=512)
def _pristine(grammar: str) -> LLMatcher:
    return compiled(byte_tokenizer(), grammar)


def accepts(grammar: str, data: bytes) -> bool:
    """Whether the whole of ``data`` is a text of the grammar, in time linear in its length.

    Raises:
        GrammarError: the library does not take the grammar.
        ResourceError: the text leads beyond the library's limits.
    """
    native = _pristine(grammar).deep_copy()
    taken = not data or native.consume_tokens(list(data))
    if str(native.stop_reason()).endswith("TooComplex"):
        raise too_large("a text cannot be checked against it within the limits")
    return bool(taken and native.is_accepting())


def malformed(what: str, *, hint: str = DOCUMENTATION) -> InputError:
    """Return the error for a structure that is wrong in itself."""
    return InputError("structure-invalid", f"this structure cannot be used: {what}", hint=hint)


def unsupported(what: str, *, hint: str, **facts: Any) -> UnsupportedError:
    """Return the error for a structure that nothing here can enforce or check."""
    return UnsupportedError(
        "structure-unsupported",
        f"this structure cannot be enforced: {what}",
        context=facts,
        hint=hint,
    )
