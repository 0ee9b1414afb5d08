"""The exporter of the runtime ``ik``: the family's, with ik_llama.cpp's quantiser.

The file it writes is an ordinary GGUF. ik_llama.cpp's own types are not offered: no other part of
Edgewise could read such a file.
"""

from __future__ import annotations

from edgewise.runtimes.ik.library import IkLibrary
from edgewise.runtimes.llamacpp.exporter import GgufExporter
from edgewise.runtimes.llamacpp.formats import offers

__all__ = ["FORMATS", "IkExporter"]

FORMATS = offers(extras=IkLibrary.quantiser_extras)


class IkExporter(GgufExporter):
    """Writes GGUF files with ik_llama.cpp's quantiser."""

    def __init__(self) -> None:
        """Use ik_llama.cpp."""
        super().__init__(IkLibrary())
