"""Handlers of all methods, as tables by the shape of their answers.

    LOOKUPS         plain calls, answered inside the read callback; `NotReady` may be held. A long
                    `Walk` is drawn in a task
    ANNOUNCEMENTS   plain calls too, so that they take effect in the order in which they were sent;
                    long ones in steps (`announcing`)
    WRITES          events of the log, from a task, with a deadline of their own
    REQUESTS        one answer from a task
    STREAMS         pages from a task
    BULKS           raw bytes, on connections of role bulk

Every row of `codec.api.METHODS` is in exactly one of them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar

from rlmm_daemon.codec import api
from rlmm_daemon.codec.frames import PAGE_BYTES
from rlmm_daemon.core.fold.walks import Walk
from rlmm_daemon.daemon.base.announcing import STEP, pieces
from rlmm_daemon.daemon.base.appends import Append, Tell
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.base.services import (
    BulkAnswer,
    MetadataEvents,
    MetadataLookups,
    MetadataManager,
    SegmentCopier,
    SegmentFetcher,
    Services,
)
from rlmm_daemon.domain.errors import InvalidArgument, StorageNotConfigured
from rlmm_daemon.domain.ids import TopicIdPartition

#: (lookups, partition, params, caller). The session turns the wire's partition into the domain's.
Lookup = Callable[[MetadataLookups, TopicIdPartition, Any, Caller], Any]
#: Does one step before each of what it yields.
Announcement = Callable[[MetadataManager, Any], Iterator[None]]
#: (events, params, caller, seconds). Keeps its own deadline: only the publisher knows whether the
#: record was handed on before it passed.
Write = Callable[[MetadataEvents, Any, Caller, float], Awaitable[None]]
#: (events, params, seconds, tell); None: it succeeded, and nobody will be told.
BegunWrite = Callable[[MetadataEvents, Any, float, Tell], Append | None]
Request = Callable[[Services, Any, Caller], Awaitable[Any]]
Stream = Callable[[Services, Any, Caller], AsyncGenerator[Any, None]]
Bulk = Callable[[Services, Any], Awaitable[BulkAnswer]]
T = TypeVar("T")

LOOKUPS: Final[dict[str, Lookup]] = {
    "remote_log_segment_metadata": lambda lookups, tp, params, caller: (
        lookups.found_until(tp, params.epoch, params.offset, caller)
        if params.until
        else lookups.remote_log_segment_metadata(tp, params.epoch, params.offset, caller)
    ),
    "highest_offset_for_epoch": lambda lookups, tp, params, caller: (
        lookups.highest_offset_for_epoch(tp, _one_epoch(params), caller)
    ),
    "list_remote_log_segments": lambda lookups, tp, params, caller: lookups.listing(
        tp, params.epoch, caller
    ),
    "remote_log_size": lambda lookups, tp, params, caller: lookups.sizing(
        tp, _one_epoch(params), caller
    ),
    "next_segment_with_txn_index": lambda lookups, tp, params, caller: (
        lookups.next_segment_with_txn_index(tp, params.epoch, params.offset, caller)
    ),
    "is_ready": lambda lookups, tp, _params, caller: lookups.is_ready(tp, caller),
}

SIZING: Final = "remote_log_size"
#: Look-ups whose result is a `Walk`.
WALKS: Final = frozenset({"list_remote_log_segments", SIZING})


def _announced(manager: MetadataManager, params: api.AssignmentParams) -> Iterator[None]:
    leaders, followers = list[TopicIdPartition](), list[TopicIdPartition]()
    yield from _into(leaders, params.leaders)
    yield from _into(followers, params.followers)
    for some in pieces(followers):
        manager.on_partition_leadership_changes((), some)
        yield
    for some in pieces(leaders):
        manager.on_partition_leadership_changes(some, ())
        yield


def _stopped(manager: MetadataManager, params: api.PartitionsParams) -> Iterator[None]:
    partitions = list[TopicIdPartition]()
    yield from _into(partitions, params.partitions)
    for some in pieces(partitions):
        manager.on_stop_partitions(some)
        yield


def _replaced(manager: MetadataManager, params: api.AssignmentParams) -> Iterator[None]:
    # As of now: it may wait behind another one, and for another incarnation's hello with it.
    return _replacing(manager, params, manager.incarnation_ms)


def _replacing(
    manager: MetadataManager, params: api.AssignmentParams, incarnation_ms: int | None
) -> Iterator[None]:
    leaders, followers = list[TopicIdPartition](), list[TopicIdPartition]()
    yield from _into(leaders, params.leaders)
    yield from _into(followers, params.followers)
    yield from manager.replacing_assignment(leaders, followers, incarnation_ms)


#: Nothing is taken up before all of it was read: one partition that is none refuses the whole.
ANNOUNCEMENTS: Final[dict[str, Announcement]] = {
    "on_partition_leadership_changes": _announced,
    "on_stop_partitions": _stopped,
    "replace_assignment": _replaced,
}


#: What a broker's write is tried as first; `MustWait` sends it to `WRITES`.
BEGUN: Final[dict[str, BegunWrite]] = {
    "add_remote_log_segment_metadata": lambda events, params, seconds, tell: events.begin_add(
        params.record, seconds, tell
    ),
    "update_remote_log_segment_metadata": lambda events, params, seconds, tell: events.begin_update(
        params.record, seconds, tell
    ),
}

WRITES: Final[dict[str, Write]] = {
    "add_remote_log_segment_metadata": lambda events, params, caller, seconds: events.add(
        params.record, caller, seconds
    ),
    "update_remote_log_segment_metadata": lambda events, params, caller, seconds: events.update(
        params.record, caller, seconds
    ),
    "put_remote_partition_delete_metadata": lambda events, params, caller, seconds: (
        events.put_partition_delete(params.record, caller, seconds)
    ),
}


async def _resolve(services: Services, params: Any, _caller: Caller) -> list[api.Partition]:
    found = await services.operator.resolve(params.selector)
    return [api.Partition.of(partition) for partition in found]


REQUESTS: Final[dict[str, Request]] = {
    "copy_log_segment_data": lambda services, params, _caller: _copier(
        services
    ).copy_log_segment_data(params.record, params.files),
    "delete_log_segment_data": lambda services, params, _caller: _copier(
        services
    ).delete_log_segment_data(params.record),
    "copy_segment": lambda services, params, caller: _copier(services).copy_segment(
        params.record, params.files, caller, repeats=params.repeats
    ),
    "delete_segment": lambda services, params, _caller: _copier(services).delete_segment(
        params.partition.to_domain(), params.segment_id
    ),
    "resolve": _resolve,
    "status": lambda services, _params, _caller: services.standing.status(),
    "partitions": lambda services, _params, _caller: services.standing.partitions(),
    "explain": lambda services, params, _caller: services.standing.explain(
        params.selector, params.epoch, params.offset
    ),
    "snapshot_now": lambda services, params, _caller: services.operator.snapshot_now(
        params.metadata_partition
    ),
    "cleanup": lambda services, _params, _caller: services.operator.cleanup(),
    "forecast": lambda services, params, _caller: services.operator.forecast(params.topic),
    "purge": lambda services, params, _caller: services.operator.purge(
        params.topic_id, execute=params.execute, existing=params.existing
    ),
    "topic_pause": lambda services, params, _caller: services.operator.topic_pause(
        params.topic, execute=params.execute
    ),
    "topic_resume": lambda services, params, _caller: services.operator.topic_resume(
        params.topic, execute=params.execute
    ),
    "drain": lambda services, _params, _caller: services.operator.drain(),
    "partition_retry": lambda services, params, _caller: services.operator.partition_retry(
        params.metadata_partition
    ),
    "partition_rebuild": lambda services, params, _caller: services.operator.partition_rebuild(
        params.metadata_partition
    ),
    "partition_accept_loss": lambda services, params, _caller: (
        services.operator.partition_accept_loss(
            params.metadata_partition,
            everything=params.everything,
            without_looking=params.without_looking,
        )
    ),
    "partition_end_hold": lambda services, params, _caller: services.operator.partition_end_hold(
        params.metadata_partition, execute=params.execute
    ),
    "log_recover": lambda services, params, _caller: services.operator.log_recover(
        params.metadata_partition, execute=params.execute
    ),
    "log_repair": lambda services, params, _caller: services.operator.log_repair(
        params.metadata_partition
    ),
}

STREAMS: Final[dict[str, Stream]] = {
    "segments": lambda services, params, _caller: record_pages(
        services.operator.segments(params.selector, params.epoch)
    ),
    "user_partitions": lambda services, params, _caller: user_partition_pages(
        services.operator.user_partitions(params.topic)
    ),
    "export": lambda services, params, _caller: record_pages(
        services.operator.export(params.selector)
    ),
    "tail": lambda services, params, _caller: tail_pages(
        services.operator.tail(params.metadata_partition, params.from_offset, follow=params.follow),
        page_bytes=0 if params.follow else PAGE_BYTES,
    ),
}

BULKS: Final[dict[str, Bulk]] = {
    "fetch_log_segment": lambda services, params: _fetcher(services).fetch_log_segment(
        params.record, params.start, params.end_inclusive, may_open=params.may_open
    ),
    "fetch_index": lambda services, params: _fetcher(services).fetch_index(
        params.record, params.index
    ),
}

#: A page of user partitions holds so many; each is some 200 bytes.
_PAGE_PARTITIONS: Final = 1_000
#: Bounded by `job_seconds`; what they do has deadlines of its own.
JOBS: Final = frozenset(
    {
        "copy_log_segment_data", "delete_log_segment_data", "copy_segment", "delete_segment",
        "segments", "export", "forecast", "snapshot_now", "partition_rebuild", "log_repair",
        "log_recover", "purge",
    }
)  # fmt: skip
#: Speak of the daemon itself, so they are answered before the cluster is known and while draining.
ABOUT_THE_DAEMON: Final = frozenset({"status", "partitions", "explain", "cleanup", "drain"})
#: May be what opens the log.
WITHOUT_A_LOG: Final = frozenset({"partition_accept_loss"})
#: Still answered while the daemon drains: they begin nothing.
WHILE_DRAINING: Final = ABOUT_THE_DAEMON | LOOKUPS.keys() | {
    "resolve", "user_partitions", "segments",
}  # fmt: skip

_TABLES: Final = (LOOKUPS, ANNOUNCEMENTS, WRITES, REQUESTS, STREAMS, BULKS)
assert sorted(name for table in _TABLES for name in table) == sorted(api.METHODS), (
    "every method has one handler"
)
assert api.METHODS.keys() >= (JOBS | WHILE_DRAINING), "no set names a method that is none"


def pages_of(records: list[bytes]) -> list[api.RecordPage]:
    """Return records cut into pages of about `PAGE_BYTES`; at least one page, the last not more."""
    pages, page, size = [], list[bytes](), 0
    for record in records:
        if page and size + len(record) > PAGE_BYTES:
            pages.append(api.RecordPage(page, more=True))
            page, size = [], 0
        page.append(record)
        size += len(record)
    return [*pages, api.RecordPage(page, more=False)]


async def drawn(walk: Walk[T], turns: FairScheduler) -> AsyncGenerator[T, None]:
    """Yield the pieces of a long answer, each in a turn of its own."""
    while True:
        await turns.wait()
        piece = next(walk.pieces, None)
        if piece is None:
            return
        yield piece


async def records_of(walk: Walk[list[bytes]], turns: FairScheduler) -> AsyncGenerator[bytes, None]:
    """Yield the records of a long listing."""
    async with aclosing(drawn(walk, turns)) as pieces:
        async for piece in pieces:
            for record in piece:
                yield record


async def record_pages(
    records: AsyncGenerator[bytes, None],
) -> AsyncGenerator[api.RecordPage, None]:
    """Yield pages of about `PAGE_BYTES`, the last without `more`."""
    page, size = list[bytes](), 0
    async with aclosing(records):
        async for record in records:
            if page and size + len(record) > PAGE_BYTES:
                yield api.RecordPage(page, more=True)
                page, size = [], 0
            page.append(record)
            size += len(record)
    yield api.RecordPage(page, more=False)


async def user_partition_pages(
    found: AsyncGenerator[api.UserPartition, None],
) -> AsyncGenerator[api.UserPartitionPage, None]:
    """Yield pages of user partitions, the last without `more`."""
    page = list[api.UserPartition]()
    async with aclosing(found):
        async for each in found:
            if len(page) == _PAGE_PARTITIONS:
                yield api.UserPartitionPage(page, more=True)
                page = []
            page.append(each)
    yield api.UserPartitionPage(page, more=False)


async def tail_pages(
    events: AsyncGenerator[api.TailEvent, None], *, page_bytes: int
) -> AsyncGenerator[api.TailPage, None]:
    """Yield pages of events; one that is followed for ever is sent at once (`page_bytes` 0)."""
    page, size = list[api.TailEvent](), 0
    async with aclosing(events):
        async for event in events:
            page.append(event)
            size += len(event.value or b"")
            if size >= page_bytes:
                yield api.TailPage(page, more=True)
                page, size = [], 0
    yield api.TailPage(page, more=False)


def _one_epoch(params: api.EpochParams) -> int:
    if params.epoch is None:
        raise InvalidArgument("this method needs an epoch")
    return params.epoch


def is_short(params: api.AssignmentParams | api.PartitionsParams) -> bool:
    """Whether an announcement is taken up in one step."""
    if isinstance(params, api.PartitionsParams):
        return len(params.partitions) <= STEP
    return len(params.leaders) + len(params.followers) <= STEP


def _into(known: list[TopicIdPartition], partitions: Sequence[api.Partition]) -> Iterator[None]:
    for some in pieces(partitions):
        known += [partition.to_domain() for partition in some]
        yield


def _copier(services: Services) -> SegmentCopier:
    if services.copier is None:
        raise StorageNotConfigured
    return services.copier


def _fetcher(services: Services) -> SegmentFetcher:
    if services.fetcher is None:
        raise StorageNotConfigured
    return services.fetcher
