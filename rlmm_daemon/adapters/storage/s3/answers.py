"""A GET's answer, whichever library made the call: what it is of, and its bytes as they come."""

from typing import Any, Protocol

from rlmm_daemon.adapters.storage.s3.client import Client
from rlmm_daemon.adapters.storage.s3.errors import length_told, told

PARTIAL = 206


class Answer(Protocol):
    """Bytes of one version of an object; `close` frees its connection, and is idempotent."""

    @property
    def etag(self) -> str:
        """The version, as the server names it."""

    @property
    def first(self) -> int:
        """Where its bytes begin in the object, -1 if the server says nothing of it."""

    @property
    def length(self) -> int:
        """How many bytes it brings."""

    @property
    def total(self) -> int:
        """How many the object has."""

    async def piece(self, patience: float) -> bytes | None:
        """Return the next bytes, b"" at the end, None if they trickle for longer than `patience`.

        Raises:
            VENDOR_ERRORS: the connection was cut, or is silent.
        """

    def close(self) -> None:
        """Read no more."""


class Transport(Protocol):
    """Who makes the GETs: one request per call, no repetition, for use in a call at the rim."""

    async def get(self, key: str, start: int, end: int, etag: str) -> Answer:
        """Ask for [start, end), of the version `etag` alone unless it is empty.

        Raises:
            VENDOR_ERRORS: as the client stack would, so that `judge` knows each.
        """

    def close(self) -> None:
        """Close idle connections."""


class SdkTransport:
    """GETs through aiobotocore, as all other calls."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, key: str, start: int, end: int, etag: str) -> Answer:
        """Ask; see `Transport`."""
        condition = {"IfMatch": etag} if etag else {}
        answer = await self._client.s3.get_object(
            **self._client.where(key), **condition, Range=f"bytes={start}-{end - 1}"
        )
        try:
            return _SdkAnswer(answer)
        except BaseException:
            answer["Body"].close()
            raise

    def close(self) -> None:
        """Do nothing: the connections are the client's."""


class _SdkAnswer:
    def __init__(self, answer: Any) -> None:
        # Without an ETag it is a body of somebody else's, an error page for example.
        self.etag = told(answer, "ETag")
        self.length = length_told(answer)
        # `bytes 3-5/6`
        told_range = str(answer.get("ContentRange", "")).removeprefix("bytes ")
        partial = answer["ResponseMetadata"]["HTTPStatusCode"] == PARTIAL
        self.first = _number(told_range.partition("-")[0], otherwise=-1) if partial else 0
        self.total = _number(told_range.rpartition("/")[2], otherwise=self.length)
        self._body = answer["Body"]

    async def piece(self, patience: float) -> bytes | None:
        del patience  # whatever came is given at once; `read_timeout` bounds a silence
        piece: bytes = await self._body.raw_stream.content.readany()
        return piece

    def close(self) -> None:
        self._body.close()


def _number(text: str, *, otherwise: int) -> int:
    return int(text) if text.isdigit() else otherwise
