"""Copying of events from one log into another (`rlmm log copy`), in order, verified.

What was copied counts only once nobody writes to the source any more, both fold to the same, and
what names the daemon's log names the copy. Until then all of it may be asked for again.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.config import Config, QuorumLog
from rlmm_daemon.domain.errors import InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.observability.logging import beside_answers
from rlmm_daemon.offline.copying.comparing import first_difference
from rlmm_daemon.offline.copying.fencing import require_still, require_stopped
from rlmm_daemon.offline.log_adoption import adopt, read_before, refuse_beside_a_daemon
from rlmm_daemon.offline.log_contents import (
    NAMED,
    QUORUM,
    Contents,
    append_all,
    contents,
    count_of,
    first_of,
    holds,
    may_be_there,
    opened,
    require_one_cluster,
    require_there,
)
from rlmm_daemon.offline.ownership import given_to_owner
from rlmm_daemon.ports.event_log import EventLog, LogMissing, LogMoved, LogNotBegun, Settling

#: Metadata partitions that one message names.
_LOSSES_TOLD: Final = 5
#: Events between two looks whether somebody else writes to the target, too.
_CHUNK: Final = 1024

Reads = dict[MetadataPartition, Contents]


class CopiedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, or is to be done, for one metadata partition."""

    metadata_partition: int
    events: int
    #: Of them, those that the target did not have.
    missing: int
    appended: int
    #: Records of the source that are no events, or that every broker rejects.
    passed_over: int
    #: Of the source, whose records are gone: its head, and what is missing in between.
    lost_offsets: int = 0
    #: The next offset of the source, and of the target as it is now.
    source_end: int = 0
    target_end: int = 0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be copied where."""

    #: Of the daemon that goes on with the target.
    config: Config
    source: str
    target: str
    #: Names the source.
    source_config: Config
    accept_loss: bool
    execute: bool


def run(
    config: Config,
    source: str,
    target: str,
    *,
    accept_loss: bool = False,
    source_config: Config | None = None,
    execute: bool = True,
) -> list[CopiedPartition]:
    """Return what was done, partition by partition; without `execute`, what is to be done.

    `source_config` is the one that names the source, where `config` names the target alone.

    Raises:
        RlmmError: refused, or cut short; asking again goes on.
    """
    beside_answers()
    try:
        require_there("--from", source)
        configs = (config, source_config or config)
        quorums = [
            each.quorum_directory for each in configs if isinstance(each.event_log, QuorumLog)
        ]
        made = [*([] if target in NAMED else [target]), *quorums]
        with given_to_owner(config.daemon.state_dir, *made):
            work = _run(
                config,
                source,
                target,
                accept_loss=accept_loss,
                source_config=source_config,
                execute=execute,
            )
            return asyncio.run(work)
    except* (LogMissing, LogMoved) as errors:
        raise InvalidArgument(str(_innermost(errors))) from errors
    except* RlmmError as errors:
        raise first_of(errors) from None


def _innermost(group: BaseExceptionGroup[Exception]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run(
    config: Config,
    source: str,
    target: str,
    *,
    accept_loss: bool,
    source_config: Config | None = None,
    execute: bool = True,
) -> list[CopiedPartition]:
    order = Order(
        config=config,
        source=source,
        target=target,
        source_config=source_config or config,
        accept_loss=accept_loss,
        execute=execute,
    )
    for directory in {order.config.daemon.state_dir, order.source_config.daemon.state_dir}:
        daemon = msgspec.structs.replace(config.daemon, state_dir=directory)
        await refuse_beside_a_daemon(msgspec.structs.replace(config, daemon=daemon))
    async with opened(order.source_config, source, None) as origin:
        assert origin.identity is not None, "open"
        require_one_cluster(_clusters(order, origin))
        await require_stopped(config, source, origin.identity)
        numbers = [MetadataPartition(number) for number in range(count_of(origin))]
        reads = {number: await contents(origin, number) for number in numbers}
        unread = await _unread(config, origin)
        if not accept_loss:  # before a target is made
            _require_whole(source, reads)
            _require_read(source, unread)
        if not execute:
            return await _planned(order, origin, reads)
        return await _copied(order, origin, reads, unread)


async def _planned(order: Order, origin: EventLog, reads: Reads) -> list[CopiedPartition]:
    """Return what a copy would append; no target is made."""
    there: Reads = {}
    if may_be_there(order.target):
        absent: BaseException | None = None
        try:
            async with opened(order.config, order.target, None) as target:
                _require_alike(order, origin, target)
                there = {number: await contents(target, number) for number in reads}
        except* LogMissing as errors:
            absent = _innermost(errors)
        if order.target == QUORUM and absent is not None and not isinstance(absent, LogNotBegun):
            raise absent  # only its operator formats it
    rows = list[CopiedPartition]()
    for number, read in reads.items():
        found = there.get(number)
        rest = _rest(number, read.events, [] if found is None else found.events)
        end = 0 if found is None else found.position
        rows.append(_row(number, read, missing=len(rest), appended=0, end=end))
    return rows


async def _copied(
    order: Order, origin: EventLog, reads: Reads, unread: Sequence[MetadataPartition]
) -> list[CopiedPartition]:
    """Copy, hold both logs against each other, and let the daemon's log be the copy."""
    async with opened(order.config, order.target, count_of(origin)) as target:
        assert target.identity is not None, "open"
        _require_alike(order, origin, target)
        if isinstance(target, Settling):
            await target.settle()  # of a copy that was killed, something may be on its way yet
        missing = {}
        for number, read in reads.items():  # all are compared before the first is written
            there = await contents(target, number)
            missing[number] = _rest(number, read.events, there.events), there.position
        rows, ends = list[CopiedPartition](), dict[int, Position]()
        for number, (rest, position) in missing.items():
            read = reads[number]
            await _append(target, number, rest, position)
            there = await contents(target, number)
            _require_equal(number, read, there)
            ends[number] = Position(there.position, there.epoch)
            rows.append(
                _row(number, read, missing=len(rest), appended=len(rest), end=there.position)
            )
        assert origin.identity is not None, "open"
        # A daemon that was started meanwhile may have written nothing yet, and would go on.
        await require_stopped(order.config, order.source, origin.identity)
        await require_still(order.source, origin, reads)
        lossy = unread or any(row.lost_offsets for row in rows)
        before_ms = SystemClock().now_ms() if lossy else None
        await adopt(
            order.config, order.target, target.identity, hold_before_ms=before_ms, ends=ends
        )
        return rows


def _clusters(order: Order, origin: EventLog) -> dict[str, str | None]:
    assert origin.identity is not None, "open"
    return {
        order.source: origin.identity.cluster_id,
        "the source's configuration": order.source_config.daemon.cluster_id,
        "the configuration": order.config.daemon.cluster_id,
    }


def _require_alike(order: Order, origin: EventLog, target: EventLog) -> None:
    """Make sure that a target can hold what the source does.

    Raises:
        InvalidArgument: it is another cluster's, or has not as many partitions.
    """
    assert target.identity is not None, "open"
    require_one_cluster({**_clusters(order, origin), order.target: target.identity.cluster_id})
    if count_of(target) != count_of(origin):
        raise InvalidArgument(
            f"{order.source} has {count_of(origin)} partitions, {order.target} has "
            f"{count_of(target)}: a metadata log's partition count can't change"
        )


async def _append(
    target: EventLog, number: MetadataPartition, values: Sequence[bytes], position: int
) -> None:
    """Append in order, as long as nobody else does.

    Raises:
        InvalidArgument: somebody else writes there.
        RlmmError: not all of them are in the log.
    """
    for begin in range(0, len(values), _CHUNK):
        chunk = values[begin : begin + _CHUNK]
        offsets = await append_all(target, number, chunk)
        if offsets != {*range(position + begin, position + begin + len(chunk))}:
            raise InvalidArgument(
                f"somebody else writes to metadata partition {number} of the target, another copy "
                "perhaps: end it, and ask again"
            )


def _require_equal(number: int, read: Contents, there: Contents) -> None:
    """Make sure that a target reads back as the source was read; it may have gone on since.

    Raises:
        InvalidArgument: it does not.
    """
    if there.events[: len(read.events)] != read.events:
        raise InvalidArgument(f"metadata partition {number} reads back differently")
    if len(there.events) == len(read.events):
        differs = first_difference(read.fold, there.fold)
        if differs is not None:
            raise InvalidArgument(
                f"metadata partition {number} reads back the same, and {differs} differs: this is "
                "a bug; go on with the source"
            )


def _row(number: int, read: Contents, *, missing: int, appended: int, end: int) -> CopiedPartition:
    return CopiedPartition(
        metadata_partition=number,
        events=len(read.events),
        missing=missing,
        appended=appended,
        passed_over=read.passed_over,
        lost_offsets=sum(gap.end - gap.start for gap in read.lost()),
        source_end=read.position,
        target_end=end,
    )


async def _unread(config: Config, origin: EventLog) -> list[MetadataPartition]:
    """Return the metadata partitions of which the daemon had read what the log does not hold.

    A tail that is lost leaves no gap, and nothing in the copy would show it: it is another log.
    """
    assert origin.identity is not None, "open"
    read = (await read_before(config)).get(origin.identity.topic_id, {})
    numbers = [MetadataPartition(number) for number in sorted(read) if number < count_of(origin)]
    return [each for each in numbers if not await holds(origin, each, read[each])]


def _require_whole(source: str, reads: dict[MetadataPartition, Contents]) -> None:
    """Make sure that no event of the source is gone.

    Raises:
        InvalidArgument: one may be; it says where.
    """
    told = [
        f"metadata partition {number} lacks offsets "
        + ", ".join(f"{gap.start} to {gap.end - 1}" for gap in read.lost())
        for number, read in reads.items()
        if read.lost()
    ]
    if told:
        raise InvalidArgument(
            f"{source} has lost events: {'; '.join(told[:_LOSSES_TOLD])}"
            + (f"; and {len(told) - _LOSSES_TOLD} more" if len(told) > _LOSSES_TOLD else "")
            + ". The copy would be as incomplete, and look whole. Next: rlmm log restore puts back "
            "what snapshots know; --accept-loss copies what is left"
        )


def _require_read(source: str, unread: list[MetadataPartition]) -> None:
    """Make sure that the source holds all that the daemon had read of it.

    Raises:
        InvalidArgument: it does not; it says where.
    """
    if unread:
        numbers = ", ".join(map(str, unread[:_LOSSES_TOLD]))
        raise InvalidArgument(
            f"{source} does not hold any more what daemons had read of it: metadata partitions "
            f"{numbers}. The copy would lack as much, and look whole. Next: start the daemon with "
            f"{source}, and what rlmm explain names; --accept-loss copies what is left, and a hold "
            "keeps all objects"
        )


def _rest(number: int, wanted: list[bytes], there: list[bytes]) -> list[bytes]:
    """Return what is to be appended; fine too if the target went on since.

    Raises:
        InvalidArgument: the target holds something else.
    """
    shared = min(len(wanted), len(there))
    if wanted[:shared] != there[:shared]:
        at = next(place for place in range(shared) if wanted[place] != there[place])
        raise InvalidArgument(
            f"metadata partition {number} of the target differs from its event {at} on"
        )
    return wanted[shared:]
