"""The job's own small objects below `_rlmm/reconcile/`, and what it reads of the daemons'.

accepted-records.json   records of the log that an operator has looked at
clock                   written anew to learn the storage's time (`storage_time`)
lease.json              who may delete now (`lease`)
manifests/RUN-NNN.json  what a run has quarantined (`quarantine`)
"""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import MARKER_KEY, PRESENCE_PREFIX, BucketMarker, Presence
from rlmm_daemon.config import Config
from rlmm_daemon.daemon.bucket.storage_clock import stored_ms
from rlmm_daemon.domain.errors import Malformed, StorageNotConfigured, StorageUnavailable
from rlmm_daemon.ports.storage import Conflict, RemoteStorage
from rlmm_daemon.wiring import adapters

HOME: Final = "_rlmm/reconcile/"
ACCEPTED_KEY: Final = f"{HOME}accepted-records.json"
#: Not a daemon's: whose leftovers are its own to sweep.
OWNER: Final = "reconcile"
RACES_MAX: Final = 20
#: Of each of them; another one is refused untouched.
FORMAT: Final = 1
#: Of accepted records that say who accepted them, which the first format does not have.
ACCEPTED_FORMAT: Final = 2
_S = TypeVar("_S", bound=msgspec.Struct)


class _Versioned(msgspec.Struct):
    format: int


class AcceptedRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One record that is no event, and why an operator says that no event is lost by it."""

    metadata_partition: int
    offset: int
    sha256: str
    reason: str
    accepted_at_ms: int
    #: By an earlier version: not kept.
    accepted_by: str | msgspec.UnsetType = msgspec.UNSET


class AcceptedRecords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of them."""

    format: int = FORMAT
    records: tuple[AcceptedRecord, ...] = ()

    def keys(self) -> frozenset[tuple[int, int, str]]:
        """Return them as `guards` wants them."""
        return frozenset((r.metadata_partition, r.offset, r.sha256) for r in self.records)


@asynccontextmanager
async def opened(config: Config, *, reads_only: bool = False) -> AsyncIterator[RemoteStorage]:
    """Yield the configured storage, open; nothing of a daemon's is made or swept.

    Whoever `reads_only` makes nothing at all: a storage may be mounted so.

    Raises:
        StorageNotConfigured: storage.kind is "none": there is nothing to hold the log against.
    """
    luck = random.Random()  # noqa: S311 - jitter
    storage = adapters.storage_of(config, luck, owner=OWNER, reads_only=reads_only)
    if storage is None:
        raise StorageNotConfigured('storage.kind is "none": segments are another plugin\'s')
    try:
        await storage.backend.open()
        yield storage.backend
    finally:
        await storage.backend.close()


async def read_marker(storage: RemoteStorage) -> BucketMarker | None:
    """Return the marker, None if there is none.

    Raises:
        Malformed: damaged, or newer than this program.
    """
    found = await storage.get_control(MARKER_KEY)
    try:
        return None if found is None else marker.decode_marker(found.data)
    except Malformed as error:
        raise Malformed(f"{MARKER_KEY}: {error.message}") from error


async def marker_ms(storage: RemoteStorage) -> int | None:
    """Return when the storage took the marker; asked for after its content, which is no newer."""
    return await stored_ms(storage, MARKER_KEY)


async def read_presences(storage: RemoteStorage) -> Mapping[str, Presence | None]:
    """Return every presence file by its key; None for one that can't be read.

    Each is said to be written when the storage took it: its daemon's clock may be wrong.
    """
    found: dict[str, Presence | None] = {}
    async for page in storage.list(PRESENCE_PREFIX):
        for each in page:
            said = await _presence(storage, each.key)
            found[each.key] = said and replace(said, written_at_ms=each.modified_ms)
    return found


async def read_accepted(storage: RemoteStorage) -> AcceptedRecords:
    """Return the accepted records.

    Raises:
        Malformed: the file is damaged, or newer than this program.
    """
    found = await storage.get_control(ACCEPTED_KEY)
    if found is None:
        return AcceptedRecords()
    return _accepted_of(found.data)


def _accepted_of(data: bytes) -> AcceptedRecords:
    return decode(data, AcceptedRecords, key=ACCEPTED_KEY, newest=ACCEPTED_FORMAT)


async def accept(storage: RemoteStorage, record: AcceptedRecord) -> None:
    """Add one accepted record; again is harmless.

    Raises:
        StorageUnavailable: others wrote it all the time.
    """
    for _ in range(RACES_MAX):
        found = await storage.get_control(ACCEPTED_KEY)
        present = AcceptedRecords() if found is None else _accepted_of(found.data)
        key = (record.metadata_partition, record.offset, record.sha256)
        if key in present.keys():  # noqa: SIM118 - a method of ours, no mapping
            return
        records = (*present.records, record)
        said = any(each.accepted_by is not msgspec.UNSET for each in records)
        wanted = AcceptedRecords(format=ACCEPTED_FORMAT if said else FORMAT, records=records)
        try:
            await storage.put_control(
                ACCEPTED_KEY, encode(wanted), if_etag=found.etag if found else None
            )
        except Conflict:
            continue
        return
    raise StorageUnavailable(f"{ACCEPTED_KEY} was written by others {RACES_MAX} times")


def encode(value: msgspec.Struct) -> bytes:
    """Return JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def decode(data: bytes, kind: type[_S], *, key: str = "", newest: int = FORMAT) -> _S:
    """Return the content of the control object under a key.

    Raises:
        Malformed: it is damaged, or newer than this program.
    """
    what = f"{key} ({kind.__name__})" if key else kind.__name__
    try:
        version = msgspec.json.decode(data, type=_Versioned).format
        if version not in range(1, newest + 1):
            raise Malformed(f"{what}: format {version} is not known to this version")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{what}: {error}" if data else f"{what} is empty") from error


async def _presence(storage: RemoteStorage, key: str) -> Presence | None:
    try:
        found = await storage.get_control(key)
        return None if found is None else marker.decode_presence(found.data)
    except Malformed:
        return None
