"""The frames that cross the pipe between a session and its worker.

A frame is a little-endian 32-bit length and that many bytes of MessagePack. Each side knows the
types of the other's values by the method that was called, so a frame carries them raw. A frame
over :data:`MAX_FRAME_BYTES` is refused unread.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO, TypeAlias, TypeVar

import msgspec

from edgewise.errors import AdapterError

__all__ = [
    "MAX_FRAME_BYTES",
    "Call",
    "Cancel",
    "Failure",
    "Notice",
    "Reply",
    "Request",
    "Response",
    "decode_request",
    "decode_response",
    "encode_value",
    "read_frame",
    "write_frame",
]

# A saved KV cache of a large context is the biggest thing that legitimately crosses.
MAX_FRAME_BYTES = 1 << 31

_LENGTH = struct.Struct("<I")


class _Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all frames; ``id`` is the call a frame belongs to."""

    id: int


class Call(_Frame, frozen=True, tag="call"):
    """Session to worker: run a method."""

    method: str
    params: msgspec.Raw


class Cancel(_Frame, frozen=True, tag="cancel"):
    """Session to worker: abort the call, whether it is queued or running."""


class Reply(_Frame, frozen=True, tag="reply"):
    """Worker to session: the call's result; ends the call."""

    value: msgspec.Raw


class Notice(_Frame, frozen=True, tag="notice"):
    """Worker to session: something on the way, such as text."""

    value: msgspec.Raw


class Failure(_Frame, frozen=True, tag="failure"):
    """Worker to session: the call's error as :meth:`EdgewiseError.to_dict`; ends the call."""

    error: dict[str, Any]


Request: TypeAlias = Call | Cancel
Response: TypeAlias = Reply | Notice | Failure

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_response_decoder: msgspec.msgpack.Decoder[Response] = msgspec.msgpack.Decoder(Response)


def encode_value(value: Any) -> msgspec.Raw:
    """Return a value ready to be carried in a frame."""
    return msgspec.Raw(_encoder.encode(value))


def write_frame(stream: BinaryIO, frame: Request | Response) -> None:
    """Write one frame and flush it.

    Raises:
        OSError: the other side is gone.
    """
    body = _encoder.encode(frame)
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """Return the body of the next frame, or ``None`` at the end of the stream.

    Raises:
        AdapterError: the stream ends inside a frame, or a frame is too large.
    """
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -1
    if not 0 <= size <= MAX_FRAME_BYTES:
        raise AdapterError("frame-invalid", f"a worker frame announces {size} bytes")
    body = stream.read(size)
    if len(body) != size:
        raise AdapterError("frame-cut", f"a worker frame has {len(body)} of {size} bytes")
    return body


def decode_request(body: bytes) -> Request:
    """Return the frame in ``body``, as the worker reads it.

    Raises:
        AdapterError: it is no such frame.
    """
    return _decode(_request_decoder, body)


def decode_response(body: bytes) -> Response:
    """Return the frame in ``body``, as the session reads it.

    Raises:
        AdapterError: it is no such frame.
    """
    return _decode(_response_decoder, body)


def _decode(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise AdapterError("frame-invalid", f"a worker frame cannot be read: {error}") from error
