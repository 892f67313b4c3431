"""Copying of events from one log into another (`rlmm log copy`), in order, verified."""

import asyncio
from typing import Final

import msgspec

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.config import Config
from rlmm_daemon.domain.errors import InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.observability.logging import beside_answers
from rlmm_daemon.offline.log_adoption import adopt, read_before, refuse_beside_a_daemon
from rlmm_daemon.offline.log_contents import (
    KAFKA,
    Contents,
    append_all,
    contents,
    count_of,
    first_of,
    holds,
    opened,
    require_one_cluster,
    require_there,
)
from rlmm_daemon.offline.ownership import given_to_owner
from rlmm_daemon.ports.event_log import EventLog, LogMissing, LogMoved

#: Metadata partitions that one message names.
_LOSSES_TOLD: Final = 5


class CopiedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """What was done for one metadata partition."""

    metadata_partition: int
    events: int
    appended: int
    #: Records of the source that are no events, or that every broker rejects.
    passed_over: int
    #: Of the source, whose records are gone: its head, and what is missing in between.
    lost_offsets: int = 0


def run(
    config: Config, source: str, target: str, *, accept_loss: bool = False
) -> list[CopiedPartition]:
    """Return what was done, partition by partition.

    Raises:
        RlmmError: refused, or cut short; asking again goes on.
    """
    beside_answers()
    try:
        require_there("--from", source)
        made = [] if target == KAFKA else [target]
        with given_to_owner(config.daemon.state_dir, *made):
            return asyncio.run(_run(config, source, target, accept_loss=accept_loss))
    except* (LogMissing, LogMoved) as errors:
        raise InvalidArgument(str(errors.exceptions[0])) from errors
    except* RlmmError as errors:
        raise first_of(errors) from None


async def _run(
    config: Config, source: str, target: str, *, accept_loss: bool
) -> list[CopiedPartition]:
    await refuse_beside_a_daemon(config)
    async with opened(config, source, None) as origin:
        count = count_of(origin)
        assert origin.identity is not None, "open"
        named = {source: origin.identity.cluster_id, "the configuration": config.daemon.cluster_id}
        require_one_cluster(named)
        numbers = [MetadataPartition(number) for number in range(count)]
        reads = {number: await contents(origin, number) for number in numbers}
        unread = await _unread(config, origin)
        if not accept_loss:  # before a target is made
            _require_whole(source, reads)
            _require_read(source, unread)
        async with opened(config, target, count) as copy_log:
            assert copy_log.identity is not None, "open"
            require_one_cluster({**named, target: copy_log.identity.cluster_id})
            if count_of(copy_log) != count:
                raise InvalidArgument(
                    f"{source} has {count} partitions, {target} has {count_of(copy_log)}:"
                    " a metadata log's partition count can't change"
                )
            missing = {}
            for number, read in reads.items():  # all are compared before the first is written
                there = await contents(copy_log, number)
                missing[number] = (read, _rest(number, read.events, there.events))
            rows, ends = list[CopiedPartition](), dict[int, Position]()
            for number, (read, rest) in missing.items():
                await append_all(copy_log, number, rest)
                there = await contents(copy_log, number)
                if there.events[: len(read.events)] != read.events:
                    raise InvalidArgument(f"metadata partition {number} reads back differently")
                ends[number] = Position(there.position, there.epoch)
                row = CopiedPartition(
                    metadata_partition=number,
                    events=len(read.events),
                    appended=len(rest),
                    passed_over=read.passed_over,
                    lost_offsets=sum(gap.end - gap.start for gap in read.lost()),
                )
                rows.append(row)
            lossy = unread or any(row.lost_offsets for row in rows)
            before_ms = SystemClock().now_ms() if lossy else None
            await adopt(config, target, copy_log.identity, hold_before_ms=before_ms, ends=ends)
            return rows


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
