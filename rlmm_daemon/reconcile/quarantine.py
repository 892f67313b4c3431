"""What is quarantined, and what of it may be deleted tonight: pure decisions, and the manifests.

Quarantine is a list, not a place: objects stay where they are, named with size, ETag and
LastModified. A later run deletes only what it condemns again by itself, what still matches all
three, and what has been listed for the whole quarantine. `restore` takes a manifest out of force,
and its objects are not quarantined again.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from rlmm_daemon.ports.storage import RemoteStorage
from rlmm_daemon.reconcile import control

MANIFESTS: Final = f"{control.HOME}manifests/"
#: So that a manifest stays far below the size of a control object.
ENTRIES_MAX: Final = 2_000


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One object (or incomplete upload) as it was when it was condemned."""

    key: str
    size: int
    etag: str
    modified_ms: int
    kind: str
    topic_id: str | None = None
    partition: int | None = None
    segment_id: str | None = None
    upload_id: str | None = None

    def same(self, other: "Entry") -> bool:
        """Return whether both name one and the same state of one object."""
        mine = (self.key, self.etag, self.modified_ms, self.upload_id)
        return mine == (other.key, other.etag, other.modified_ms, other.upload_id)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One list of quarantined objects."""

    format: int = 1
    run: str
    fence: int
    created_ms: int
    entries: tuple[Entry, ...]
    #: By `rlmm reconcile restore`: its objects are left alone for good.
    restored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How much there is in all: what the caps are shares of."""

    objects: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run with --execute does."""

    delete: tuple[Entry, ...]
    quarantine: tuple[Entry, ...]
    #: Condemned, and left for another night by a cap.
    left: int


def plan(
    condemned: Collection[Entry],
    manifests: Mapping[str, Manifest],
    totals: Totals,
    safety: Safety,
    now_ms: int,
) -> Plan:
    """Return what to delete and what to quarantine, oldest first, within the caps of one run."""
    listed: dict[tuple[str, str | None], list[tuple[Manifest, Entry]]] = {}
    for manifest in manifests.values():
        for entry in manifest.entries:
            listed.setdefault((entry.key, entry.upload_id), []).append((manifest, entry))
    due_ms = now_ms - safety.quarantine_hours * 3_600_000
    delete, fresh = [], []
    for entry in sorted(condemned, key=lambda each: each.modified_ms):
        known = [(m, e) for m, e in listed.get((entry.key, entry.upload_id), ()) if e.same(entry)]
        if any(manifest.restored for manifest, _ in known):
            continue
        if not known:
            fresh.append(entry)
        elif min(manifest.created_ms for manifest, _ in known) <= due_ms:
            delete.append(entry)
    deleted = capped(delete, totals, safety)
    quarantined = capped(fresh, totals, safety)
    left = len(delete) + len(fresh) - len(deleted) - len(quarantined)
    return Plan(delete=tuple(deleted), quarantine=tuple(quarantined), left=left)


def capped(entries: Iterable[Entry], totals: Totals, safety: Safety) -> list[Entry]:
    """Return as many as one run may touch: by number, by share of objects, by share of bytes."""
    count_max = min(safety.objects_max, int(totals.objects * safety.share_max))
    bytes_max = int(totals.bytes * safety.share_max)
    chosen: list[Entry] = []
    for entry in entries:
        if len(chosen) >= count_max or bytes_max < entry.size:
            break
        bytes_max -= entry.size
        chosen.append(entry)
    return chosen


def manifests_of(run: str, fence: int, now_ms: int, entries: Collection[Entry]) -> list[Manifest]:
    """Return the entries as manifests of a bounded size."""
    every = [*entries]
    return [
        Manifest(
            run=run, fence=fence, created_ms=now_ms, entries=tuple(every[at : at + ENTRIES_MAX])
        )
        for at in range(0, len(every), ENTRIES_MAX)
    ]


async def read_manifests(storage: RemoteStorage) -> dict[str, Manifest]:
    """Return every manifest by its name.

    Raises:
        Malformed: one is damaged; nothing may be deleted beside it.
    """
    found: dict[str, Manifest] = {}
    async for page in storage.list(MANIFESTS):
        for each in page:
            control_object = await storage.get_control(each.key)
            if control_object is not None:
                name = each.key.removeprefix(MANIFESTS)
                found[name] = control.decode(control_object.data, Manifest)
    return found


async def write_manifests(storage: RemoteStorage, manifests: Iterable[Manifest]) -> list[str]:
    """Write new manifests and return their names."""
    names = []
    for number, manifest in enumerate(manifests, start=1):
        names.append(f"{manifest.run}-{number:03}.json")
        await storage.put_control(MANIFESTS + names[-1], control.encode(manifest), if_etag=None)
    return names


async def restore(storage: RemoteStorage, name: str) -> Manifest:
    """Take a manifest out of force for good.

    Raises:
        InvalidArgument: there is no such manifest.
    """
    found = await storage.get_control(MANIFESTS + name)
    if found is None:
        raise InvalidArgument(f"there is no manifest {name!r}; rlmm reconcile manifests lists them")
    try:
        manifest = control.decode(found.data, Manifest)
    except Malformed as error:
        raise InvalidArgument(f"manifest {name!r} can't be read: {error}") from error
    restored = msgspec.structs.replace(manifest, restored=True)
    await storage.put_control(MANIFESTS + name, control.encode(restored), if_etag=found.etag)
    return restored


def entry_of(row: Mapping[str, Any]) -> Entry:
    """Return a condemned finding as an entry."""
    return Entry(
        key=row["key"],
        size=row["bytes"],
        etag=row["etag"] or "",
        modified_ms=row["modified_ms"],
        kind=row["kind"],
        topic_id=row["topic_id"],
        partition=row["partition"],
        segment_id=row["segment_id"],
        upload_id=row["upload_id"],
    )
