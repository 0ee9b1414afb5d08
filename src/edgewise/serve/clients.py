"""Who asks: the name by which the server tells clients apart, and what in it they cannot choose.

A program's name and the user that it names keep clients of one machine out of each other's way.
Both are theirs to choose, so what must hold against one that means harm is counted by address.
"""

from __future__ import annotations

import hashlib

__all__ = ["address_of", "client_name"]


def client_name(address: str, *chosen: str) -> str:
    """Return the name of a client: its address, and a digest of what it says of itself."""
    digest = hashlib.sha256("\0".join(chosen).encode()).hexdigest()
    return f"{address} {digest}"


def address_of(client: str) -> str:
    """Return the address in a client's name."""
    return client.partition(" ")[0]
