"""Headers of requests and answers, and the size before each.

    request := size i32 | api key i16 | version i16 | correlation id i32 | client id | tags | body
    answer  := size i32 | correlation id i32 | tags | body

The tags are there in flexible versions; the client id is a string of the old form in all. The
answer to ApiVersions has none: who asks does not know yet what is spoken.
Source: RequestHeader.json, ResponseHeader.json, ApiKeys.
"""

import struct
from typing import Final, NamedTuple

from rlmm_daemon.codec.kraft.apis import APIS
from rlmm_daemon.codec.kraft.schema import Api
from rlmm_daemon.codec.primitives import Cursor, uvarint
from rlmm_daemon.domain.errors import Malformed

#: A fetch's answer of one batch of the largest size, or a piece of a snapshot, and what is around.
FRAME_BYTES_MAX: Final = 9 * 1024 * 1024
SIZE: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")
_NO_TAGS: Final = uvarint(0)


class Unspoken(Malformed):
    """A request that is whole, of an API or a version that is not spoken here."""

    def __init__(self, key: int, version: int, correlation: int) -> None:
        """Name it."""
        super().__init__(f"api key {key}, version {version} is not spoken here")
        self.key = key
        self.correlation = correlation


class RequestHead(NamedTuple):
    """A request's header, and its body."""

    api: Api
    version: int
    correlation: int
    body: bytes


def pack_request(api: Api, version: int, correlation: int, body: bytes, *, client: str) -> bytes:
    """Return a request with its size."""
    name = client.encode()
    head = _REQUEST.pack(api.key, version, correlation, len(name)) + name
    if api.form(version).flexible:
        head += _NO_TAGS
    return SIZE.pack(len(head) + len(body)) + head + body


def read_request(frame: bytes) -> RequestHead:
    """Return what a frame, without its size, asks.

    Raises:
        Unspoken: for what is not spoken here.
        Malformed: it has no whole header.
    """
    cursor = Cursor(frame)
    packed = cursor.take(_REQUEST.size, "request header")
    key, version, correlation, size = _REQUEST.unpack(packed)
    api = APIS.get(key)
    if api is None or not api.first <= version <= api.last:
        raise Unspoken(key, version, correlation)
    cursor.take(max(0, size), "client id")
    if api.form(version).flexible:
        cursor.skip_tags("request header")
    return RequestHead(api, version, correlation, frame[cursor.position :])


def pack_answer(api: Api, version: int, correlation: int, body: bytes) -> bytes:
    """Return an answer with its size."""
    head = _CORRELATION.pack(correlation)
    if api.form(version).flexible and not api.old_answer_header:
        head += _NO_TAGS
    return SIZE.pack(len(head) + len(body)) + head + body


def read_answer(api: Api, version: int, correlation: int, frame: bytes) -> bytes:
    """Return the body of an answer's frame, without its size.

    Raises:
        Malformed: it answers something else, or has no whole header.
    """
    cursor = Cursor(frame)
    said = cursor.number(_CORRELATION, "correlation id")
    if said != correlation:
        raise Malformed(f"the answer is to request {said}, not {correlation}")
    if api.form(version).flexible and not api.old_answer_header:
        cursor.skip_tags("answer header")
    return frame[cursor.position :]
