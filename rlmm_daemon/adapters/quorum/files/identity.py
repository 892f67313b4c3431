"""Identity of a replica's directory: what it was formatted as, and what then has to be there."""

from typing import Final

from rlmm_daemon.adapters.quorum.files.layout import ANEW, Layout, Names, damaged, lost, names
from rlmm_daemon.adapters.quorum.files.segments import make_segment
from rlmm_daemon.codec.kraft import checkpoint, line_checkpoint, quorum_state, small_files
from rlmm_daemon.codec.kraft.small_files import MetaProperties
from rlmm_daemon.core.raft.inputs import SavedState
from rlmm_daemon.core.raft.log_facts import BEGINNING
from rlmm_daemon.core.raft.voters import ReplicaKey, VoterSet
from rlmm_daemon.domain.errors import ConfigError, InvalidArgument, Malformed
from rlmm_daemon.domain.ids import require_topic_name, uuid_text
from rlmm_daemon.ports.disk import Disk

#: Kafka keeps the first ones for directories that are unknown, lost, or not there yet.
_RESERVED_DIRECTORIES: Final = 100


async def format_replica(
    disk: Disk,
    directory: str,
    *,
    cluster_id: str,
    node_id: int,
    voters: VoterSet | None,
    topic: str,
    topic_id: bytes,
    directory_id: bytes,
    timestamp_ms: int = 0,
) -> ReplicaKey:
    """Make a replica's files; without voters it joins a quorum that is there.

    `meta.properties` comes last: a crash before it leaves a directory that is not formatted.

    Raises:
        ConfigError: the directory is formatted, or holds a log.
        InvalidArgument: an id that is none, or voters of whom this node's id has another directory.
        BlockingIOError: another process has it.
    """
    layout = Layout(directory, topic)
    require_topic_name(topic)
    key = ReplicaKey(node_id, directory_id)
    _require_key(key, voters)
    meta = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
    encoded = small_files.encode_meta(meta)
    await disk.make_directory(directory)
    lock = await disk.lock(layout.lock)
    try:
        await _require_unformatted(disk, layout)
        await disk.make_directory(layout.log)
        if voters is not None:
            first = checkpoint.bootstrap(voters, timestamp_ms=timestamp_ms)
            await disk.write_atomically(layout.snapshot(BEGINNING), first)
        await begin(disk, layout, topic_id, kraft_version=1)
        await disk.write_atomically(layout.meta, encoded)
    finally:
        await lock.release()
    return key


async def begin(disk: Disk, layout: Layout, topic_id: bytes, *, kraft_version: int) -> None:
    """Make an empty log, and a state in which nothing was ever voted; then say that they are."""
    await make_segment(disk, layout, 0)
    await disk.write_atomically(layout.epochs, line_checkpoint.encode(()))
    for path in (layout.recovery_point, layout.log_start):
        await disk.write_atomically(path, small_files.encode_offset(layout.topic, 0))
    await save(disk, layout, SavedState(), None if kraft_version else ())
    await disk.write_atomically(layout.partition, small_files.encode_partition(topic_id))


async def save(
    disk: Disk, layout: Layout, state: SavedState, voters: tuple[int, ...] | None
) -> None:
    """Have a state on the disk; with `voters` in the form for kraft.version 0."""
    line = quorum_state.encode(state, voters=voters)
    await disk.write_atomically(layout.quorum_state, small_files.seal(line))


async def read_meta(disk: Disk, layout: Layout) -> MetaProperties:
    """Return what the directory was formatted as.

    Raises:
        ConfigError: it was not.
        LogCorrupt: the file does not hold.
    """
    try:
        data = await disk.read(layout.meta)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{layout.directory} is not formatted for a quorum: no {small_files.META_PROPERTIES}"
        ) from error
    try:
        return small_files.decode_meta(data)
    except Malformed as error:
        raise damaged(layout.meta, error.message) from error


async def read_saved(disk: Disk, layout: Layout) -> SavedState | None:
    """Return the last state that was saved, None where none ever was.

    Raises:
        LogCorrupt: it can't be read; a vote may have been in it.
    """
    try:
        data = await disk.read(layout.quorum_state)
    except FileNotFoundError:
        return None
    try:
        return quorum_state.decode(small_files.unseal(data))
    except Malformed as error:
        raise damaged(layout.quorum_state, error.message) from error


async def require_begun(disk: Disk, layout: Layout, found: Names, topic_id: bytes) -> bool:
    """Return whether log and quorum-state are there, False where Kafka's tool has just formatted.

    Where the topic's id is written down they were there: what is gone may have been acknowledged,
    or voted for.

    Raises:
        HistoryLost: one of them is gone.
        LogCorrupt: it is another topic's directory.
    """
    has_log = bool(found.segments) or found.installing is not None
    try:
        data = await disk.read(layout.partition)
    except FileNotFoundError:
        if BEGINNING not in found.snapshots:
            raise lost(layout.log, "it was formatted, and nothing of its log is left") from None
        voted = await read_saved(disk, layout) not in (None, SavedState())
        if voted or await _has_records(disk, layout, found):
            raise lost(layout.partition, "it is gone, and the log is not new") from None
        return False
    _require_topic(layout, data, topic_id)
    if not has_log:
        raise lost(layout.log, "the log is gone, of which this directory may have acknowledged")
    if not await disk.exists(layout.quorum_state):
        raise lost(layout.quorum_state, "it is gone, and this replica may have voted")
    return True


def _require_topic(layout: Layout, data: bytes, topic_id: bytes) -> None:
    try:
        known = small_files.decode_partition(data)
    except Malformed as error:
        raise damaged(layout.partition, error.message) from error
    if known != topic_id:
        reason = f"the topic's id is {uuid_text(known)}, not {uuid_text(topic_id)}"
        raise damaged(layout.partition, reason)


async def _require_unformatted(disk: Disk, layout: Layout) -> None:
    if await disk.exists(layout.meta):
        raise ConfigError(f"{layout.meta} is there: the directory is formatted already")
    found = await names(disk, layout)
    newer = [point for point in found.snapshots if point != BEGINNING]
    if newer or found.installing or await _has_records(disk, layout, found):
        raise ConfigError(f"{layout.log} holds a log, and no {layout.meta} says whose; {ANEW}")


async def _has_records(disk: Disk, layout: Layout, found: Names) -> bool:
    if len(found.segments) > 1 or found.segments not in ([], [0]):
        return True
    return any([await disk.read(layout.segment(base)) for base in found.segments])


def _require_key(key: ReplicaKey, voters: VoterSet | None) -> None:
    if len(key.directory) != 16 or int.from_bytes(key.directory, "big") < _RESERVED_DIRECTORIES:  # noqa: PLR2004 - a uuid
        raise InvalidArgument(f"{key.directory.hex()} is no id for a directory")
    mine = None if voters is None else voters.find(key.id)
    if mine is not None and mine.key != key:
        raise InvalidArgument(f"voter {mine.key} is this node, with another directory than {key}")
