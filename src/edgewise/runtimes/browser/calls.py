"""How a call reaches the page and what comes back: the scripts, and the reading of answers."""

from __future__ import annotations

import importlib
from typing import Any

from edgewise.errors import AdapterError, UnsupportedError

__all__ = ["CALL", "READY", "is_memory", "load_playwright", "unwrap"]

_MESSAGE_CHARS = 2_000
_MEMORY_WORDS = (
    "out of memory",
    "(oom)",
    "array buffer allocation",
    "could not allocate memory",
)

CALL = """async ([name, params, id]) => {
  const api = window.edgewise;
  if (!api || typeof api[name] !== "function") return { missing: true };
  try {
    const emit = (piece) => window.__edgewiseText(id, String(piece));
    return { value: await api[name](params, emit) };
  } catch (error) {
    return { error: { name: String(error?.name ?? "Error"),
                      message: String(error?.message ?? error),
                      stack: String(error?.stack ?? "") } };
  }
}"""

READY = """async () => {
  const started = performance.now();
  while (!window.edgewise && performance.now() - started < 30000)
    await new Promise((go) => setTimeout(go, 20));
  if (!window.edgewise) return "the page sets no window.edgewise";
  try { await window.edgewise.ready; return ""; }
  catch (error) { return String(error?.message ?? error); }
}"""


def load_playwright() -> Any:
    """Return Playwright's asynchronous API.

    Raises:
        UnsupportedError: it is not installed here.
    """
    try:
        return importlib.import_module("playwright.async_api")
    except ImportError as error:
        raise UnsupportedError(
            "runtime-not-installed",
            "the Python package playwright is not installed here",
            hint="install the runtime: edgewise runtime install wllama",
        ) from error


def unwrap(name: str, answer: Any, console: tuple[str, ...]) -> Any:
    """Return what a function of the page promised, from what :data:`CALL` gave back.

    Raises:
        UnsupportedError: the page has no such function.
        AdapterError: it rejected.
    """
    if isinstance(answer, dict) and "value" in answer:
        return answer["value"]
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        said = answer["error"]
        message = str(said.get("message"))[:_MESSAGE_CHARS]
        memory = is_memory(message)
        raise AdapterError(
            "browser-out-of-memory" if memory else "browser-call-failed",
            f"the page failed in {name}: {message}",
            context={
                "name": str(said.get("name")),
                "stack": str(said.get("stack"))[:_MESSAGE_CHARS],
                "console": list(console[-20:]),
            },
            hint="try a smaller model or a shorter context" if memory else None,
        )
    if isinstance(answer, dict) and answer.get("missing"):
        raise UnsupportedError("browser-call-missing", f"this page has no function {name!r}")
    return None


def is_memory(text: str) -> bool:
    """Return whether an error of a page speaks of memory that ran out."""
    return any(word in text.lower() for word in _MEMORY_WORDS)
