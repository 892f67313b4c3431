"""State that previous processes left, and what is written for the next one."""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

import structlog

from rlmm_daemon.codec.state_files import Identity, Positions, announced_json, announced_rows
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.metadata.assignment import Assignment, from_file
from rlmm_daemon.domain.errors import ConfigError, Malformed, UnsupportedProtocol
from rlmm_daemon.domain.ids import TopicIdPartition

ANNOUNCED_SECONDS: Final = 0.5

_File = TypeVar("_File")

logger = structlog.get_logger(__name__)


async def remembered(
    state: StateDirectory,
) -> tuple[Identity | None, Positions | None, list[TopicIdPartition]]:
    """Return what the state directory knows of earlier lives.

    Raises:
        ConfigError: it was written by a newer daemon, or the log's identity is damaged.
        OSError: what guards the log can't be read.
    """
    try:
        known = await state.identity()
        positions = await _or_none(state.positions())
        announced = await _or_none(state.announced(), guards=False)
    except Malformed as damage:
        raise ConfigError(
            f"{damage.message}; put it back from a copy, or move this one file aside: then the "
            "daemon takes up the event log by what its other files and the bucket's marker name. "
            f"Never empty {state.path}: an embedded event log lies in it"
        ) from damage
    except UnsupportedProtocol as newer:
        raise ConfigError(newer.message) from newer
    return known, positions, from_file(announced)


async def _or_none(reading: Awaitable[_File], *, guards: bool = True) -> _File | None:
    """Return a file that only guards or warms; damaged, it is left out with a warning.

    So is one that can't be read, unless it guards: the next try may read it.
    """
    try:
        return await reading
    except Malformed as damage:
        logger.warning("state file ignored", error=damage.message)
    except OSError as error:
        if guards:
            raise
        logger.warning("state file ignored", error=str(error))
    return None


async def keep_announced(state: StateDirectory, assignment: Assignment) -> None:
    """Write down what is announced, soon after it changed, for ever."""
    written = 0
    while True:
        await asyncio.sleep(ANNOUNCED_SECONDS)
        version = assignment.version
        if version != written:
            encoded = list[bytes]()
            for some in assignment.rows():
                encoded.append(announced_rows(some))
                await asyncio.sleep(0)
            try:
                await state.write_announced(announced_json(encoded))
            except OSError:
                continue  # it only warms a restart; the next turn tries again
            written = version
