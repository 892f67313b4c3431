"""Remote storage: whole segments in, ranges and indexes out, keys only from what was recorded.

Every adapter (memory, local, s3) passes one contract test class. Keys are relative to the
storage's root and use `/`; what key a segment has is decided by `core.storage.layout`, not here.
"""

import enum
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

import msgspec

from rlmm_daemon.core.storage.calls import Calls
from rlmm_daemon.core.storage.pace import Silence
from rlmm_daemon.domain.errors import RlmmError

#: The `reason` of a StorageUnavailable that is the broker's disk's fault, not the storage's.
SOURCE_UNREADABLE: Final = "source_unreadable"


class ObjectKind(enum.Enum):
    """The six objects of a segment, in upload order; the value is Kafka's file name suffix."""

    OFFSET = ".index"
    TIMESTAMP = ".timeindex"
    TRANSACTION = ".txnindex"
    PRODUCER_SNAPSHOT = ".snapshot"
    LEADER_EPOCH = ".leader_epoch_checkpoint"
    #: Last, so that a visible `.log` means a whole segment.
    LOG = ".log"


class Source(Protocol):
    """Bytes to be stored: an open file or a buffer. May be read more than once."""

    @property
    def size(self) -> int:
        """Bytes when it was opened; a source that turns out shorter or longer is an error."""

    def fileno(self) -> int | None:
        """Return a descriptor good for `copy_file_range` and `pread`, or None for a buffer."""

    def pread(self, offset: int, length: int) -> bytes:
        """Return exactly these bytes, blocking (call it in a thread).

        Raises:
            ChecksumMismatch: the source became shorter than `size`.
            StorageUnavailable: its own disk fails; the reason is `SOURCE_UNREADABLE`.
        """


@runtime_checkable
class ReadSource(Source, Protocol):
    """A `Source` that is read from front to back once, by whoever copies it or somebody else."""

    def checksum(self) -> int:
        """Return the CRC-32C of all bytes, blocking until they were read; it may read them now.

        Asked for once nothing else of the segment is read any more.

        Raises:
            RlmmError: the reader found something wrong.
            CancelledError: of `concurrent.futures`; the reader was stopped.
        """


class Progress(msgspec.Struct):
    """What a copy has done so far; the adapter writes it, the deadline watcher and `explain` read.

    Mutated from the event loop and from worker threads: plain stores only.
    """

    phase: str = "queued"
    #: The topic's name, for a storage that limits some topics.
    topic: str = ""
    #: Bytes known to be taken by the storage, over all objects; less by those of an attempt that
    #: failed.
    bytes_done: int = 0
    #: Those of attempts that failed.
    bytes_taken_back: int = 0
    bytes_total: int = 0
    parts_done: int = 0
    #: What a storage without `calls` does, in its own words, for example "copy .log".
    call: str = ""
    #: The calls in flight, of a storage that has any; the event loop's thread alone.
    calls: Calls | None = None
    #: Turns true before the first byte goes to the storage: from then on a retry is a new attempt.
    write_begun: bool = False

    def moved(self, count: int) -> None:
        """Count bytes that the storage took; below 0, those of an attempt that failed."""
        self.bytes_done += count
        self.bytes_taken_back -= min(count, 0)

    @property
    def bytes_moved(self) -> int:
        """All bytes that the storage took, also those for nothing: it only grows."""
        return self.bytes_done + self.bytes_taken_back

    @property
    def call_in_flight(self) -> str:
        """The oldest call in flight in the storage's own words, "" for none."""
        return self.call if self.calls is None else str(self.calls)


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object as the storage holds it now."""

    key: str
    size: int
    #: Of the whole object.
    crc32c: int


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a listing."""

    key: str
    size: int
    modified_ms: int
    etag: str = ""


class UploadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One incomplete multipart upload (or a local temporary file)."""

    key: str
    upload_id: str
    initiated_ms: int


class ControlObject(msgspec.Struct, frozen=True, kw_only=True):
    """A small object of ours (marker, presence, lease) and the tag for a conditional write."""

    data: bytes
    etag: str
    #: When the storage took it, in ms since 1970; None: it does not say.
    modified_ms: int | None = None


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `probe` found allowed, by operation; a value is the error that stood in the way."""

    results: Mapping[str, RlmmError | None] = msgspec.field(default_factory=dict)


class Version(msgspec.Struct):
    """Which version of an object its readers saw: the storage's tag, "" until a range came."""

    etag: str = ""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What went between us and a storage since the start, and what may go at once now."""

    #: (operation, outcome) -> requests; outcome is "ok" or one word for the error.
    requests: Mapping[tuple[str, str], int]
    #: outcome -> retries: made, refused.
    retries: Mapping[str, int]
    retry_budget: float
    throttled: int
    #: direction -> requests: read, write.
    in_flight: Mapping[str, int]
    in_flight_max: Mapping[str, int]
    uploads_left: int
    #: Median of the last answers without an object's bytes; 0: too few of late.
    answer_seconds: float = 0.0
    #: None while it answers.
    silence: Silence | None = None


class Conflict(Exception):
    """A conditional write met another state than it named."""


class RemoteStorage(Protocol):
    """Where segments live. Every call is bounded by the caller's `asyncio.timeout`."""

    async def open(self) -> None:
        """Connect, create what is ours to create, sweep own leftovers; idempotent.

        Raises:
            StorageUnavailable: not now, or not with these credentials; the message says which.
        """

    async def put_segment(
        self,
        objects: Sequence[tuple[ObjectKind, str, Source]],
        *,
        progress: Progress,
    ) -> Sequence[StoredObject]:
        """Store a segment's objects under their keys, in the given order, the `.log` last.

        Idempotent: objects of an earlier attempt are overwritten, one by one. Returns when every
        object is durable and was verified by the storage; otherwise none of them may look whole:
        where no `.log` was before, one that was not verified is never visible. Where one was, it
        may be what a finished segment names: whatever ends this attempt, also a kill at any of its
        steps, no object that was there is gone. Cancelling leaves no temporary file or upload.

        Raises:
            ChecksumMismatch: a source changed or shrank while it was read.
            StorageUnavailable, StorageFull: as they say.
        """

    def fetch(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes [start, end) of an object; `end` beyond the object is cut there.

        Raises:
            ObjectMissing: certainly absent (never on a doubtful answer).
            StorageUnavailable: not now, or the bucket is missing.
        """

    async def size(self, key: str) -> int | None:
        """Return an object's size, or None if it is certainly absent."""

    def local_path(self, key: str) -> str | None:
        """Return a path good for `sendfile` when objects are local files, else None."""

    async def delete(self, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
        """Delete objects; per key None for success (absent is success) or the error."""

    def list(self, prefix: str) -> AsyncGenerator[Sequence[ObjectInfo], None]:
        """Yield pages of what lies below a prefix, in no order that may be relied on."""

    def list_uploads(self, prefix: str) -> AsyncGenerator[Sequence[UploadInfo], None]:
        """Yield pages of incomplete uploads below a prefix."""

    async def abort_upload(self, upload: UploadInfo) -> None:
        """Abort an incomplete upload; absent is success."""

    async def get_control(self, key: str) -> ControlObject | None:
        """Return a small object whole, or None if it is certainly absent."""

    async def put_control(self, key: str, data: bytes, *, if_etag: str | None) -> str:
        """Write a small object only if its tag is still `if_etag` (None: only if absent).

        Returns the new tag.

        Raises:
            Conflict: someone else was faster.
        """

    async def overwrite_control(self, key: str, data: bytes) -> None:
        """Write a small object whatever is there."""

    async def probe(self, keys: Collection[str] = ()) -> ProbeResult:
        """Try each operation on a canary of our own and say what is allowed.

        The right to write each of `keys` is tried, too, by a step "write KEY", and nothing is
        written there.
        """

    async def close(self) -> None:
        """Give everything back; idempotent."""


@runtime_checkable
class DescribingStorage(Protocol):
    """A `RemoteStorage` that kept the checksum under which an object was stored."""

    async def described_crc32c(self, key: str) -> int | None:
        """Return the CRC-32C of an object; None: not known, or the way here is safe anyway.

        Raises:
            ObjectMissing: certainly absent.
            StorageUnavailable: not now.
        """


@runtime_checkable
class VersionedStorage(Protocol):
    """A `RemoteStorage` that can hold several ranges to one version of an object."""

    def fetch_version(
        self, key: str, start: int, end: int, version: Version
    ) -> AsyncGenerator[bytes, None]:
        """Yield as `fetch` does, of this version only; a version not yet seen is filled in.

        Raises:
            ChecksumMismatch: the object is another one now.
        """
