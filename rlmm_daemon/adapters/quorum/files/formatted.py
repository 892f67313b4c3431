"""Marks of a formatted directory: its log's id, and why its replica must not run any more."""

from contextlib import suppress
from typing import Final

from rlmm_daemon.adapters.quorum.files.layout import Layout, lost
from rlmm_daemon.codec.kraft import small_files
from rlmm_daemon.domain.errors import ConfigError, LogCorrupt, Malformed
from rlmm_daemon.ports.disk import Disk

#: The one log of a quorum.
TOPIC: Final = "__rlmm_quorum"
#: Of a directory whose quorum went on without it.
ABANDONED: Final = "voters-were-forced"
#: Of a directory that has committed records which its quorum lost.
WITHHELD: Final = "committed-was-to-be-cut"


async def require_not_abandoned(disk: Disk, directory: str) -> None:
    """Refuse a replica of which the voters were forced while it was away.

    Raises:
        ConfigError: they were; nobody should start it again.
    """
    noted = f"{directory}/{ABANDONED}"
    if await disk.exists(noted):
        raise ConfigError(
            f"{noted}: the voters were forced while this replica was away. Keep the directory as "
            "long as anything is missed; then format another one with --join, and add it"
        )


async def note_abandoned(disk: Disk, directory: str, epoch: int) -> None:
    """Remember it: at the next start, whoever could tell may be away."""
    said = f"the voters were forced, from epoch {epoch} on\n"
    await disk.write_atomically(f"{directory}/{ABANDONED}", said.encode())


async def note_withheld(disk: Disk, directory: str, why: str) -> None:
    """Remember why it must not go on: a restart forgets what was committed, and would cut it."""
    await disk.write_atomically(f"{directory}/{WITHHELD}", f"{why}\n".encode())


async def forget_withheld(disk: Disk, directory: str) -> None:
    """Let a replica run again: its log is the one that counts by now."""
    with suppress(FileNotFoundError):
        await disk.remove(f"{directory}/{WITHHELD}")


async def require_may_run(disk: Disk, directory: str) -> None:
    """Refuse a replica that must not run, whatever supervisor starts it again.

    Raises:
        ConfigError: its voters were forced while it was away; or it has committed records that its
            quorum lost, and would be made to cut them.
    """
    await require_not_abandoned(disk, directory)
    noted = f"{directory}/{WITHHELD}"
    try:
        why = (await disk.read(noted)).decode(errors="replace").strip()
    except FileNotFoundError:
        return
    raise ConfigError(
        f"{noted}: {why}. Voters lost what this replica has, as of a disk that was put back as it "
        "was earlier. To keep it, stop all replicas, and begin anew from this one: rlmm quorum "
        f"force-voters {directory} --listen HOST:PORT. To go on without it, keep a copy of the "
        "directory, and remove that file"
    )


async def topic_id_of(disk: Disk, directory: str) -> bytes:
    """Return the id of the log that a directory was formatted for.

    Raises:
        ConfigError: it was not formatted.
        HistoryLost, LogCorrupt: the file that says so is gone, or does not hold.
    """
    layout = Layout(directory, TOPIC)
    if not await disk.exists(layout.meta):
        raise ConfigError(
            f"{directory} is not formatted for a quorum: no {small_files.META_PROPERTIES}; "
            "see rlmm quorum format"
        )
    try:
        return small_files.decode_partition(await disk.read(layout.partition))
    except FileNotFoundError as error:
        raise lost(layout.partition, "it is gone: a log was here, or was to be") from error
    except Malformed as error:
        reason = error.message
        raise LogCorrupt(f"{layout.partition}: {reason}", file=layout.partition) from error
