"""Listing of the storage, in slices that Spark tasks list side by side.

A slice is a prefix, a user partition's as a rule, or a part of one that is large (`prefix_cuts`).
S3 is listed by obstore, whose parser takes 65,000 keys a second where botocore's takes 14,000
(`s3_pages` knows when botocore has to). It has no word for old versions: those of a versioned
bucket are listed apart, by `s3_calls`.
"""

import itertools
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa
from obstore.exceptions import BaseError

from rlmm_daemon.codec.marker import MARKER_KEY
from rlmm_daemon.config import Config, LocalStorage, S3Storage
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read import local_files, prefix_cuts, s3_client, s3_pages
from rlmm_daemon.reconcile.read.s3_calls import S3Calls
from rlmm_daemon.reconcile.schema import OBJECTS, batch

ROWS_PER_BATCH: Final = 10_000
#: Ours and small: marker, presence, lease, manifests.
CONTROL: Final = "_rlmm/"
#: How a directory bucket's name ends: it tells its keys in no order.
_UNORDERED: Final = "--x-s3"
_PLANNERS: Final = 16
_PAGE_KEYS: Final = 1_000


class Slice(msgspec.Struct, frozen=True):
    """Keys that begin with `prefix`, which is empty or ends with a slash."""

    prefix: str
    #: Only what lies directly below the prefix.
    shallow: bool = False
    #: Only keys behind this one; None: from the first.
    after: str | None = None
    #: Up to this key and with it; None: to the last.
    until: str | None = None
    #: The old versions, and not the objects.
    old: bool = False

    def holds(self, key: str) -> bool:
        """Return whether a key is this slice's to yield."""
        if not key.startswith(self.prefix):
            return False
        if self.shallow and "/" in key[len(self.prefix) :]:
            return False
        return (self.after or "") < key and not self.is_beyond(key)

    def is_beyond(self, key: str) -> bool:
        """Return whether a key belongs to a slice behind this one."""
        return self.until is not None and key > self.until


class Listed(msgspec.Struct, frozen=True):
    """One object."""

    key: str
    size: int
    modified_ms: int
    etag: str
    noncurrent: bool = False


def slices(
    config: Config, layouts: Iterable[str], note: Callable[[str], object] = lambda _: None
) -> list[Slice]:
    """Return slices that together hold every key below the layouts' prefixes exactly once.

    `note` is told what can't be looked for.

    Raises:
        Incomplete: the storage did not say what lies there.
    """
    if isinstance(config.storage, S3Storage) and config.storage.bucket.endswith(_UNORDERED):
        raise Incomplete("a directory bucket tells its keys in no order: slices would miss some")
    layouts = [*layouts]
    found: list[Slice] = []
    for root in roots(layouts):
        found += _slices_below(config, root, layouts, note)
    if isinstance(config.storage, LocalStorage):
        return found
    # Side by side: one request each, and there may be a hundred thousand.
    with ThreadPoolExecutor(_PLANNERS) as planners:
        parts = [*chain.from_iterable(planners.map(partial(_cut, config), found))]
    if S3Calls(config).is_versioned(note):
        parts += [msgspec.structs.replace(part, old=True) for part in parts]
    return parts


def _cut(config: Config, part: Slice) -> list[Slice]:
    if part.shallow:
        return [part]

    def page_after(key: str) -> list[str]:
        try:
            page = next(_pages(config, part.prefix, key or None), [])
        except BaseError as error:
            raise _cut_short(part.prefix, error) from error
        return [row["path"] for row in page]

    bounds = [None, *prefix_cuts.cuts(part.prefix, page_after, page_keys=_PAGE_KEYS), None]
    return [
        Slice(part.prefix, after=after, until=until) for after, until in itertools.pairwise(bounds)
    ]


def listed(config: Config, part: Slice, pages_per_second_max: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield a slice's objects.

    Raises:
        Incomplete: the storage did not tell all.
    """
    rows: list[Listed] = []
    for each in objects(config, part, pages_per_second_max):
        rows.append(each)
        if len(rows) >= ROWS_PER_BATCH:
            yield _batch(rows)
            rows = []
    yield _batch(rows)


def objects(config: Config, part: Slice, pages_per_second_max: int = 0) -> Iterator[Listed]:
    """Yield a slice's objects one by one, control objects left out."""
    source: Iterator[Listed]
    if isinstance(config.storage, LocalStorage):
        source = _local(config.storage, part)
    elif part.old:
        source = _old_versions(config, part, pages_per_second_max)
    else:
        source = _s3(config, part, pages_per_second_max)
    for each in source:
        if part.holds(each.key) and not each.key.startswith(CONTROL):
            yield each


def look_up(config: Config, key: str) -> Listed | None:
    """Return one object as it is now, None if it is certainly absent.

    Raises:
        Incomplete: the storage did not say.
    """
    if isinstance(config.storage, LocalStorage):
        status = local_files.look_up(config.storage, key)
        return None if status is None else _file(key, status)
    try:
        client = s3_client.opened(config)
        found = _head(client, key)
        if found is None and _head(client, MARKER_KEY) is None:
            # Some servers answer so to keys that they don't know, and all if the bucket is gone.
            raise Incomplete(
                f"there is no {MARKER_KEY} in the bucket either: it is gone, or does not know the"
                f" keys of this machine any more ({platform.node()})"
            )
    except BaseError as error:
        raise Incomplete(f"looking at {key!r}: {_reason(error)}") from error
    return found


def _head(client: Any, key: str) -> Listed | None:
    """Return an object's row; None where the server answers 404, whatever it means by that."""
    try:
        return _row(client.head(key))
    except FileNotFoundError:
        return None


def _batch(rows: list[Listed]) -> pa.RecordBatch:
    return batch(
        OBJECTS,
        {
            "key": [each.key for each in rows],
            "size": [each.size for each in rows],
            "modified_ms": [each.modified_ms for each in rows],
            "etag": [each.etag for each in rows],
            "noncurrent": [each.noncurrent for each in rows],
        },
    )


def roots(layouts: Iterable[str]) -> list[str]:
    """Return what all keys of the layouts begin with, none of it within another."""
    kept: list[str] = []
    for root in sorted({f"{prefix}/" if prefix else "" for prefix in layouts}):
        if not any(root.startswith(other) for other in kept):
            kept.append(root)
    return kept


def _slices_below(
    config: Config, root: str, layouts: Sequence[str], note: Callable[[str], object]
) -> list[Slice]:
    """Return what lies directly below a root, and a slice for each thing that lies deeper."""
    if isinstance(config.storage, LocalStorage):
        names = local_files.directories(config.storage, root, layouts, note)
        below = [f"{root}{name}/" for name in names]
    else:
        try:
            below = sorted(s3_pages.directly_below(config, root)[1])
        except BaseError as error:
            raise _cut_short(root, error) from error
    deeper = [Slice(prefix) for prefix in below if prefix != CONTROL]
    return [Slice(root, shallow=True), *deeper]


def _local(storage: LocalStorage, part: Slice) -> Iterator[Listed]:
    for key, status in local_files.below(storage, part.prefix, shallow=part.shallow):
        yield _file(key, status)


def _file(key: str, status: os.stat_result) -> Listed:
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}"
    return Listed(key, status.st_size, status.st_mtime_ns // 1_000_000, etag)


def _s3(config: Config, part: Slice, pages_per_second_max: int) -> Iterator[Listed]:
    pause = 1 / pages_per_second_max if pages_per_second_max else 0.0
    try:
        if part.shallow:
            yield from map(_row, s3_pages.directly_below(config, part.prefix)[0])
            return
        for page in _pages(config, part.prefix, part.after):
            yield from map(_row, page)
            # Servers differ in the order of `/` and `-`, never by a page: cuts are digits.
            if page and all(part.is_beyond(row["path"]) for row in page):
                return
            time.sleep(pause)
    except BaseError as error:
        # Beginning anew could yield a key twice: a task that fails is Spark's to repeat.
        raise _cut_short(part.prefix, error) from error


def _cut_short(prefix: str, error: BaseError) -> Incomplete:
    return Incomplete(f"listing {prefix!r} was cut short: {_reason(error)}")


def _reason(error: BaseError) -> str:
    # The rest is the client's own state, for its authors.
    return str(error).partition("\n\nDebug source")[0]


def _old_versions(config: Config, part: Slice, pages_per_second_max: int) -> Iterator[Listed]:
    pause = 1 / pages_per_second_max if pages_per_second_max else 0.0
    pages = S3Calls(config).versions(part.prefix, after=part.after, shallow=part.shallow)
    for page in pages:
        for row in page:
            if not row["IsLatest"]:
                modified_ms = int(row["LastModified"].timestamp() * 1000)
                etag = row.get("ETag", "").strip('"')
                yield Listed(row["Key"], row["Size"], modified_ms, etag, noncurrent=True)
        if page and all(part.is_beyond(row["Key"]) for row in page):
            return
        time.sleep(pause)


def _pages(config: Config, prefix: str, after: str | None) -> Iterator[Sequence[s3_pages.Row]]:
    return s3_pages.pages(config, prefix, after=after, page_keys=_PAGE_KEYS)


def _row(row: Any) -> Listed:
    modified_ms = int(row["last_modified"].timestamp() * 1000)
    return Listed(row["path"], row["size"], modified_ms, (row["e_tag"] or "").strip('"'))
