"""Order of many segment ids, found in short steps.

Kafka draws ids at random (`Uuid.randomUuid`), so their beginnings nearly always tell them apart.
Those are sorted as floats from one array: comparing ids, objects strewn over the memory, takes a
long table twice the time.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import lt
from typing import Final

from rlmm_daemon.domain.ids import UUID_BYTES

#: Ids that are sorted in one go, or put where they will be.
AT_ONCE: Final = 2048
#: What a bucket of a million drawn ids holds, and no more than a step may sort.
SORTED_AT_ONCE: Final = 2 * AT_ONCE
_BUCKETS: Final = 256
_FLOAT_BYTES: Final = 8
#: Before it, any seven bytes make a float that is positive and finite (IEEE 754): such sort as
#: their bytes do.
_POSITIVE: Final = b"\x3f"


def ordered(ids: bytes | bytearray) -> Iterator[list[int]]:
    """Yield the indexes of joined ids, ascending by id, in lists; some of them are empty.

    The caller may pause between two, and changes nothing of the ids then.
    """
    count = len(ids) // UUID_BYTES
    if count <= AT_ONCE:
        yield _sorted(range(count), ids, _beginnings(ids))
        return
    keys, buckets = array("d"), _new_buckets()
    for low in range(0, count, AT_ONCE):
        part = ids[UUID_BYTES * low : UUID_BYTES * (low + AT_ONCE)]
        keys += _beginnings(part)
        for index, first in enumerate(part[::UUID_BYTES], low):
            buckets[first].append(index)
        yield []
    yield from _each_sorted(buckets, ids, keys, 1)


def _new_buckets() -> "list[array[int]]":
    return [array("I") for _ in range(_BUCKETS)]


def _each_sorted(
    buckets: "list[array[int]]", ids: bytes | bytearray, keys: "array[float]", place: int
) -> Iterator[list[int]]:
    """Yield the buckets' indexes; those of ids that begin alike go by the byte at `place`."""
    buckets.reverse()
    while buckets:  # freed one by one: all at once takes as long as several steps
        bucket = buckets.pop()
        if len(bucket) <= SORTED_AT_ONCE or place == UUID_BYTES:
            if bucket:
                yield _sorted(bucket, ids, keys)
            continue
        inner = _new_buckets()
        for low in range(0, len(bucket), AT_ONCE):
            for index in bucket[low : low + AT_ONCE]:
                inner[ids[UUID_BYTES * index + place]].append(index)
            yield []
        yield from _each_sorted(inner, ids, keys, place + 1)


def _sorted(indexes: Iterable[int], ids: bytes | bytearray, keys: "array[float]") -> list[int]:
    found = sorted(indexes, key=keys.__getitem__)
    compared = list(map(keys.__getitem__, found))
    if not all(map(lt, compared, islice(compared, 1, None))):
        found.sort(key=lambda index: ids[UUID_BYTES * index : UUID_BYTES * (index + 1)])
    return found


def _beginnings(ids: bytes | bytearray) -> "array[float]":
    """Return the first seven bytes of each id as a float."""
    encoded = bytearray(_POSITIVE * (len(ids) // UUID_BYTES * _FLOAT_BYTES))
    for place in range(_FLOAT_BYTES - 1):
        encoded[place + 1 :: _FLOAT_BYTES] = ids[place::UUID_BYTES]
    beginnings = array("d", bytes(encoded))
    if sys.byteorder == "little":
        beginnings.byteswap()
    return beginnings
