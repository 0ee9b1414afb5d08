"""LiteRT-LM, LiteRT's own language engine: messages in, text out, from a ``.litertlm`` bundle.

Exporter, formats and environment are those of :mod:`edgewise.runtimes.litert`. Nothing native is
loaded by importing this package; the adapter's methods do that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.errors import EdgewiseError
from edgewise.runtimes.litert import LiteRtFamily, native
from edgewise.runtimes.reports import Capabilities

if TYPE_CHECKING:
    from edgewise.runtimes.protocol import TextEngine

__all__ = ["LiteRtLmAdapter", "adapter"]


class LiteRtLmAdapter(LiteRtFamily):
    """The ``litert-lm`` runtime: ``.litertlm`` bundles, messages in and text out."""

    name = "litert-lm"
    _package = native.TEXT_PACKAGE
    _bundle = True
    _process_bytes = 80 << 20

    def capabilities(self) -> Capabilities:
        """Return what LiteRT-LM can do here, after truly loading its library."""
        try:
            self.prepare()
        except EdgewiseError as error:
            return self.unavailable(error)
        return self.declared(artifact="litertlm", logits=False, backend="cpu")

    def load_modes(self) -> tuple[LoadMode, ...]:
        """Return one: LiteRT-LM maps its bundle."""
        return (LoadMode.MMAP,)

    def huge_pages_possible(self) -> bool:
        """Return false: the engine maps its bundle, and takes no other way of loading."""
        return False

    def prepare(self) -> None:
        """Load the native library and the engine module.

        Raises:
            UnsupportedError: litert-lm-api is not installed.
            AdapterError: its library does not load.
        """
        native.load(self._package)
        from edgewise.runtimes.litert_lm import engine  # noqa: F401, PLC0415

    def engine(self, artifact: Path, run_config: RunConfig) -> TextEngine:
        """Load an artifact: a folder with a bundle, its tokenizer and its chat template.

        Raises:
            UnsupportedError: the runtime is not installed, or cannot run this configuration.
            IntegrityError: the artifact is damaged.
            AdapterError: LiteRT-LM refuses the bundle.
        """
        from edgewise.runtimes.litert_lm.engine import LiteRtLmEngine  # noqa: PLC0415

        return LiteRtLmEngine(artifact, run_config)


adapter = LiteRtLmAdapter()
