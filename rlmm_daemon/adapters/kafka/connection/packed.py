"""Requests that are packed by hand, since they are sent all the time, and their headers."""

import os
import struct
from io import BytesIO
from typing import Any, Final

import msgspec
from aiokafka.protocol.api import ResponseHeader_v1

from rlmm_daemon.adapters.kafka.connection.requests import Pinned

#: api key, version, correlation id, length of the client id
_HEADER: Final = struct.Struct(">hhih")
#: An answer's header 1: correlation id and how many tags.
_HEADER_BYTES: Final = 5
_HALF: Final = 0x80


def uvarint(value: int) -> bytes:
    """Return an unsigned varint."""
    out = bytearray()
    while value >= _HALF:
        out.append(value & 0x7F | _HALF)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Header:
    """A request header 2, already packed."""

    __slots__ = ("_packed",)

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def encode(self) -> bytes:
        """Return the bytes."""
        return self._packed


class _AnswerHeader(msgspec.Struct, frozen=True):
    """What aiokafka's connection wants of an answer's header."""

    correlation_id: int


class Packed(Pinned):
    """A request whose body is bytes already."""

    def __init__(self, body: bytes) -> None:
        """Without the fields that aiokafka's structs have."""
        self._body = body

    def build_request_header(self, correlation_id: int, client_id: str) -> _Header:
        """Return the header, as aiokafka's connection asks for it."""
        name = client_id.encode()
        packed = _HEADER.pack(self.API_KEY, self.API_VERSION, correlation_id, len(name))
        return _Header(packed + name + b"\0")

    def parse_response_header(self, data: BytesIO) -> Any:
        """Return the answer's header, as aiokafka's connection asks for it."""
        packed = data.read(_HEADER_BYTES)
        if packed[-1:] == b"\0":  # no tags
            return _AnswerHeader(int.from_bytes(packed[:4], "big", signed=True))
        data.seek(-len(packed), os.SEEK_CUR)
        return ResponseHeader_v1.decode(data)

    def encode(self) -> bytes:
        """Return the body."""
        return self._body

    def __repr__(self) -> str:
        """Name it; aiokafka's own would show fields that there are not."""
        return type(self).__name__
