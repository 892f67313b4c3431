"""The socket's framing: a big-endian u32 length, then one MessagePack array (MessagePack-RPC).

    [0, id, method, params]      a request; params is the method's struct as an array
    [1, id, error, result]       its answer; error is nil or [code, name, message, fields]
    [2, method, params]          a notification, for example [2, "cancel", [id]]

A streamed answer is several responses with one id whose results carry `more`. A bulk answer is one
response (`BulkHeader`) followed by exactly `length` raw bytes, on a connection of role bulk.
Fields are only ever appended to a params or result array, each with a default.

Requests carry ids from 1 on; an answer with id 0 speaks of the connection itself, which its sender
then closes. A cancelled request may still be answered when the answer was already on its way.
"""

import struct
from typing import Any, Final

import msgspec

from rlmm_daemon.domain.errors import Malformed, RlmmError, from_wire

PROTOCOL_VERSION: Final = 1
REQUEST: Final = 0
RESPONSE: Final = 1
NOTIFICATION: Final = 2
#: The id of an answer that speaks of the connection, not of a request.
CONNECTION_ID: Final = 0
CANCEL: Final = "cancel"

LENGTH: Final = struct.Struct(">I")
HEADER_BYTES: Final = LENGTH.size
#: What a peer may send in one frame unless configured otherwise; bulk bytes are not framed.
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024

#: One page of a streamed answer, give or take its last record.
PAGE_BYTES: Final = 256 * 1024

_encode: Final = msgspec.msgpack.Encoder().encode
_pack_length: Final = LENGTH.pack
_unpack_length: Final = LENGTH.unpack_from
#: Length; array of four, response, uint32 id, nil, bin16.
_record_head: Final = struct.Struct(">IBBBIBBH")
_pack_record: Final = _record_head.pack
_RECORD_BYTES: Final = _record_head.size - HEADER_BYTES
_BIN16_MAX: Final = 2**16 - 1
_UINT32_MAX: Final = 2**32 - 1


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


class LocalFile(msgspec.Struct, array_like=True, frozen=True):
    """A file of this host, told from another of that name by its device and inode."""

    path: str
    device: int
    inode: int


class BulkHeader(msgspec.Struct, array_like=True, frozen=True):
    """Announces the raw bytes that follow at once on the same connection.

    None follow where a file is named instead, which is done only for who asked for it.
    """

    length: int
    crc32c: int | None = None
    file: LocalFile | None = None


#: A peer's nesting and text are its own choice, so these two are its errors as well.
_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Fixed lengths, so that a frame of a million tiny elements is refused before it becomes objects.
_request: Final = msgspec.msgpack.Decoder(tuple[int, int, str, msgspec.Raw]).decode
_response: Final = msgspec.msgpack.Decoder(tuple[int, int, ErrorBody | None, msgspec.Raw]).decode
_notification: Final = msgspec.msgpack.Decoder(tuple[int, str, msgspec.Raw]).decode


def frame(message: Any) -> bytes:
    """Return one whole frame for any encodable message."""
    body = _encode(message)
    return _pack_length(len(body)) + body


def request_frame(request_id: int, method: str, params: Any) -> bytes:
    """Return the frame of a request."""
    return frame((REQUEST, request_id, method, params))


def result_frame(request_id: int, result: Any) -> bytes:
    """Return the frame of a successful answer."""
    return frame((RESPONSE, request_id, None, result))


def record_frame(request_id: int, record: bytes | None) -> bytes:
    """Return the frame of an answer that is a record or nil, without going through the encoder.

    Its numbers take more bytes than they need, as MessagePack allows.
    """
    if record is None or len(record) > _BIN16_MAX or request_id > _UINT32_MAX:
        return result_frame(request_id, record)
    size = len(record)
    length = _RECORD_BYTES + size
    return _pack_record(length, 0x94, RESPONSE, 0xCE, request_id, 0xC0, 0xC5, size) + record


def error_frame(request_id: int, error: RlmmError) -> bytes:
    """Return the frame of an answer that is an error, whatever its message quotes."""
    body = ErrorBody.of(error)
    try:
        return frame((RESPONSE, request_id, body, None))
    except (UnicodeEncodeError, TypeError, OverflowError, RecursionError, ValueError):
        told = body.message.encode("utf-8", "backslashreplace").decode()
        return frame((RESPONSE, request_id, ErrorBody(body.code, body.name, told), None))


def notification_frame(method: str, params: Any) -> bytes:
    """Return the frame of a notification."""
    return frame((NOTIFICATION, method, params))


def decode_request(body: bytes | bytearray | memoryview) -> tuple[int, str, msgspec.Raw]:
    """Return (id, method, undecoded params) of a request's body, the common case and the fast one.

    Raises:
        Malformed: not `[0, id, method, params]`; `decode_message` tells what it is.
    """
    try:
        kind, request_id, method, params = _request(body)
    except _UNDECODABLE as error:
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
        match bytes(body[:2]):
            case b"\x94\x00":
                _, request_id, method, params = _request(body)
                return Request(request_id, method, params)
            case b"\x94\x01":
                _, request_id, error, result = _response(body)
                return Response(request_id, error, result)
            case b"\x93\x02":
                _, method, params = _notification(body)
                return Notification(method, params)
            case _:
                pass
    except _UNDECODABLE as broken:
        raise Malformed(f"not a message: {broken}") from broken
    raise Malformed("not a message: [0, id, method, params] or one of its kin was expected")


def decode_result(raw: msgspec.Raw | bytes, kind: Any) -> Any:
    """Return a result as the type that the table of methods names for it.

    Raises:
        Malformed: it is not of that type.
    """
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except _UNDECODABLE as error:
        raise Malformed(f"not the expected result: {error}") from error


class Splitter:
    """Cuts a stream of bytes into frames' bodies; holds no more than one unfinished frame.

    Feed it, then call `next` until it returns None.
    """

    __slots__ = ("_at", "_buffer", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer: bytes | bytearray = bytearray()
        self._at = 0
        self.frame_bytes_max = frame_bytes_max

    def __len__(self) -> int:
        """Return the bytes that are held and not yet cut."""
        return len(self._buffer) - self._at

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append what came in."""
        buffer = self._buffer
        if isinstance(buffer, bytes):  # what `start` brought: keep only the rest of it
            self._buffer = buffer = bytearray(memoryview(buffer)[self._at :])
        elif self._at:
            del buffer[: self._at]
        self._at = 0
        buffer += chunk

    def start(self, chunk: bytes) -> None:
        """Take what came in without a copy; only when everything before it was cut."""
        self._buffer = chunk
        self._at = 0

    def next(self) -> bytes | None:
        """Return the next body, or None when it is not all here yet.

        Raises:
            Malformed: the frame claims more than `frame_bytes_max`; nothing is set aside for it.
        """
        buffer = self._buffer
        start = self._at + HEADER_BYTES
        if len(buffer) < start:
            return None
        (length,) = _unpack_length(buffer, self._at)
        if length > self.frame_bytes_max:
            raise Malformed(
                f"a frame of {length} bytes exceeds the limit of {self.frame_bytes_max}",
                length=length,
                limit=self.frame_bytes_max,
            )
        end: int = start + length
        if len(buffer) < end:
            return None
        self._at = end
        return buffer[start:end] if type(buffer) is bytes else bytes(buffer[start:end])

    def take_rest(self) -> bytes:
        """Return what was not cut and forget it: the bytes after the last frame."""
        rest = bytes(memoryview(self._buffer)[self._at :])
        self._buffer = bytearray()
        self._at = 0
        return rest
