"""Frames: round trip, and what is no frame."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import AdapterError
from edgewise.runtimes import wire

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(call_id=st.integers(0, 2**31), method=st.text(), value=values)
def test_calls_round_trip(call_id: int, method: str, value: object) -> None:
    stream = io.BytesIO()
    wire.write_frame(stream, wire.Call(call_id, method, wire.encode_value(value)))
    stream.seek(0)
    body = wire.read_frame(stream)
    assert body is not None
    frame = wire.decode_request(body)
    assert isinstance(frame, wire.Call)
    assert (frame.id, frame.method) == (call_id, method)
    assert wire.read_frame(stream) is None


@pytest.mark.parametrize(
    "data",
    [b"\x01", b"\x05\x00\x00\x00abc", struct.pack("<I", wire.MAX_FRAME_BYTES + 1)],
)
def test_broken_frames_are_refused(data: bytes) -> None:
    with pytest.raises(AdapterError):
        wire.read_frame(io.BytesIO(data))


@given(st.binary(max_size=64))
def test_no_bytes_crash_the_decoder(body: bytes) -> None:
    for decode in (wire.decode_request, wire.decode_response):
        try:
            decode(body)
        except AdapterError:
            continue
