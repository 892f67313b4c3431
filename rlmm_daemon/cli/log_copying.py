"""The work of `rlmm log copy`: events of one log appended to another, in order, verified."""

import asyncio
from dataclasses import dataclass

from rlmm_daemon.cli.log_adoption import adopt, refuse_beside_a_daemon
from rlmm_daemon.cli.log_contents import append_all, contents, count_of, first_of, opened
from rlmm_daemon.config import Config
from rlmm_daemon.domain.errors import InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import LogMissing, LogMoved


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was done for one metadata partition."""

    metadata_partition: int
    events: int
    appended: int
    #: Records of the source that are no events, or that every broker rejects.
    passed_over: int


def run(config: Config, source: str, target: str) -> list[Copied]:
    """Return what was done, partition by partition.

    Raises:
        RlmmError: refused, or cut short; asking again goes on.
    """
    try:
        return asyncio.run(_run(config, source, target))
    except* (LogMissing, LogMoved) as errors:
        raise InvalidArgument(str(errors.exceptions[0])) from errors
    except* RlmmError as errors:
        raise first_of(errors) from None


async def _run(config: Config, source: str, target: str) -> list[Copied]:
    await refuse_beside_a_daemon(config)
    async with opened(config, source, None) as origin:
        count = count_of(origin)
        async with opened(config, target, count) as copy_log:
            if count_of(copy_log) != count:
                raise InvalidArgument(
                    f"{source} has {count} partitions, {target} has {count_of(copy_log)}:"
                    " a metadata log's partition count can't change"
                )
            numbers = [MetadataPartition(number) for number in range(count)]
            missing = {}
            for number in numbers:  # all are compared before the first is written
                read, there = await contents(origin, number), await contents(copy_log, number)
                missing[number] = (read, _rest(number, read.events, there.events))
            rows = []
            for number, (read, rest) in missing.items():
                await append_all(copy_log, number, rest)
                there = await contents(copy_log, number)
                if there.events[: len(read.events)] != read.events:
                    raise InvalidArgument(f"metadata partition {number} reads back differently")
                row = Copied(
                    metadata_partition=number,
                    events=len(read.events),
                    appended=len(rest),
                    passed_over=read.passed_over,
                )
                rows.append(row)
            assert copy_log.identity is not None, "open"
            await adopt(config, target, copy_log.identity)
            return rows


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
