"""Request bodies from a source: hashed in threads, streamed without a copy.

A part is a list of blocks, hashed one by one and handed to the socket as they are.
"""

import asyncio
import base64
import functools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NoReturn

import msgspec
from crc32c import crc32c

from rlmm_daemon.adapters.storage.s3.rates import Both, TokenBucket
from rlmm_daemon.core.storage.calls import Call
from rlmm_daemon.core.storage.crc_joining import joined
from rlmm_daemon.domain.errors import ChecksumMismatch, RlmmError, StorageUnavailable
from rlmm_daemon.ports.storage import SOURCE_UNREADABLE, Source
from rlmm_daemon.ports.threads import copying_threads, in_thread

BLOCK_BYTES: Final = 256 * 1024
#: One read for the socket. Alone in memory it is given back and taken again without a page fault;
#: several smaller ones held together cost twice the CPU.
SEND_BYTES: Final = 512 * 1024
#: What the socket is handed in one step of the loop, which over TLS encrypts it too: a look-up that
#: is due waits for no more.
PIECE_BYTES: Final = 128 * 1024
#: Checksums that are joined before others get a turn.
JOINS_AT_ONCE: Final = 64


class MemoryPart(msgspec.Struct, frozen=True):
    """Bytes of a source in memory, and their checksum."""

    blocks: Sequence[bytes]
    size: int
    crc32c: int


class Reader:
    """Reads sources in threads of its own; a cancelled read waits for its thread, within reason."""

    def __init__(self, threads_max: int) -> None:
        self._threads = copying_threads(threads_max, "storage.s3")

    async def part(self, source: Source, offset: int, length: int) -> MemoryPart:
        """Return a piece of the source.

        Raises:
            ChecksumMismatch: the source became shorter, or a second read of a buffer differs.
        """
        return await in_thread(self._threads, functools.partial(_part, source, offset, length))

    async def version(self, source: Source) -> tuple[int, int, int] | None:
        """Return `version_of` a source; its disk may hang."""
        return await in_thread(self._threads, functools.partial(version_of, source))

    async def checksum(self, source: Source, offset: int, length: int) -> int:
        """Return the CRC-32C of a piece of the source without keeping it.

        Raises:
            ChecksumMismatch: the source was written to meanwhile.
        """
        return await in_thread(self._threads, functools.partial(_checksum, source, offset, length))

    async def block(self, source: Source, offset: int, length: int) -> bytes:
        """Return a small piece of the source."""
        return await in_thread(self._threads, functools.partial(source.pread, offset, length))

    def close(self) -> None:
        """Free the threads; running reads end by themselves."""
        self._threads.close(wait=False)


class Body:
    """A request's body: what botocore takes for a file and aiohttp for a stream of known length.

    An error of the source ends the request as a failed connection; `failure` keeps what it was.
    """

    def __init__(
        self,
        size: int,
        blocks: Callable[[], AsyncIterator[bytes | memoryview]],
        *,
        rate: TokenBucket | Both,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._size, self._blocks, self._rate, self._on_bytes = size, blocks, rate, on_bytes
        self._told = 0
        self._loop = asyncio.get_running_loop()
        self._call: Call | None = None
        self._patience: asyncio.Timeout | None = None
        self._patience_seconds = 0.0
        self._deadline: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Since when the peer owes us something; None while we owe it a block.
        self._since: float | None = None
        self._over = False
        self.failure: RlmmError | None = None

    def __len__(self) -> int:
        return self._size

    def watch(
        self, call: Call, patience: asyncio.Timeout, seconds: float, deadline: asyncio.Timeout
    ) -> None:
        """Let `patience` run out once the socket took nothing, or no answer came, for so long.

        `call` is told whose turn it is: the peer's, or ours to bring a block. The whole attempt's
        `deadline` is put off by what is waited for the rate: that is no time of the storage's.
        """
        self._call, self._deadline = call, deadline
        self._patience, self._patience_seconds = patience, seconds
        self._timer = self._loop.call_later(seconds, self._look)

    def end(self) -> None:
        """Give no more blocks: an answer may come before all were taken, and the source closes."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def read(self) -> NoReturn:
        """Fail: it is here because botocore looks for it."""
        raise NotImplementedError("this body is streamed")

    async def __aiter__(self) -> AsyncIterator[bytes | memoryview]:
        self._ours()
        try:
            async for block in self._blocks():
                self._require_call()
                await self._allowed(len(block))
                self._require_call()
                self._theirs()
                yield block
                # The next is asked for when the socket took this one.
                self._ours()
                self._told += len(block)
                self._on_bytes(len(block))
        except RlmmError as error:
            self.failure = error
            raise
        # Everything was taken: now for the answer.
        self._theirs()

    def _require_call(self) -> None:
        if self._over:
            raise ConnectionResetError("the call is over")

    async def _allowed(self, size: int) -> None:
        """Return when the rate lets so many bytes go."""
        deadline = self._deadline
        if not self._rate.bytes_per_second or deadline is None or deadline.expired():
            return await self._rate.take(size)
        due = deadline.when()
        assert due is not None, "every attempt has a deadline"
        left = due - self._loop.time()
        deadline.reschedule(None)
        try:
            await self._rate.take(size)
        finally:
            if not self._over:  # else the deadline may be over as well
                deadline.reschedule(self._loop.time() + left)

    def _ours(self) -> None:
        self._since = None
        if self._call is not None:
            self._call.ours()

    def _theirs(self) -> None:
        self._since = self._loop.time()
        if self._call is not None:
            self._call.theirs()

    def _look(self) -> None:
        """Look whether the peer is silent; rarely, as a timer for each block would cost more."""
        now, waited = self._loop.time(), 0.0
        if self._since is not None:
            waited = now - self._since
        assert self._patience is not None, "watched"
        if waited >= self._patience_seconds:
            if not self._patience.expired():
                self._patience.reschedule(now)
            return
        self._timer = self._loop.call_later(self._patience_seconds - waited, self._look)

    def take_back(self) -> None:
        """Undo what was told of an attempt that failed."""
        self._on_bytes(-self._told)
        self._told = 0


async def blocks_of(part: MemoryPart) -> AsyncIterator[bytes]:
    """Yield a part's blocks."""
    for block in part.blocks:
        yield block


async def blocks_read(
    reader: Reader, source: Source, offset: int, length: int
) -> AsyncIterator[bytes | memoryview]:
    """Yield a piece of a source bit by bit, read as the network takes it: a block in memory.

    It was read for its checksum just before, so it mostly is in the page cache: to copy it from
    there takes less than to ask a thread for it.
    """
    at, end = offset, offset + length
    while at < end:
        block = _in_page_cache(source, at, min(PIECE_BYTES, end - at))
        if block is None:
            block = memoryview(await reader.block(source, at, min(SEND_BYTES, end - at)))
        at += len(block)
        for start in range(0, len(block), PIECE_BYTES):
            yield block[start : start + PIECE_BYTES]
            # Where the socket takes all of it at once, nobody else would have had a turn.
            await asyncio.sleep(0)
        del block  # before the next is read, into the same memory


def _in_page_cache(source: Source, offset: int, length: int) -> memoryview | None:
    """Return what can be read of a piece without waiting for a disk; None for nothing."""
    descriptor = source.fileno()
    if descriptor is None:
        return None
    block = bytearray(length)
    try:
        got = os.preadv(descriptor, [block], offset, os.RWF_NOWAIT)
    except OSError:  # not there, or not told here: a thread will say what is wrong
        return None
    return memoryview(block)[:got] if got else None


def version_of(source: Source) -> tuple[int, int, int] | None:
    """Return what changes when an open file is written to; None for a buffer.

    Raises:
        ChecksumMismatch: the file is not as long as when it was opened.
        StorageUnavailable: its disk or mount fails.
    """
    descriptor = source.fileno()
    if descriptor is None:
        return None
    try:
        status = os.fstat(descriptor)
    except OSError as error:
        raise StorageUnavailable(
            f"the source can't be looked at: {error.strerror}",
            reason=SOURCE_UNREADABLE,
            retry=False,
        ) from error
    if status.st_size != source.size:
        raise ChecksumMismatch("the source is not as long as it was when it was opened")
    return status.st_size, status.st_mtime_ns, status.st_ino


def checksum_text(crc32c: int) -> str:
    """Return a checksum as S3 writes it: base64 of four bytes, the highest first."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def checksum_value(text: str | None) -> int | None:
    """Return a full-object checksum of S3's; None where none, or one of parts, is reported."""
    try:
        raw = base64.b64decode(text or "", validate=True)
    except ValueError:
        return None
    return int.from_bytes(raw, "big") if len(raw) == 4 else None  # noqa: PLR2004 - bytes of a CRC-32


async def joined_parts(checksums: Sequence[int], part_size: int, size: int) -> int:
    """Return the CRC-32C of an object from those of its parts, of which the last may be shorter.

    Ten thousand parts would hold the loop for a second otherwise.
    """
    whole = 0
    for number, each in enumerate(checksums):
        if number % JOINS_AT_ONCE == JOINS_AT_ONCE - 1:
            await asyncio.sleep(0)
        whole = joined(whole, each, min(part_size, size - number * part_size))
    return whole


def _part(source: Source, offset: int, length: int) -> MemoryPart:
    blocks = _blocks(source, offset, length)
    if blocks != _blocks(source, offset, length):
        raise ChecksumMismatch("the source changed while it was read")
    found = 0
    for block in blocks:
        found = crc32c(block, found)
    return MemoryPart(blocks, length, found)


def _blocks(source: Source, offset: int, length: int) -> list[bytes]:
    end = offset + length
    return [source.pread(at, min(BLOCK_BYTES, end - at)) for at in range(offset, end, BLOCK_BYTES)]


def _checksum(source: Source, offset: int, length: int) -> int:
    before, found = version_of(source), 0
    for at in range(offset, offset + length, BLOCK_BYTES):
        found = crc32c(source.pread(at, min(BLOCK_BYTES, offset + length - at)), found)
    if version_of(source) != before:
        raise ChecksumMismatch("the source changed while it was read")
    return found
