"""From a fold to a snapshot's tables and back: what is loaded behaves as what was written.

Everything that decides a later answer is stored, orders included; counters of passed-over and
rejected records are not, they count since the process began.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from rlmm_daemon.codec import snapshot
from rlmm_daemon.codec import tail as tails
from rlmm_daemon.codec.snapshot import EpochTable, Header, PartitionTable
from rlmm_daemon.core.cache import PartitionCache
from rlmm_daemon.core.epoch_index import EpochIndex
from rlmm_daemon.core.fold import Fold
from rlmm_daemon.core.partitioner import PARTITIONER_ID
from rlmm_daemon.domain.errors import Malformed, UnsupportedProtocol
from rlmm_daemon.domain.ids import UUID_BYTES, MetadataPartition, SegmentId, TopicId
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

FINISHED: Final = int(SegmentState.COPY_SEGMENT_FINISHED)


def header_of(
    fold: Fold, *, cluster_id: str | None, topic_id: TopicId, created_at_ms: int
) -> Header:
    """Return the header for a snapshot of `fold` as it is now."""
    return Header(
        cluster_id=cluster_id,
        topic_id=topic_id,
        metadata_partition=fold.partition,
        partition_count=fold.partition_count,
        partitioner_id=PARTITIONER_ID,
        next_offset=fold.position,
        leader_epoch=fold.leader_epoch,
        created_at_ms=created_at_ms,
    )


def write_chunks(fold: Fold, header: Header) -> Iterator[bytes]:
    """Yield the snapshot file in pieces of at most 256 KiB, one user partition's table at a time.

    The caller may answer reads between two pieces, but must not let the fold advance from the first
    piece to the last: the header names one offset for all tables. That is asserted.
    """
    for piece in snapshot.encode_file(header, (seal(c) for c in fold.partitions.values())):
        assert fold.position == header.next_offset, "the fold moved under its snapshot"
        yield piece


def load(buffer: bytes) -> tuple[Header, Fold]:
    """Return the header and a fold that goes on where the written one stood.

    Whether the snapshot belongs to this cluster and log is the caller's question.

    Raises:
        UnsupportedProtocol: an unknown format or partitioner; leave the file alone.
        ChecksumMismatch: damaged.
        Malformed: cut short, or its parts contradict each other.
    """
    header, tables = snapshot.decode_file(buffer)
    if header.partitioner_id != PARTITIONER_ID:
        raise UnsupportedProtocol(f"the snapshot's partitioner is {header.partitioner_id!r}")
    fold = Fold(MetadataPartition(header.metadata_partition), header.partition_count)
    caches = [unseal(table) for table in tables]
    if any(not fold.owns(cache.partition) for cache in caches):
        raise Malformed("a user partition belongs to another metadata partition")
    if len({cache.partition for cache in caches}) != len(caches):
        raise Malformed("a user partition is there twice")
    fold.restore(caches, header.next_offset, header.leader_epoch)
    return header, fold


def seal(cache: PartitionCache) -> PartitionTable:
    """Return one user partition's columns. O(segments), in one go."""
    stored = cache.segments
    ids = stored.ordered()
    row_of = {segment_id: row for row, segment_id in enumerate(ids)}
    heap = [stored[segment_id] for segment_id in ids]
    offs = array("I", [0])
    total = 0
    for tail in heap:
        total += len(tail)
        offs.append(total)
    kept = cache.kept_custom_metadata
    numbers = sorted(cache.epochs.keys() | cache.highest_offsets.keys())
    return PartitionTable(
        partition=cache.partition,
        delete_state=cache.delete_state,
        writer=cache.writer,
        ids=b"".join(ids),
        offs=offs,
        states=bytes(map(tails.state_of, heap)),
        id_order=array("I", sorted(range(len(ids)), key=ids.__getitem__)),
        heap=b"".join(heap),
        kept=sorted((row_of[segment_id], custom) for segment_id, custom in kept.items()),
        held=sorted(cache.held.items()),
        epochs=[_seal_epoch(cache, epoch, row_of) for epoch in numbers],
    )


def _seal_epoch(cache: PartitionCache, epoch: int, row_of: dict[SegmentId, int]) -> EpochTable:
    highest = cache.highest_offsets.get(epoch)
    index = cache.epochs.get(epoch)
    if index is None:
        return EpochTable(epoch=epoch, highest=highest)

    def rows(ids: Iterable[SegmentId]) -> "array[int]":
        return array("I", [row_of[segment_id] for segment_id in ids])

    cover = index.cover
    table = EpochTable(
        epoch=epoch,
        highest=highest,
        plain=index.is_plain,
        reach=cover.reach,
        starts=cover.starts,
        ends=cover.ends,
        rows=rows(cover.ids),
        unreferenced=rows(index.unreferenced),
        third=rows(index.third),
        ranked=rows(index.ranks),
        txn=array("I", [bisect_left(cover.starts, start) for start in cover.txn]),
        breaks=array("I", [bisect_left(cover.starts, start) for start in cover.breaks]),
    )
    if not index.is_plain:
        table.keys, table.key_rows = index.referenced_keys(), rows(index.referenced_ids())
    return table


def unseal(table: PartitionTable) -> PartitionCache:
    """Return the user partition that a table describes.

    Raises:
        Malformed: its columns contradict each other.
    """
    cache = PartitionCache(table.partition)
    ids = [
        SegmentId(table.ids[at : at + UUID_BYTES]) for at in range(0, len(table.ids), UUID_BYTES)
    ]
    for row, segment_id in enumerate(ids):
        tail = table.heap[table.offs[row] : table.offs[row + 1]]
        tails.check(tail)
        if tails.state_of(tail) != table.states[row]:
            raise Malformed("a state differs from its record's")
        if table.states[row] >= SegmentState.DELETE_SEGMENT_FINISHED:
            raise Malformed("a deleted segment is in the table")
        cache.segments.put(segment_id, tail)
    if cache.segments.ordered() != ids or sorted(ids) != [ids[row] for row in table.id_order]:
        raise Malformed("segments are out of order, or one is there twice")
    highest = {epoch.epoch: epoch.highest for epoch in table.epochs if epoch.highest is not None}
    for epoch in table.epochs:
        index = _unseal_epoch(epoch, ids)
        if not index.is_empty:
            cache.epochs[epoch.epoch] = index
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
    cover = index.cover
    cover.starts, cover.ends, cover.reach = table.starts, table.ends, table.reach
    cover.ids = [ids[row] for row in table.rows]
    cover.txn = array("q", [table.starts[at] for at in table.txn])
    cover.breaks = array("q", [table.starts[at] for at in table.breaks])
    index.unreferenced = dict.fromkeys(ids[row] for row in table.unreferenced)
    index.third = dict.fromkeys(ids[row] for row in table.third)
    index.ranks = {ids[row]: rank for rank, row in enumerate(table.ranked, start=1)}
    if not table.plain:
        index.restore_referenced(table.keys, [ids[row] for row in table.key_rows])
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
