"""Single objects: what is there, and ranges of it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import aiohttp
import msgspec

from rlmm_daemon.adapters.storage.s3.answers import Answer, SdkTransport, Transport
from rlmm_daemon.adapters.storage.s3.client import Client
from rlmm_daemon.adapters.storage.s3.errors import (
    VENDOR_ERRORS,
    code_of,
    judge,
    length_told,
    status_of,
)
from rlmm_daemon.adapters.storage.s3.rates import TokenBucket
from rlmm_daemon.adapters.storage.s3.reading import checksum_value
from rlmm_daemon.adapters.storage.s3.through_obstore import ObstoreTransport
from rlmm_daemon.domain.errors import ChecksumMismatch, StorageUnavailable
from rlmm_daemon.ports.storage import Version

NOT_FOUND: Final = 404
#: For one object: its HEAD is answered 404 while a GET finds it.
HEADS_MAX: Final = 3
#: What a limit on reads lets go at once.
RATION_BYTES: Final = 64 * 1024
#: Bad keys, expired ones, another region, a clock that is off, or a policy: the code says which.
_REFUSALS: Final = frozenset({400, 401, 403})


class FoundObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object as HEAD describes it."""

    size: int
    #: Of the whole object; None if the storage does not say.
    crc32c: int | None


async def head(client: Client, key: str) -> FoundObject | None:
    """Return an object's size and checksum, None if it is certainly absent; for use in a call.

    A 404 of an object that a GET finds is asked again: only HEAD tells the checksum.
    """
    found: FoundObject | None = None
    for _ in range(HEADS_MAX):
        try:
            answer = await client.s3.head_object(**client.where(key), ChecksumMode="ENABLED")
        except VENDOR_ERRORS as error:
            # An answer to HEAD has no body, so no code: a GET tells whose 404 it is, or why not.
            if status_of(error) == NOT_FOUND:
                found = await _size_by_get(client, key)
                if found is None:
                    return None
                continue
            if status_of(error) in _REFUSALS:
                await _size_by_get(client, key)
            raise
        return FoundObject(
            size=length_told(answer), crc32c=checksum_value(answer.get("ChecksumCRC32C"))
        )
    return found


async def _size_by_get(client: Client, key: str) -> FoundObject | None:
    try:
        answer = await SdkTransport(client).get(key, 0, 1, "")
    except VENDOR_ERRORS as error:
        if code_of(error) == "NoSuchKey":
            return None
        if code_of(error) == "InvalidRange":
            return FoundObject(size=0, crc32c=None)
        raise
    answer.close()
    return FoundObject(size=answer.total, crc32c=None)


class _Place(msgspec.Struct):
    """How far a range was read, and of which version of the object."""

    key: str
    at: int
    end: int
    version: Version


class RangeReader:
    """Streams ranges. A cut answer is resumed where it ended, on the same version of the object."""

    def __init__(self, client: Client, rate: TokenBucket) -> None:
        self._client, self._rate = client, rate
        self._transport: Transport = (
            ObstoreTransport(client)
            if client.options.transport == "obstore"
            else SdkTransport(client)
        )

    def close(self) -> None:
        """Close idle connections that are not the client's."""
        self._transport.close()

    async def fetch(
        self, key: str, start: int, end: int, version: Version | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield [start, end) as it comes; `end` beyond the object is cut there.

        A `version` that was seen is the only one that is read, one not yet seen is filled in.

        Raises:
            ObjectMissing: certainly absent.
            ChecksumMismatch: the object was replaced in the middle.
            StorageUnavailable: not now; attempts without any new byte are counted.
        """
        place, failed = _Place(key, start, end, version or Version()), 0
        while place.at < place.end:
            before = place.at
            try:
                async with (
                    self._client.streams,
                    contextlib.aclosing(self._answered(place)) as pieces,
                ):
                    async for piece in pieces:
                        yield piece
            except VENDOR_ERRORS as error:
                failed = 1 if place.at > before else failed + 1
                await self._pause(error, key, failed)

    async def _answered(self, place: _Place) -> AsyncGenerator[bytes, None]:
        """Yield what one call brings; beyond the object's end nothing is left to ask for."""
        answer = await self._client.call("GetObject", lambda: self._open(place), key=place.key)
        if answer is None:
            place.end = place.at
            return
        async with contextlib.aclosing(self._pieces(answer, place)) as pieces:
            async for piece in pieces:
                yield piece

    async def _open(self, place: _Place) -> Answer | None:
        """Return an answer that begins at `place`; None beyond the object's end."""
        try:
            answer = await self._transport.get(
                place.key, place.at, place.end, place.version.etag or ""
            )
        except VENDOR_ERRORS as error:
            if code_of(error) == "InvalidRange":
                return None
            if code_of(error) == "PreconditionFailed":
                raise _replaced(place.key) from error
            raise
        try:
            _check(answer, place)
        except BaseException:
            answer.close()
            raise
        return answer

    async def _pieces(self, answer: Answer, place: _Place) -> AsyncGenerator[bytes, None]:
        """Yield what one answer brings, counted in `place`; `idle_timeout` while nobody asks."""
        loop = asyncio.get_running_loop()
        began, waited = place.at, 0.0
        last, dropped = place.at + answer.length, False

        def drop() -> None:
            nonlocal dropped
            dropped = True
            answer.close()

        try:
            while place.at < last:
                asked_at = loop.time()
                patience = self._client.options.call_seconds(place.at - began) - waited
                piece = await answer.piece(patience)
                waited += loop.time() - asked_at
                if piece is None:
                    raise self._slow(place, began, waited)
                if not piece:
                    raise aiohttp.ClientPayloadError("the answer ended early")
                for part in self._rations(piece[: last - place.at]):
                    await self._rate.take(len(part))
                    place.at += len(part)
                    self._require_pace(place, began, waited)
                    # A reader that sleeps holds no connection: we go on from `place` when it wakes.
                    timer = loop.call_later(self._client.options.idle_timeout, drop)
                    try:
                        yield part
                    finally:
                        timer.cancel()
                    if dropped:
                        return
            place.end = min(place.end, max(place.at, answer.total))
        finally:
            answer.close()

    def _rations(self, piece: bytes) -> Sequence[bytes]:
        """Return a piece as it may be handed on: under a limit in parts, each waiting its turn.

        Whole, it would wait for all the others': so long that its reader takes it for silence.
        """
        if not self._rate.bytes_per_second:
            return (piece,)
        return [piece[at : at + RATION_BYTES] for at in range(0, len(piece), RATION_BYTES)]

    def _require_pace(self, place: _Place, began: int, waited: float) -> None:
        """End an answer that trickles: never silent, it would hold its connection for days.

        Only the waits for the network count, not a reader that sleeps nor our own limits.
        """
        if waited > self._client.options.call_seconds(place.at - began):
            raise self._slow(place, began, waited)

    def _slow(self, place: _Place, began: int, waited: float) -> StorageUnavailable:
        self._client.rim.stats.calls["GetObject", "slow"] += 1
        return StorageUnavailable(
            f"GetObject of {place.key}: {place.at - began} bytes in {waited:.0f} s",
            reason="slow",
            call="GetObject",
        )

    async def _pause(self, error: BaseException, key: str, failed: int) -> None:
        rim = self._client.rim
        verdict = judge(error, "GetObject", bucket=self._client.options.bucket, key=key)
        # The call was counted as well when its answer began.
        rim.stats.calls["GetObject", verdict.reason] += 1
        if failed >= self._client.options.attempts_max or not rim.may_repeat():
            raise verdict.error from error
        await asyncio.sleep(rim.back_off(failed))


def _check(answer: Answer, place: _Place) -> None:
    """Make sure that the answer is the wanted range of the wanted version."""
    if place.version.etag and answer.etag != place.version.etag:
        raise _replaced(place.key)
    place.version.etag = answer.etag
    if answer.first != place.at:
        raise StorageUnavailable(
            f"asked for {place.key} from {place.at}, got it from {answer.first}",
            reason="wrong_range",
        )


def _replaced(key: str) -> ChecksumMismatch:
    return ChecksumMismatch(f"{key} was replaced while it was read", key=key)
