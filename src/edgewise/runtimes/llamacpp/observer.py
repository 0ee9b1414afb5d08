"""Reading the graph while it runs, through the family's evaluation callback.

The callback is asked about every node before it is computed; a node it asks for is given again
when its result is there.
"""

from __future__ import annotations

import ctypes
from typing import Any

from edgewise.runtimes.llamacpp.library import Library

__all__ = ["GraphReader"]

_IDLE = {"RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "NONE"}


class GraphReader:
    """Names and places of the tensors that an evaluation callback is given."""

    def __init__(self, library: Library) -> None:
        """Bind the functions that read a tensor.

        Args:
            library: The member of the family, loaded.
        """
        self.bindings = library.bindings()
        self._tensor = ctypes.POINTER(library.tensor)
        # The main library links the one that has these, so they resolve through its handle.
        handle = ctypes.CDLL(self.bindings._lib._name)  # noqa: SLF001 - no public accessor
        self._operator = _function(handle, "ggml_op_desc", ctypes.c_void_p)
        self._buffer = _function(handle, "ggml_backend_buffer_name", ctypes.c_void_p)
        self._type = _function(handle, "ggml_type_name", ctypes.c_int32)

    def tensor(self, address: int) -> Any:
        """Return the tensor at an address."""
        return ctypes.cast(address, self._tensor).contents

    def operator(self, address: int) -> str:
        """Return the name of a node's operator; empty for one that only changes a view."""
        name: str = self._operator(address).decode("ascii", "replace")
        return "" if name in _IDLE else name

    def place(self, tensor: Any) -> str:
        """Return the name of the buffer that a tensor lives in."""
        if not tensor.buffer:
            return "unassigned"
        name: str = self._buffer(tensor.buffer).decode("ascii", "replace")
        return name

    def type_name(self, tensor: Any) -> str:
        """Return the name of a tensor's element type."""
        name: str = self._type(tensor.type).decode("ascii", "replace")
        return name


def _function(handle: ctypes.CDLL, name: str, argument: Any) -> Any:
    function = getattr(handle, name)
    function.argtypes = [argument]
    function.restype = ctypes.c_char_p
    return function
