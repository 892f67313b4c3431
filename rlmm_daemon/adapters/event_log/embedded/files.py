"""Names of the log's files, and the few file moves whose order is what crash safety rests on."""

import re
from contextlib import suppress
from typing import Final

from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports import disk_writes
from rlmm_daemon.ports.disk import Disk, DiskFile

LOCK_NAME: Final = "lock"
IDENTITY_NAME: Final = "identity.json"
STATE_NAME: Final = "state.json"
#: Kafka's own name, and Kafka's own form: see `epochs`.
EPOCHS_NAME: Final = "leader-epoch-checkpoint"
CORRUPT_SUFFIX: Final = ".corrupt"

_SEGMENT: Final = re.compile(r"(\d{20})\.log")
#: What atomic writes name beside files of the log, and what was set aside of them.
_HALF_WRITTEN: Final = re.compile(
    r"(\d{20}\.log|identity\.json|state\.json|compaction\.json|leader-epoch-checkpoint)"
    r"(\.corrupt(\.\d+)?)?((\.\d+){2}\.tmp|\.tmp\d+)"
)
_ZEROS: Final = bytes(256 * 1024)

write_all = disk_writes.write_all
write_all_synced = disk_writes.write_all_synced
cut = disk_writes.cut


def partition_directory(directory: str, partition: MetadataPartition) -> str:
    """Return where one partition's files are."""
    return f"{directory}/{partition}"


def segment_path(directory: str, base_offset: int) -> str:
    """Return the path of the segment file that begins with `base_offset`, named as Kafka's are."""
    return f"{directory}/{base_offset:020}.log"


async def partitions(disk: Disk, directory: str) -> list[MetadataPartition]:
    """Return the partitions that have a directory, ascending."""
    names = await disk.list(directory)
    return sorted(MetadataPartition(int(name)) for name in names if name.isdecimal())


async def sweep(disk: Disk, directory: str) -> None:
    """Remove what atomic writes left behind at a crash; what can't be only takes room.

    A log may be made in a directory in which others keep files, by mistake for one.
    """
    for name in sorted(await disk.list(directory)):
        if _HALF_WRITTEN.fullmatch(name):
            with suppress(OSError):
                await disk.remove(f"{directory}/{name}")


async def segments(disk: Disk, directory: str) -> list[int]:
    """Return the base offsets of a partition's segment files, ascending; none if it is new."""
    try:
        names = await disk.list(directory)
    except FileNotFoundError:
        return []
    matches = (_SEGMENT.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


async def was_repaired(disk: Disk, directory: str) -> bool:
    """Return whether a repair set a corrupt file of this partition aside, ever."""
    return any(CORRUPT_SUFFIX in name for name in await disk.list(directory))


async def read_segment(disk: Disk, path: str) -> bytes:
    """Return a whole segment file, which is bounded by the size at which files are rolled."""
    return await disk.read(path)


async def write_zeros(file: DiskFile, begin: int, end: int) -> None:
    """Fill with written zeros: blocks that were only reserved would still cost a sync later."""
    while begin < end:
        chunk = _ZEROS[: end - begin]
        await write_all(file, begin, chunk)
        begin += len(chunk)
