"""The socket's framing: a big-endian u32 length, then one MessagePack array (MessagePack-RPC).

    [0, id, method, params]      a request; params is the method's struct as an array
    [1, id, error, result]       its answer; error is nil or [code, name, message, fields]
    [2, method, params]          a notification, for example [2, "cancel", [id]]

A streamed answer is several responses with one id whose results carry `more`. A bulk answer is one
response (`BulkHeader`) followed by exactly `length` raw bytes, on a connection of role bulk.
Fields are only ever appended to a params or result array, each with a default.
"""

import struct
from typing import Any, Final

import msgspec

from rlmm_daemon.domain.errors import Malformed, RlmmError, from_wire

PROTOCOL_VERSION: Final = 1
REQUEST: Final = 0
RESPONSE: Final = 1
NOTIFICATION: Final = 2

LENGTH: Final = struct.Struct(">I")
HEADER_BYTES: Final = LENGTH.size
#: What a peer may send in one frame unless configured otherwise; bulk bytes are not framed.
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024

_encoder: Final = msgspec.msgpack.Encoder()
_request: Final = msgspec.msgpack.Decoder(tuple[int, int, str, msgspec.Raw])
_any: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


class ErrorBody(msgspec.Struct, array_like=True, frozen=True):
    """An error as it crosses the socket; `name` is for people, `code` decides."""

    code: int
    name: str
    message: str
    fields: dict[str, Any] = {}

    @classmethod
    def of(cls, error: RlmmError) -> "ErrorBody":
        """Return the wire form of an error that has a code."""
        return cls(error.code, error.wire_name(), error.message, error.fields)

    def to_error(self) -> RlmmError:
        """Return the error class that this code names."""
        return from_wire(self.code, self.message, self.fields)


class BulkHeader(msgspec.Struct, array_like=True, frozen=True):
    """Announces the raw bytes that follow at once on the same connection."""

    length: int
    crc32c: int | None = None


def frame(message: Any) -> bytes:
    """Return one whole frame for any encodable message."""
    buffer = bytearray(HEADER_BYTES)
    _encoder.encode_into(message, buffer, HEADER_BYTES)
    LENGTH.pack_into(buffer, 0, len(buffer) - HEADER_BYTES)
    return bytes(buffer)


def request_frame(request_id: int, method: str, params: Any) -> bytes:
    """Return the frame of a request."""
    return frame((REQUEST, request_id, method, params))


def result_frame(request_id: int, result: Any) -> bytes:
    """Return the frame of a successful answer."""
    return frame((RESPONSE, request_id, None, result))


def error_frame(request_id: int, error: RlmmError) -> bytes:
    """Return the frame of an answer that is an error."""
    return frame((RESPONSE, request_id, ErrorBody.of(error), None))


def notification_frame(method: str, params: Any) -> bytes:
    """Return the frame of a notification."""
    return frame((NOTIFICATION, method, params))


def decode_request(body: bytes | bytearray | memoryview) -> tuple[int, str, msgspec.Raw]:
    """Return (id, method, undecoded params) of a request's body, the common case and the fast one.

    Raises:
        Malformed: not `[0, id, method, params]`; `decode_message` tells what it is.
    """
    try:
        kind, request_id, method, params = _request.decode(body)
    except msgspec.DecodeError as error:
        raise Malformed(f"not a request: {error}") from error
    if kind != REQUEST:
        raise Malformed(f"not a request: message type {kind}")
    return request_id, method, params


class Request(msgspec.Struct, frozen=True):
    """`[0, id, method, params]`."""

    id: int
    method: str
    params: msgspec.Raw


class Response(msgspec.Struct, frozen=True):
    """`[1, id, error, result]`."""

    id: int
    error: ErrorBody | None
    result: msgspec.Raw


class Notification(msgspec.Struct, frozen=True):
    """`[2, method, params]`."""

    method: str
    params: msgspec.Raw


Message = Request | Response | Notification


def decode_message(body: bytes | bytearray | memoryview) -> Message:
    """Return whichever of the three shapes a body has.

    Raises:
        Malformed: none of them.
    """
    try:
        parts = _any.decode(body)
        match msgspec.msgpack.decode(parts[0], type=int) if parts else None, parts:
            case 0, [_, request_id, method, params]:
                return Request(_int(request_id), _str(method), params)
            case 1, [_, request_id, error, result]:
                decoded = msgspec.msgpack.decode(error, type=ErrorBody | None)
                return Response(_int(request_id), decoded, result)
            case 2, [_, method, params]:
                return Notification(_str(method), params)
            case _:
                pass
    except msgspec.DecodeError as error:
        raise Malformed(f"not a message: {error}") from error
    raise Malformed("not a message: [0, id, method, params] or one of its kin was expected")


def _int(raw: msgspec.Raw) -> int:
    return msgspec.msgpack.decode(raw, type=int)


def _str(raw: msgspec.Raw) -> str:
    return msgspec.msgpack.decode(raw, type=str)
