"""Runs of whole copies: COPY_SEGMENT_STARTED, each with its COPY_SEGMENT_FINISHED, many at once.

A log is little else, and a user partition's copies look all alike: same length, same broker, same
epoch, each beginning where the last one ended. So they are laid side by side and read column by
column, which costs a fraction of applying them one by one. Everything is judged before anything is
changed: a run is applied whole, as `PartitionCache.start` and `update` would have done it, or not
at all, and then somebody applies it row by row. Random histories hold both ways equal in the tests.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import le, sub
from typing import TYPE_CHECKING, Final

import msgspec

from rlmm_daemon.codec import record_suffix as tails
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.epoch_index import EpochIndex
from rlmm_daemon.domain.ids import UUID_BYTES, SegmentId
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

if TYPE_CHECKING:
    from rlmm_daemon.core.fold.user_partitions import Sleeping

#: Caches by the prefix of their records.
Caches = Mapping[bytes, "PartitionCache | Sleeping"]
#: Fewer copies of each user partition are not worth the columns, which take 10 us to begin.
COPIES_MIN: Final = 6

_FINISHED: Final = int(SegmentState.COPY_SEGMENT_FINISHED)
_GONE: Final = PartitionDeleteState.DELETE_PARTITION_FINISHED
_ADD: Final = b"\x01\x00\x00"
_UPDATE: Final = b"\x01\x01\x00"
_HEADER_BYTES: Final = 3
#: Of a TopicIdPartitionEntry behind its name.
_BEHIND_NAME_BYTES: Final = UUID_BYTES + 5
_SHAPES_MAX: Final = 256

#: A tail of one epoch without custom metadata, by columns: what is alike in a run (tags, broker,
#: epoch count and epoch, tags, custom metadata and state), ...
_TAIL_ALIKE: Final = "B16xi16xBi8xB4xBB"
#: ... start and end offset, the epoch's start, size, ...
_TAIL_NUMBERS: Final = "xqq4x16x5xqxi2x"
#: ... and the bytes before and behind the time of the event that a finish replaces.
_TAIL_PIECES: Final = f"{tails.EVENT_TIMESTAMP_AT}s8x18s2x"
_TAIL_BYTES: Final = struct.calcsize(f">{_TAIL_ALIKE}")
#: An update behind its segment id, alike: tags, broker, length of the custom metadata.
_UPDATE_ALIKE: Final = "Bi8xB"
_UPDATE_BYTES: Final = struct.calcsize(f">{_UPDATE_ALIKE}")
_ENDS: Final = {b"\x00": True, tails.TXN_INDEX_EMPTY: False}
_VARINT_TOP: Final = 0x80
_ONE_EPOCH: Final = 2


class _Shape(msgspec.Struct, frozen=True):
    """How the two records of one copy lie behind each other, for given lengths."""

    custom_bytes: int
    alike: struct.Struct
    numbers: struct.Struct
    pieces: struct.Struct


class _Copies(msgspec.Struct, frozen=True):
    """Copies of one user partition that were found in order."""

    cache: PartitionCache
    index: EpochIndex
    broker: int
    epoch: int
    has_txn_index: bool
    has_custom: bool
    ids: tuple[SegmentId, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    sizes: tuple[int, ...]
    tails: list[bytes]


def apply(
    caches: Caches, rows: Sequence[tuple[int, bytes | None]], begin: int, end: int
) -> tuple[int, int]:
    """Apply the copies that rows[begin:end] begins with; return where they end, and the look did.

    They end before the first row that is none of theirs, and before the first copy of a user
    partition that is unknown or about whose copies anything is out of the common.
    """
    by_prefix, first_at, at = _look(caches, rows, begin, end)
    if at - begin < 2 * COPIES_MIN * len(by_prefix):
        return begin, at
    judged: list[_Copies] = []
    cut = at
    for prefix, pairs in by_prefix.items():
        cache = caches[prefix]
        assert type(cache) is PartitionCache, "as it was a moment ago"
        copies = _judge(cache, pairs)
        if copies is None:
            cut = min(cut, first_at[prefix])
        else:
            judged.append(copies)
    if cut < at:
        return apply(caches, rows, begin, cut)[0], at  # what is left was all found in order
    for copies in judged:
        _put(copies)
    return at, at


def _look(
    caches: Caches, rows: Sequence[tuple[int, bytes | None]], begin: int, end: int
) -> tuple[dict[bytes, list[bytes]], dict[bytes, int], int]:
    """Return both records of each copy by prefix, where each prefix was first, and where they end.

    At the very end, once so many user partitions take turns that there can't be enough of each.
    """
    by_prefix: dict[bytes, list[bytes]] = {}
    first_at: dict[bytes, int] = {}
    at, last = begin, end - 1
    while at < last:
        value, update = rows[at][1], rows[at + 1][1]
        if not value or not update or value[:_HEADER_BYTES] != _ADD or len(value) <= _HEADER_BYTES:
            break
        prefix = value[_HEADER_BYTES : value[_HEADER_BYTES] + _HEADER_BYTES + _BEHIND_NAME_BYTES]
        pairs = by_prefix.get(prefix)
        if pairs is not None:
            pairs.append(value)
            pairs.append(update)
        elif type(caches.get(prefix)) is PartitionCache:
            by_prefix[prefix] = [value, update]
            first_at[prefix] = at
            if 2 * COPIES_MIN * len(by_prefix) > end - begin:
                return by_prefix, first_at, end
        else:
            break
        at += 2
    return by_prefix, first_at, at


def _judge(cache: PartitionCache, pairs: Sequence[bytes]) -> _Copies | None:
    """Read copies of one user partition; None if anything about them is out of the common."""
    value_bytes, update_bytes = len(pairs[0]), len(pairs[1])
    if (
        set(map(len, pairs[::2])) != {value_bytes}
        or set(map(len, pairs[1::2])) != {update_bytes}
        or cache.segments.sealed is not None
        or cache.held
        or cache.epochs.due
        or cache.strays
        or cache.delete_state is _GONE
    ):
        return None
    shape = _shape(len(cache.prefix), value_bytes, update_bytes)
    if shape is None:
        return None
    run = b"".join(pairs)
    alike = list(shape.alike.iter_unpack(run))
    if alike.count(alike[0]) != len(alike):
        return None
    (
        tags, broker, count, epoch, epoch_tags, no_custom, state, behind,
        update_head, update_tags, update_broker, custom, new_state, new_tags,
    ) = alike[0]  # fmt: skip
    index = cache.epochs.indexes.get(epoch)
    if (
        update_head != _UPDATE + cache.prefix
        or tags
        or epoch_tags
        or no_custom
        or state
        or update_tags
        or new_tags
        or new_state != _FINISHED
        or count != _ONE_EPOCH
        or behind not in _ENDS
        or update_broker != broker
        or custom >= _VARINT_TOP
        or max(custom - 1, 0) != shape.custom_bytes
        or index is None
        or index.referenced is not None
    ):
        return None
    ids, starts, ends, firsts, sizes, update_ids = zip(*shape.numbers.iter_unpack(run), strict=True)
    own_ends, top = index.cover.own.ends, cache.epochs.highests.get(epoch)
    last = own_ends[-1] if own_ends else None
    if (
        ids != update_ids
        or starts != firsts
        or starts[0] < 0
        or (last is not None and last + 1 != starts[0])
        or (top is not None and top >= ends[0])
        or not all(map(le, starts, ends))
        or any(map(sub, starts[1:], [end + 1 for end in ends[:-1]]))
        or len(set(ids)) != len(ids)
        or not cache.segments.changes.keys().isdisjoint(ids)
        or not all(each.tails.keys().isdisjoint(ids) for each in cache.segments.older)
        or not (index.unreferenced.keys().isdisjoint(ids))
    ):
        return None
    return _Copies(
        cache=cache,
        index=index,
        broker=broker,
        epoch=epoch,
        has_txn_index=_ENDS[behind],
        has_custom=custom > 0,
        ids=ids,
        starts=starts,
        ends=ends,
        sizes=sizes,
        tails=[
            before + written + rest + last_one + behind
            for before, rest, written, last_one in shape.pieces.iter_unpack(run)
        ],
    )


def _put(copies: _Copies) -> None:
    cache, own, count = copies.cache, copies.index.cover.own, len(copies.ids)
    cache.segments.changes.update(zip(copies.ids, copies.tails, strict=True))
    cache.segments.count += count
    cache.segments.grown()
    if copies.has_custom:
        for segment_id in copies.ids:
            cache.kept.forget(segment_id)
    own.starts.extend(copies.starts)
    own.ends.extend(copies.ends)
    own.ids.extend(copies.ids)
    if copies.has_txn_index:
        own.txn.extend(copies.starts)
    own.reach = max(own.reach, *map(sub, copies.ends, copies.starts))
    cache.epochs.highests[copies.epoch] = copies.ends[-1]
    cache.writer = copies.broker
    cache.segments_by_state[_FINISHED] += count
    cache.bytes_by_state[_FINISHED] += sum(copies.sizes)
    cache.changes += 2 * count


@lru_cache(_SHAPES_MAX)
def _shape(prefix_bytes: int, value_bytes: int, update_bytes: int) -> _Shape | None:
    """Return how a copy's two records of those lengths are read; None if they can't be common."""
    head = _HEADER_BYTES + prefix_bytes
    behind = value_bytes - head - UUID_BYTES - _TAIL_BYTES
    custom = update_bytes - head - UUID_BYTES - _UPDATE_BYTES - 2
    if behind not in map(len, _ENDS) or custom < 0:
        return None
    own_id = f"{UUID_BYTES}s"
    skipped = f"{UUID_BYTES}x"
    return _Shape(
        custom_bytes=custom,
        alike=struct.Struct(
            f">{head}x{skipped}{_TAIL_ALIKE}{behind}s{head}s{skipped}{_UPDATE_ALIKE}{custom}xBB"
        ),
        numbers=struct.Struct(
            f">{head}x{own_id}{_TAIL_NUMBERS}{behind}x{head}x{own_id}{_UPDATE_BYTES + custom + 2}x"
        ),
        pieces=struct.Struct(
            f">{head}x{skipped}{_TAIL_PIECES}{behind}x{head}x{skipped}5x8s{custom + 2}sx"
        ),
    )
