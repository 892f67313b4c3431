"""Snapshots taken up again: in place, or read whole and checked in every part."""

from array import array
from collections.abc import Iterable
from typing import Final

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.codec import sealed_table, snapshot
from rlmm_daemon.codec.snapshot import Header, Mapped
from rlmm_daemon.codec.snapshot_table import EpochTable, PartitionTable
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.epoch_index import EpochIndex
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.referenced import Referenced
from rlmm_daemon.core.fold.user_partitions import Image
from rlmm_daemon.core.partitioner import PARTITIONER_ID
from rlmm_daemon.domain.errors import Malformed, UnsupportedProtocol
from rlmm_daemon.domain.ids import UUID_BYTES, MetadataPartition, SegmentId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

FINISHED: Final = int(SegmentState.COPY_SEGMENT_FINISHED)


def in_place(buffer: bytes | Mapped) -> tuple[Header, Fold]:
    """Return the header and a fold whose user partitions sleep in `buffer`.

    Only header, directory and trailer are read; a table is checked when it is first looked at.
    A file of an older format is read whole. Whether the snapshot belongs to this cluster and log
    is the caller's question.

    Raises:
        UnsupportedProtocol: an unknown format or partitioner; leave the file alone.
        ChecksumMismatch: damaged.
        Malformed: cut short, or its parts contradict each other.
    """
    header, _ = snapshot.decode_header(buffer)
    if not sealed_table.SUPPORTED or snapshot.format_of(buffer) != snapshot.FORMAT:
        return load(buffer)
    header, entries = snapshot.decode_directory(buffer)
    fold = _fold_for(header)
    _check_owned(fold, (entry.user_partition for entry in entries))
    fold.lay(Image(buffer, entries, checked=False), header.next_offset, header.leader_epoch)
    if len(fold.partitions) != len(entries):
        raise Malformed("a user partition is there twice")
    return header, fold


def load(buffer: bytes | Mapped) -> tuple[Header, Fold]:
    """Return the header and a fold that goes on where the written one stood, all in memory.

    Whether the snapshot belongs to this cluster and log is the caller's question.

    Raises:
        UnsupportedProtocol: an unknown format or partitioner; leave the file alone.
        ChecksumMismatch: damaged.
        Malformed: cut short, or its parts contradict each other.
    """
    header, tables = snapshot.decode_file(buffer)
    fold = _fold_for(header)
    caches = [unseal(table) for table in tables]
    _check_owned(fold, (cache.partition for cache in caches))
    if len({cache.partition for cache in caches}) != len(caches):
        raise Malformed("a user partition is there twice")
    fold.restore(caches, header.next_offset, header.leader_epoch)
    return header, fold


def _fold_for(header: Header) -> Fold:
    if header.partitioner_id != PARTITIONER_ID:
        raise UnsupportedProtocol(f"the snapshot's partitioner is {header.partitioner_id!r}")
    if not 0 <= header.metadata_partition < header.partition_count:
        raise Malformed(
            f"there is no partition {header.metadata_partition} of {header.partition_count}"
        )
    return Fold(MetadataPartition(header.metadata_partition), header.partition_count)


def _check_owned(fold: Fold, partitions: Iterable[TopicIdPartition]) -> None:
    if not all(map(fold.owns, partitions)):
        raise Malformed("a user partition belongs to another metadata partition")


def unseal(table: PartitionTable) -> PartitionCache:
    """Return the user partition that a table describes.

    Raises:
        Malformed: its columns contradict each other.
    """
    cache = PartitionCache(table.partition)
    ids = [
        SegmentId(bytes(table.ids[at : at + UUID_BYTES]))
        for at in range(0, len(table.ids), UUID_BYTES)
    ]
    heap = b"".join(table.heap)
    for row, segment_id in enumerate(ids):
        tail = heap[table.offs[row] : table.offs[row + 1]]
        tails.check(tail)
        if tails.state_of(tail) != table.states[row]:
            raise Malformed("a state differs from its record's")
        if table.states[row] >= SegmentState.DELETE_SEGMENT_FINISHED:
            raise Malformed("a deleted segment is in the table")
        cache.segments.put(segment_id, tail, is_new=segment_id not in cache.segments)
    if cache.segments.ordered() != ids or sorted(ids) != [ids[row] for row in table.id_order]:
        raise Malformed("segments are out of order, or one is there twice")
    highest = {epoch.epoch: epoch.highest for epoch in table.epochs if epoch.highest is not None}
    for epoch in table.epochs:
        index = _unseal_epoch(epoch, ids)
        if not index.is_empty:
            cache.epochs.put(epoch.epoch, index)
    _check_sets(cache)
    try:
        delete_state = (
            None if table.delete_state is None else PartitionDeleteState(table.delete_state)
        )
    except ValueError as error:
        raise Malformed(f"partition delete state {table.delete_state} is unknown") from error
    cache.restore(
        highest=highest,
        kept={ids[row]: custom for row, custom in table.kept},
        held=_unseal_held(table.held),
        writer=table.writer,
        delete_state=delete_state,
    )
    return cache


def _unseal_held(held: list[tuple[bytes, bytes]]) -> dict[SegmentId, bytes]:
    for segment_id, tail in held:
        tails.check(tail)
        if len(segment_id) != UUID_BYTES or tails.state_of(tail) != FINISHED:
            raise Malformed("a held segment was not finished")
    return {SegmentId(segment_id): tail for segment_id, tail in held}


def _unseal_epoch(table: EpochTable, ids: list[SegmentId]) -> EpochIndex:
    index = EpochIndex()
    cover = index.cover.own
    cover.starts, cover.ends, cover.reach = table.starts, table.ends, table.reach
    cover.ids = [ids[row] for row in table.rows]
    cover.txn = array("q", [table.starts[at] for at in table.txn])
    cover.breaks = array("q", [table.starts[at] for at in table.breaks])
    index.unreferenced = dict.fromkeys(ids[row] for row in table.unreferenced)
    index.third = dict.fromkeys(ids[row] for row in table.third)
    index.ranks = {ids[row]: rank for rank, row in enumerate(table.ranked, start=1)}
    if not table.plain:
        index.referenced = Referenced.of(table.keys, [ids[row] for row in table.key_rows])
    return index


def _check_sets(cache: PartitionCache) -> None:
    """Refuse a table in which a segment is not in exactly one set of each of its epochs."""
    seen = {
        epoch: [*index.referenced_ids(), *index.unreferenced, *index.third]
        for epoch, index in cache.epochs.items()
    }
    members = {epoch: set(ids) for epoch, ids in seen.items()}
    if any(len(ids) != len(members[epoch]) for epoch, ids in seen.items()):
        raise Malformed("a segment is in two sets of one epoch")
    for segment_id in cache.segments:
        for epoch, _, _ in tails.spans(cache.segments[segment_id]):
            if segment_id not in members.get(epoch, ()):
                raise Malformed("a segment is in no set of one of its epochs")
