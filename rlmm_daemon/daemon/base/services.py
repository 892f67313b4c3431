"""Protocols of the parts of the daemon that the socket's handlers call."""

# ruff: noqa: D102 - these rows are the socket's methods, which codec.api and docs/protocol.md describe

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from rlmm_daemon.codec import api
from rlmm_daemon.codec.frames import LocalFile
from rlmm_daemon.core.fold.walks import Walk
from rlmm_daemon.daemon.base.appends import Append, Tell
from rlmm_daemon.daemon.base.bugs import Bugs
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.domain.ids import SegmentId, TopicIdPartition


class MetadataLookups(Protocol):
    """Questions about segments: plain calls, no await, no IO."""

    def remote_log_segment_metadata(
        self, tp: TopicIdPartition, epoch: int, offset: int, caller: Caller
    ) -> bytes | None: ...
    def found_until(
        self, tp: TopicIdPartition, epoch: int, offset: int, caller: Caller
    ) -> api.FoundUntil | None: ...
    def highest_offset_for_epoch(
        self, tp: TopicIdPartition, epoch: int, caller: Caller
    ) -> int | None: ...
    def listing(
        self, tp: TopicIdPartition, epoch: int | None, caller: Caller
    ) -> Walk[list[bytes]]: ...
    def sizing(self, tp: TopicIdPartition, epoch: int, caller: Caller) -> Walk[int]: ...
    def next_segment_with_txn_index(
        self, tp: TopicIdPartition, epoch: int, offset: int, caller: Caller
    ) -> bytes | None: ...
    def is_ready(self, tp: TopicIdPartition, caller: Caller) -> bool: ...

    async def until_readable(
        self, tp: TopicIdPartition, caller: Caller, timeout_seconds: float
    ) -> None:
        """Return when a look-up that was `NotReady` may be asked once more."""


class MetadataEvents(Protocol):
    """Writes, each answered after its own apply."""

    def begin_add(self, record: bytes, timeout_seconds: float, tell: Tell) -> Append | None: ...
    def begin_update(self, record: bytes, timeout_seconds: float, tell: Tell) -> Append | None: ...
    async def add(self, record: bytes, caller: Caller, timeout_seconds: float) -> None: ...
    async def update(self, record: bytes, caller: Caller, timeout_seconds: float) -> None: ...
    async def put_partition_delete(
        self, record: bytes, caller: Caller, timeout_seconds: float
    ) -> None: ...


class MetadataManager(Protocol):
    """Announcements: plain calls, no await, no IO."""

    #: For whatever takes long.
    turns: FairScheduler
    #: Of single requests.
    bugs: Bugs

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None: ...
    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None: ...
    @property
    def incarnation_ms(self) -> int | None: ...
    def replacing_assignment(
        self,
        leaders: Sequence[TopicIdPartition],
        followers: Sequence[TopicIdPartition],
        incarnation_ms: int | None,
    ) -> Iterator[None]: ...
    def hello_from_broker(self, incarnation_ms: int) -> None:
        """Close the gate when this is another incarnation of the broker."""


class SegmentCopier(Protocol):
    """Copies and deletes: the SPI's steps and the whole jobs."""

    async def copy_log_segment_data(
        self, record: bytes, files: api.SegmentFiles
    ) -> bytes | None: ...
    async def copy_segment(
        self, record: bytes, files: api.SegmentFiles, caller: Caller, *, repeats: bool = False
    ) -> bytes: ...
    async def delete_log_segment_data(self, record: bytes) -> None: ...
    async def delete_segment(self, tp: TopicIdPartition, segment_id: SegmentId) -> None: ...


class FileSlice(msgspec.Struct, frozen=True):
    """A piece of an open file, good for `sendfile`.

    Its descriptor belongs to whoever yielded it and is closed when the next piece is asked for.
    """

    descriptor: int
    start: int
    length: int


class BulkAnswer(Protocol):
    """Exactly `length` bytes, from an open file or from an iterator; closed once, whatever happens.

    `file` is a descriptor and the position of the first byte, good for `sendfile` until `aclose`.
    `chunks` is asked only where there is no file. Where a file is named, there are no bytes.
    """

    @property
    def length(self) -> int: ...
    @property
    def crc32c(self) -> int | None: ...
    @property
    def file(self) -> tuple[int, int] | None: ...
    @property
    def named(self) -> LocalFile | None: ...
    def chunks(self) -> AsyncGenerator[bytes | FileSlice, None]: ...
    async def aclose(self) -> None: ...


class SegmentFetcher(Protocol):
    """Ranges and indexes of stored segments."""

    async def fetch_log_segment(
        self, record: bytes, start: int, end_inclusive: int | None, *, may_open: bool = False
    ) -> BulkAnswer: ...
    async def fetch_index(self, record: bytes, index: str) -> BulkAnswer: ...


class Standing(Protocol):
    """How the daemon stands, and why a partition answers as it does."""

    async def status(self) -> dict[str, Any]: ...
    async def partitions(self) -> list[dict[str, Any]]: ...
    async def explain(
        self, selector: str, epoch: int | None = None, offset: int | None = None
    ) -> dict[str, Any]: ...


class Operator(Protocol):
    """What people ask for. Iterators are closed when the asker goes."""

    async def resolve(self, selector: str) -> list[TopicIdPartition]: ...
    def user_partitions(self, topic: str | None) -> AsyncGenerator[api.UserPartition, None]: ...
    def segments(self, selector: str, epoch: int | None) -> AsyncGenerator[bytes, None]: ...
    def tail(
        self, metadata_partition: int | None, from_offset: int | None, *, follow: bool
    ) -> AsyncGenerator[api.TailEvent, None]: ...
    def export(self, selector: str | None) -> AsyncGenerator[bytes, None]: ...
    async def snapshot_now(self, metadata_partition: int | None) -> list[dict[str, Any]]: ...
    async def cleanup(self) -> dict[str, Any]: ...
    async def forecast(self, topic: str | None) -> dict[str, Any]: ...
    async def purge(self, topic_id: bytes, *, execute: bool, existing: bool) -> dict[str, Any]: ...
    async def topic_pause(self, topic: str, *, execute: bool) -> dict[str, Any]: ...
    async def topic_resume(self, topic: str, *, execute: bool) -> dict[str, Any]: ...
    async def drain(self) -> None:
        """Begin to drain and return at once: the process ends when it is done."""

    async def partition_retry(self, metadata_partition: int | None) -> dict[str, Any]: ...
    async def partition_rebuild(self, metadata_partition: int | None) -> dict[str, Any]: ...
    async def partition_accept_loss(
        self, metadata_partition: int | None, *, everything: bool, without_looking: bool = False
    ) -> dict[str, Any]: ...
    async def partition_end_hold(
        self, metadata_partition: int | None, *, execute: bool
    ) -> dict[str, Any]: ...
    async def log_recover(self, metadata_partition: int, *, execute: bool) -> dict[str, Any]: ...
    async def log_repair(self, metadata_partition: int | None) -> dict[str, Any]: ...


async def _at_once() -> None:
    pass


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Everything behind the socket; without storage there is neither copier nor fetcher."""

    manager: MetadataManager
    lookups: MetadataLookups
    events: MetadataEvents
    operator: Operator
    standing: Standing
    copier: SegmentCopier | None = None
    fetcher: SegmentFetcher | None = None
    #: Returns once log and bucket are known, or will not be without an operator: the socket answers
    #: some milliseconds earlier, and a copy asked for then is not to be refused. NotReady after a
    #: while, with the cause.
    opened: Callable[[], Awaitable[None]] = _at_once
    #: Why the event log is not open, in words; None once it is.
    log_trouble: Callable[[], str | None] = lambda: None
