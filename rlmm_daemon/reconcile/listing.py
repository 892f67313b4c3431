"""What lies in the storage, in slices that Spark tasks list side by side.

A slice is a prefix; one that is huge is cut into longer ones by the digits of the start offsets, so
that no slice relies on the order in which a storage lists. S3 is listed by obstore, whose parser
takes 65,000 keys a second where botocore's takes 14,000.
"""

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import botocore.session
import msgspec
import pyarrow as pa
from obstore.exceptions import BaseError
from obstore.store import S3Store

from rlmm_daemon import wiring
from rlmm_daemon.config import Config, LocalStorage, S3Storage
from rlmm_daemon.domain.errors import StorageNotConfigured, StorageUnavailable
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.schema import OBJECTS, batch

ROWS_PER_BATCH: Final = 10_000
#: Ours and small: marker, presence, lease, manifests.
CONTROL: Final = "_rlmm/"
#: Offsets in a segment's key have 20 digits.
_OFFSET_MAX: Final = 10**19
_DIGITS: Final = 20
_TEN: Final = 10
_ATTEMPTS: Final = 5
_PAGE_KEYS: Final = 1_000
#: Then the chain is asked again; roles' keys live longer.
_CREDENTIALS_LAST: Final = timedelta(minutes=10)


class Slice(msgspec.Struct, frozen=True):
    """Keys that begin with `prefix`, are > `after` and < `before`; empty strings bound nothing."""

    prefix: str
    after: str = ""
    before: str = ""
    #: Only what lies directly below the prefix.
    shallow: bool = False

    def holds(self, key: str) -> bool:
        """Return whether a key is this slice's to yield."""
        if not key.startswith(self.prefix):
            return False
        if self.shallow and "/" in key[len(self.prefix) :]:
            return False
        return (not self.after or key > self.after) and (not self.before or key < self.before)


@dataclass(frozen=True, slots=True)
class Listed:
    """One object."""

    key: str
    size: int
    modified_ms: int
    etag: str


def slices(config: Config, layouts: Iterable[str], wanted: int) -> list[Slice]:
    """Return slices that together hold every key below the layouts' prefixes exactly once."""
    roots = _outermost(f"{prefix}/" if prefix else "" for prefix in layouts)
    found: list[Slice] = []
    for root in roots:
        found += _slices_below(config, root)
    large = [each for each in found if not each.shallow]
    if 0 < len(large) < wanted:
        pieces = -(-wanted // len(large))
        found = [piece for each in found for piece in _cut(config, each, pieces)]
    return found


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
    each: Listed
    source = _local(config.storage, part) if isinstance(config.storage, LocalStorage) else None
    for each in source if source is not None else _s3(config, part, pages_per_second_max):
        if part.holds(each.key) and not each.key.startswith(CONTROL):
            yield each


def look_up(config: Config, key: str) -> Listed | None:
    """Return one object as a listing tells it now, None if it is absent."""
    return next((each for each in objects(config, Slice(key)) if each.key == key), None)


def _batch(rows: list[Listed]) -> pa.RecordBatch:
    return batch(
        OBJECTS,
        {
            "key": [each.key for each in rows],
            "size": [each.size for each in rows],
            "modified_ms": [each.modified_ms for each in rows],
            "etag": [each.etag for each in rows],
            "noncurrent": [False] * len(rows),
        },
    )


def _outermost(roots: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for root in sorted(set(roots)):
        if not any(root.startswith(other) for other in kept):
            kept.append(root)
    return kept


def _slices_below(config: Config, root: str) -> list[Slice]:
    """Return what lies directly below a root, and a slice for each thing that lies deeper."""
    if isinstance(config.storage, LocalStorage):
        top = Path(config.storage.directory) / root
        names = (
            sorted(each.name for each in os.scandir(top) if each.is_dir()) if top.is_dir() else []
        )
        below = [f"{root}{name}/" for name in names]
    else:
        found = s3_store(config).list_with_delimiter(root or None)
        below = sorted(f"{prefix.rstrip('/')}/" for prefix in found["common_prefixes"])
    deeper = [Slice(prefix) for prefix in below if prefix != CONTROL]
    return [Slice(root, shallow=True), *deeper]


def _cut(config: Config, part: Slice, pieces: int) -> list[Slice]:
    """Cut a partition's prefix by the leading digits of its start offsets, ten or a hundred ways.

    Beside these, one slice takes what lies beyond the largest offset of just now, and one the
    few foreign names that sort before any digit.
    """
    if part.shallow or pieces <= 1 or not isinstance(config.storage, S3Storage):
        return [part]
    digits = len(str(_largest_offset(config, part.prefix)))
    zeros = "0" * (_DIGITS - digits)
    levels = 1 if pieces <= _TEN or digits == 1 else 2
    heads = [f"{part.prefix}{zeros}{n:0{levels}d}" for n in range(_TEN**levels)]
    return [
        Slice(part.prefix, before=part.prefix + zeros),
        *map(Slice, heads),
        Slice(part.prefix, after=f"{part.prefix}{zeros}:"),
    ]


def _largest_offset(config: Config, prefix: str) -> int:
    """Return about the largest start offset below a prefix, by asking what lies beyond a guess."""
    store = s3_store(config)
    low, high = 0, 1
    while high < _OFFSET_MAX and _any_after(store, prefix, high):
        low, high = high, high * 2
    # Within an eighth is even enough.
    while high - low > max(low // 8, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if _any_after(store, prefix, middle) else (low, middle)
    return high if low else 0


def _any_after(store: Any, prefix: str, offset: int) -> bool:
    bound = f"{prefix}{offset:0{_DIGITS}d}"
    for page in store.list(prefix, offset=bound, chunk_size=1):
        return any(True for _ in page)
    return False


def _local(storage: LocalStorage, part: Slice) -> Iterator[Listed]:
    root = Path(storage.directory)
    start = root / part.prefix.rpartition("/")[0]
    for directory, names, file_names in os.walk(start):
        if part.shallow:
            names.clear()
        for name in file_names:
            path = Path(directory) / name
            key = str(path.relative_to(root))
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # deleted meanwhile
            etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}"
            yield Listed(key, status.st_size, status.st_mtime_ns // 1_000_000, etag)


def _s3(config: Config, part: Slice, pages_per_second_max: int) -> Iterator[Listed]:
    pause = 1 / pages_per_second_max if pages_per_second_max else 0.0
    pages = s3_store(config).list(
        part.prefix or None, offset=part.after or None, chunk_size=_PAGE_KEYS
    )
    try:
        for page in pages:
            yield from map(_row, page)
            if part.before and page[-1]["path"] > part.before:
                return  # foreign names only: one that is listed late is nobody's, and unreported
            time.sleep(pause)
    except BaseError as error:
        # Beginning anew could yield a key twice: a task that fails is Spark's to repeat.
        raise Incomplete(f"listing {part.prefix!r} was cut short: {error}") from error


def _row(row: Any) -> Listed:
    modified_ms = int(row["last_modified"].timestamp() * 1000)
    return Listed(row["path"], row["size"], modified_ms, (row["e_tag"] or "").strip('"'))


def s3_store(config: Config) -> Any:
    """Return an obstore client of the configured bucket, keys read from their files.

    Raises:
        StorageNotConfigured: the storage is not S3.
    """
    s3 = config.storage
    if not isinstance(s3, S3Storage):
        raise StorageNotConfigured("the storage is not S3")
    region = s3.region or "us-east-1"
    options: dict[str, Any] = {
        "region": region,
        "virtual_hosted_style_request": s3.addressing == "virtual",
        "client_options": {
            "allow_http": (s3.endpoint or "").startswith("http://"),
            "timeout": timedelta(milliseconds=s3.call_timeout_ms),
            **({"proxy_url": s3.proxy} if s3.proxy else {}),
        },
        "retry_config": {"max_retries": _ATTEMPTS, "retry_timeout": timedelta(seconds=60)},
    }
    if s3.endpoint:
        options["endpoint"] = s3.endpoint
    keys = wiring.s3_options_of(config, s3).static_keys
    if keys is None:
        return S3Store(s3.bucket, credential_provider=_chain, **options)
    found = keys()
    token = {"session_token": found.session_token.reveal()} if found.session_token else {}
    return S3Store(
        s3.bucket,
        access_key_id=found.access_key_id.reveal(),
        secret_access_key=found.secret_access_key.reveal(),
        **token,
        **options,
    )


def _chain() -> dict[str, Any]:
    """Return what the SDK's own chain finds now: environment, files, instance role.

    Raises:
        StorageUnavailable: it finds nothing.
    """
    found = botocore.session.get_session().get_credentials()
    if found is None:
        raise StorageUnavailable("the SDK's chain finds no credentials on this machine")
    frozen = found.get_frozen_credentials()
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
        "expires_at": datetime.now(tz=UTC) + _CREDENTIALS_LAST,
    }
