"""Bytes as people read them."""

from __future__ import annotations

import pytest

from edgewise.core.units import binary


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        ((1 << 20) - 1, "1,024.0 KiB"),
        (98 << 20, "98.0 MiB"),
        (3 << 29, "1.50 GiB"),
        (5000 << 30, "5,000.00 GiB"),
    ],
)
def test_bytes_come_in_the_largest_unit_there_is_one_of(size_bytes: int, text: str) -> None:
    assert binary(size_bytes) == text
