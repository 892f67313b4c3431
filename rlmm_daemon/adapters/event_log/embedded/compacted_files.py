"""Files of a partition that a compaction has written anew, and how they take the others' place.

    <20 digits>.log.cleaned   written and synced, not in its place yet
    compaction.json           the last compaction: written when its files are complete, which
                              decides it, and again when all of them are in their place

Up to the first of the two nothing has happened, and what was written is removed by the next open.
From then on the new files are the log, and whatever is left to be done is done by the next open.
"""

import errno
from contextlib import suppress
from typing import Final

import msgspec
import structlog

from rlmm_daemon.adapters.event_log.embedded import files
from rlmm_daemon.codec.sealed_json import sealed, unsealed
from rlmm_daemon.domain.errors import LogCorrupt
from rlmm_daemon.ports.disk import Disk

RECORD_NAME: Final = "compaction.json"
CLEANED_SUFFIX: Final = ".cleaned"

_log = structlog.get_logger(__name__)


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """The last compaction of a partition."""

    #: How often the partition was compacted.
    count: int = 0
    #: The offset behind what was written anew: where a file began.
    until: int = 0
    #: First offsets of the files that were written, ascending, the log's start first.
    bases: list[int] = []
    #: Their bytes.
    sizes: list[int] = []
    #: First offsets of those whose place they take.
    replaced: list[int] = []
    #: Not all of that is done yet.
    pending: bool = False


NEVER: Final = Compaction()


async def last(disk: Disk, directory: str) -> Compaction:
    """Return the last compaction that was decided; as if there was none if its record is damaged.

    What it replaced may still stand there then, and whoever reads the log in order passes it by.
    """
    try:
        content = await disk.read(f"{directory}/{RECORD_NAME}")
        return msgspec.json.decode(unsealed(content)[0], type=Compaction)
    except FileNotFoundError:
        return NEVER
    except (msgspec.DecodeError, ValueError) as error:
        _log.warning("log_compaction_record_damaged", directory=directory, why=str(error))
        return NEVER


async def was_compacted(disk: Disk, home: str) -> bool:
    """Return whether any partition of a log was ever compacted."""
    for partition in await files.partitions(disk, home):
        if await disk.exists(f"{files.partition_directory(home, partition)}/{RECORD_NAME}"):
            return True
    return False


async def decide(disk: Disk, directory: str, compaction: Compaction) -> None:
    """Make a compaction count, durably; its files stand there, complete and synced."""
    await disk.fsync_directory(directory)  # their names, too
    await _write(disk, directory, compaction)


async def put_in_place(disk: Disk, directory: str, compaction: Compaction) -> None:
    """Give the files their names; may be repeated from any step, until `clear` has ended.

    Raises:
        LogCorrupt: one is gone, so nothing may be removed.
        OSError: not now.
    """
    for base, size in zip(compaction.bases, compaction.sizes, strict=True):
        path = files.segment_path(directory, base)
        with suppress(FileNotFoundError):  # it has it already
            await disk.rename(path + CLEANED_SUFFIX, path)
        if (found := await _size(disk, path)) != size:
            raise LogCorrupt(
                f"{path} has {found} bytes, where a compaction had put {size}; "
                "`rlmm log repair` ends it",
                file=path,
                position=0,
                reason="a file that a compaction wrote is gone",
            )


async def clear(disk: Disk, directory: str, compaction: Compaction) -> Compaction:
    """Remove the files that were replaced, durably; may be repeated from any step.

    One sync covers these names and the new ones: until then the record says what is left to do. A
    disk without room for another record keeps nothing from being read: it says so a while longer.
    """
    for base in compaction.replaced:
        if base not in compaction.bases:
            with suppress(FileNotFoundError):
                await disk.remove(files.segment_path(directory, base))
    await disk.fsync_directory(directory)
    done = msgspec.structs.replace(compaction, replaced=[], pending=False)
    try:
        await _write(disk, directory, done)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return compaction
    return done


async def finish(disk: Disk, directory: str) -> Compaction:
    """Return the last compaction, after doing what a crash left of it to be done.

    Raises:
        LogCorrupt: as `put_in_place`.
        OSError: not now.
    """
    found = await last(disk, directory)
    if found.pending:
        await put_in_place(disk, directory, found)
        done = await clear(disk, directory, found)
        _log.info("log_compaction_finished", directory=directory, until=done.until)
        return done
    await discard(disk, directory)
    return found


async def give_up(disk: Disk, directory: str) -> None:
    """Go on with the files that there are: nothing was removed before a compaction was done.

    In the order of offsets what stands there is whole: where a new file ends an old one goes on.
    """
    found = await last(disk, directory)
    await _write(disk, directory, msgspec.structs.replace(found, replaced=[], pending=False))


async def discard(disk: Disk, directory: str) -> None:
    """Remove files of a compaction that was never decided."""
    for name in sorted(await disk.list(directory)):
        if name.endswith(CLEANED_SUFFIX):
            with suppress(FileNotFoundError):
                await disk.remove(f"{directory}/{name}")


async def segment_files(disk: Disk, directory: str) -> list[tuple[int, str]]:
    """Return first offset and path of the files that are the log, ascending; changes nothing.

    That is what a next open makes of them, also in the middle of a compaction.
    """
    bases = await files.segments(disk, directory)
    found = {base: files.segment_path(directory, base) for base in bases}
    if not found:
        return []
    compaction = await last(disk, directory)
    if compaction.pending:
        for base in compaction.replaced:
            found.pop(base, None)
        for base in compaction.bases:
            path = files.segment_path(directory, base)
            cleaned = path + CLEANED_SUFFIX
            found[base] = cleaned if await disk.exists(cleaned) else path
    return sorted(found.items())


async def read(disk: Disk, path: str) -> bytes:
    """Return a file of these, also one that is given its name just now."""
    try:
        return await files.read_segment(disk, path)
    except FileNotFoundError:
        if not path.endswith(CLEANED_SUFFIX):
            raise
        return await files.read_segment(disk, path.removesuffix(CLEANED_SUFFIX))


async def _size(disk: Disk, path: str) -> int | None:
    try:
        file = await disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return await file.size()
    finally:
        await file.close()


async def _write(disk: Disk, directory: str, compaction: Compaction) -> None:
    content = sealed(msgspec.json.encode(compaction), indented=False)
    await disk.write_atomically(f"{directory}/{RECORD_NAME}", content)
