"""Pages of other daemons' admin ports, asked for over HTTP: one GET a connection, bounded."""

import asyncio
import os
from typing import Final

from rlmm_daemon.domain.errors import UnavailableError

#: From the first step of connecting to the last byte.
SECONDS: Final = 2.0
BYTES_MAX: Final = 64 * 1024
_OK: Final = 200
_MISDIRECTED: Final = 421
_END: Final = b"\r\n\r\n"


async def ask(
    address: str, path: str, *, seconds: float = SECONDS, bytes_max: int = BYTES_MAX
) -> bytes:
    """Return the body of the answer. Redirects are not followed, and nothing is told but the path.

    Raises:
        UnavailableError: not reached, not in time, too much, or not 200; the message is for people.
    """
    try:
        async with asyncio.timeout(seconds):
            return _body(await _answer(address, path, bytes_max))
    except TimeoutError:
        raise UnavailableError(f"no answer in {seconds:g} s") from None
    except (OSError, UnicodeError) as error:  # a name that can't be one is a UnicodeError
        code = error.errno if isinstance(error, OSError) else None
        known = code is not None and code > 0  # getaddrinfo's own are negative
        reason = os.strerror(code) if known and code is not None else str(error)
        raise UnavailableError(f"not reached: {reason}") from error


async def _answer(address: str, path: str, bytes_max: int) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        # 1.0: an answer in chunks would be no answer to it.
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode("ascii"))
        await writer.drain()
        said = bytearray()
        while some := await reader.read(bytes_max):
            said += some
            if len(said) > bytes_max:
                raise UnavailableError(f"answered with more than {bytes_max} bytes")
        return bytes(said)
    finally:
        writer.transport.abort()


def _body(said: bytes) -> bytes:
    head, end, body = said.partition(_END)
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if not end or len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():  # noqa: PLR2004 - version, status
        raise UnavailableError("answered with what is no HTTP")
    status = int(words[1][:3])
    if status == _MISDIRECTED:
        raise UnavailableError("answered 421: its admin.hosts does not have this name")
    if status != _OK:
        raise UnavailableError(f"answered {status}")
    return body
