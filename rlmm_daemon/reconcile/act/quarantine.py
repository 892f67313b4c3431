"""Quarantine: its manifests, and the decision what of them may be deleted tonight.

Quarantine is a list, not a place: objects stay where they are, named with size, ETag and
LastModified. A later run deletes only what it condemns again by itself, what still matches all
three, and what has been listed for the whole quarantine. `restore` takes a manifest out of force,
and its objects are not quarantined again, by their keys: a bucket that is copied or rewritten in
place gives each another time, and may give it another ETag. A manifest whose quarantine is over and
that names nothing that is still there goes: what became of its objects is in the audit logs.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from rlmm_daemon.codec.marker import CalendarMs
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.domain.errors import InvalidArgument, Malformed, StorageUnavailable
from rlmm_daemon.ports.storage import Conflict, ObjectInfo, RemoteStorage
from rlmm_daemon.reconcile import control

MANIFESTS: Final = f"{control.HOME}manifests/"
#: Of a manifest's entries: half of what a control object may have (CONTROL_BYTES_MAX).
MANIFEST_BYTES_MAX: Final = 512 * 1024
#: What an entry has more within a manifest than alone: two spaces in each of its lines.
_INDENTED_BYTES: Final = 32
#: Entries of all manifests together, so that a driver can hold them: ten nights of the most that
#: one may quarantine. Beyond it nothing more is, until something was deleted or went by itself.
ENTRIES_MAX: Final = 100_000
#: Key, ETag, second of LastModified, upload id.
Identity = tuple[str, str, int, str | None]
#: Key, upload id: an object in whatever state.
Name = tuple[str, str | None]


class CondemnedObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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

    @property
    def identity(self) -> Identity:
        """Return what names one state of one object.

        The whole second: some servers list milliseconds, and no answer to HEAD can have them.
        """
        return self.key, self.etag, self.modified_ms // 1_000, self.upload_id

    @property
    def name(self) -> Name:
        """Return what names the object whatever became of it."""
        return self.key, self.upload_id


class ManifestWord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who said something of a manifest, and when."""

    by: str
    at_ms: int
    reason: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One list of quarantined objects."""

    format: int = control.FORMAT
    run: str
    fence: int
    created_ms: CalendarMs
    entries: tuple[CondemnedObject, ...]
    #: By `rlmm reconcile restore`: its objects are left alone for good.
    restored: bool = False
    # Words of operators, which the first format does not have.
    restored_by: ManifestWord | UnsetType = UNSET
    #: Its objects may be deleted whatever share of the storage they are.
    approved: ManifestWord | UnsetType = UNSET
    #: Its objects are left alone until it is released.
    held: ManifestWord | UnsetType = UNSET

    @property
    def kept(self) -> str:
        """Why nothing of it may be deleted; "": it may, when its time has come."""
        if self.restored:
            return "its manifest was restored"
        return "" if self.held is UNSET else "its manifest is held back"


#: Of manifests that bear a word of an operator.
WORDED: Final = 2


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is in all: what the caps are shares of."""

    objects: int
    bytes: int


class NightPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run with --execute does."""

    delete: tuple[CondemnedObject, ...]
    quarantine: tuple[CondemnedObject, ...]
    #: Condemned, and left for another night by a cap.
    left: int
    #: Due, and left by each night: the caps are too small for them, whatever else there is.
    beyond: tuple[CondemnedObject, ...] = ()


def standing(
    manifests: Mapping[str, Manifest], safety: Safety, now_ms: int
) -> Mapping[Identity, bool]:
    """Return what is quarantined: True what is due to be deleted, False what is left alone.

    What is left alone has not been listed for the whole quarantine, or was restored (for good) or
    held back, whatever other manifest names it.
    """
    due_ms = now_ms - safety.quarantine_hours * 3_600_000
    found: dict[Identity, bool] = {}
    for manifest in manifests.values():
        for entry in manifest.entries:
            due = manifest.created_ms <= due_ms
            found[entry.identity] = found.get(entry.identity, False) or due
    spared = kept(manifests)
    return {each: due and name_of(each) not in spared for each, due in found.items()}


def name_of(identity: Identity) -> Name:
    """Return which object a state is one of."""
    key, _, _, upload_id = identity
    return key, upload_id


def kept(manifests: Mapping[str, Manifest]) -> Mapping[Name, str]:
    """Return what operators took out of force or held back, and which of the two."""
    return {
        entry.name: manifest.kept
        for manifest in manifests.values()
        if manifest.kept
        for entry in manifest.entries
    }


def approved(manifests: Mapping[str, Manifest]) -> frozenset[Identity]:
    """Return what operators let go past the share of the storage that a night may touch."""
    return frozenset(
        entry.identity
        for manifest in manifests.values()
        if manifest.approved is not UNSET
        for entry in manifest.entries
    )


def next_deletion_ms(
    manifests: Mapping[str, Manifest], safety: Safety, after_ms: int
) -> int | None:
    """Return when the quarantine of a manifest is next over, None: nothing is to be deleted."""
    quarantine_ms = safety.quarantine_hours * 3_600_000
    dates = (each.created_ms + quarantine_ms for each in manifests.values() if not each.kept)
    return min((date for date in dates if date > after_ms), default=None)


def over(
    manifests: Mapping[str, Manifest], safety: Safety, listed_ms: int
) -> Mapping[str, Manifest]:
    """Return those whose quarantine was over when the listing was made, restored ones too."""
    due_ms = listed_ms - safety.quarantine_hours * 3_600_000
    return {name: each for name, each in manifests.items() if each.created_ms <= due_ms}


def settled(over: Mapping[str, Manifest], there: Collection[Identity]) -> list[str]:
    """Return those none of whose objects is there any more, by the name of the manifest.

    One that was restored or is held back stays as long as anything that it spares.
    """
    names = set(map(name_of, there))
    return [
        name
        for name, manifest in over.items()
        if not any(
            entry.name in names if manifest.kept else entry.identity in there
            for entry in manifest.entries
        )
    ]


def plan(
    condemned: Collection[CondemnedObject],
    manifests: Mapping[str, Manifest],
    totals: Totals,
    safety: Safety,
    *,
    now_ms: int,
) -> NightPlan:
    """Return what to delete and what to quarantine, oldest first, within the caps of one run.

    Both share the caps, and what is due goes first. What no share will ever have room for (in a
    small bucket, or a large object) is quarantined all the same, and deleted once it is approved.
    """
    known = standing(manifests, safety, now_ms)
    oldest = sorted(condemned, key=lambda entry: entry.modified_ms)
    due = [entry for entry in oldest if known.get(entry.identity)]
    spared = kept(manifests)
    fresh = [e for e in oldest if e.identity not in known and e.name not in spared]
    free = approved(manifests)
    let = [entry for entry in due if entry.identity in free][: safety.objects_max]
    capped = [entry for entry in due if entry.identity not in free]
    budget = _Budget(totals, safety, taken=len(let))
    room = max(ENTRIES_MAX - len(known), 0)
    deleted = (*let, *budget.taken_of(capped))
    listed = budget.taken_of(fresh[:room], also_beyond=True)
    left = len(due) + len(fresh) - len(deleted) - len(listed)
    beyond = tuple(filter(budget.is_beyond, capped))
    return NightPlan(delete=deleted, quarantine=listed, left=left, beyond=beyond)


class _Budget:
    """What one run may touch: by number, by share of objects, by share of bytes."""

    def __init__(self, totals: Totals, safety: Safety, *, taken: int) -> None:
        """`taken` objects are chosen already, and count by their number alone."""
        self._share_objects = int(totals.objects * safety.share_max)
        self._share_bytes = int(totals.bytes * safety.share_max)
        self._objects = min(safety.objects_max - taken, self._share_objects)
        self._bytes = self._share_bytes

    def is_beyond(self, entry: CondemnedObject) -> bool:
        """Return whether no night has room for it; there are at most a few hundred such."""
        return self._share_objects < 1 or entry.size > self._share_bytes

    def taken_of(
        self, entries: Iterable[CondemnedObject], *, also_beyond: bool = False
    ) -> tuple[CondemnedObject, ...]:
        """Return what still fits; one that is too large keeps nothing back that is behind it."""
        chosen: list[CondemnedObject] = []
        for entry in entries:
            if also_beyond and self.is_beyond(entry):
                chosen.append(entry)
            elif self._objects > 0 and entry.size <= self._bytes:
                self._objects -= 1
                self._bytes -= entry.size
                chosen.append(entry)
        return tuple(chosen)


def manifests_of(
    run: str, fence: int, now_ms: int, entries: Iterable[CondemnedObject]
) -> list[Manifest]:
    """Return the entries as manifests of a bounded size."""
    groups: list[list[CondemnedObject]] = []
    room = 0
    for entry in entries:
        size = len(control.encode(entry)) + _INDENTED_BYTES
        if size > room:
            groups.append([])
            room = MANIFEST_BYTES_MAX
        room -= size
        groups[-1].append(entry)
    return [
        Manifest(run=run, fence=fence, created_ms=now_ms, entries=tuple(group)) for group in groups
    ]


class Manifests:
    """What lies in the storage, asked for again and again: only what changed is read again."""

    def __init__(self, storage: RemoteStorage) -> None:
        self._storage = storage
        #: By key, beside its row of the listing: another tag or time is another content.
        self._read: dict[str, tuple[ObjectInfo, Manifest]] = {}

    async def now(self) -> Mapping[str, Manifest]:
        """Return every manifest by its name.

        Raises:
            Malformed: one is damaged; nothing may be deleted beside it.
        """
        found, damaged = await self.look()
        for reason in damaged.values():
            raise Malformed(reason)
        return found

    async def look(self) -> tuple[Mapping[str, Manifest], Mapping[str, str]]:
        """Return every manifest by its name, and why others can't be read, by theirs."""
        found: dict[str, tuple[ObjectInfo, Manifest]] = {}
        damaged: dict[str, str] = {}
        async for page in self._storage.list(MANIFESTS):
            for row in page:
                known = self._read.get(row.key)
                if known is not None and known[0] == row:
                    found[row.key] = known
                elif (content := await self._storage.get_control(row.key)) is not None:
                    try:
                        manifest = decoded(content.data, row.key)
                    except Malformed as error:
                        damaged[row.key.removeprefix(MANIFESTS)] = error.message
                    else:
                        found[row.key] = row, manifest
        self._read = found
        manifests = {key.removeprefix(MANIFESTS): each for key, (_, each) in found.items()}
        return manifests, damaged


def named(manifests: Iterable[Manifest]) -> Mapping[str, Manifest]:
    """Return a run's manifests by the names that they get."""
    return {f"{each.run}-{number:03}.json": each for number, each in enumerate(manifests, start=1)}


async def write_manifest(storage: RemoteStorage, name: str, manifest: Manifest) -> None:
    """Write a new manifest."""
    await storage.put_control(MANIFESTS + name, control.encode(manifest), if_etag=None)


async def restore(
    storage: RemoteStorage, name: str, word: ManifestWord | UnsetType = UNSET
) -> Manifest:
    """Take a manifest out of force for good.

    Raises:
        InvalidArgument: there is no such manifest.
        StorageUnavailable: others wrote it all the time.
    """
    return await change(
        storage,
        name,
        lambda known: (
            known
            if known.restored
            else msgspec.structs.replace(known, restored=True, restored_by=word)
        ),
    )


async def one(storage: RemoteStorage, name: str) -> tuple[Manifest, str]:
    """Return a manifest and its tag.

    Raises:
        InvalidArgument: there is no such manifest, or it can't be read.
    """
    found = await storage.get_control(MANIFESTS + name)
    if found is None:
        raise InvalidArgument(f"there is no manifest {name!r}; rlmm reconcile manifests lists them")
    try:
        return decoded(found.data, MANIFESTS + name), found.etag
    except Malformed as error:
        raise InvalidArgument(f"manifest {name!r} can't be read: {error.message}") from error


async def change(
    storage: RemoteStorage, name: str, changed: Callable[[Manifest], Manifest]
) -> Manifest:
    """Write what becomes of a manifest; where nothing does, nothing is written.

    Raises:
        InvalidArgument: there is no such manifest, or it can't be read.
        StorageUnavailable: others wrote it all the time.
    """
    for _ in range(control.RACES_MAX):
        manifest, etag = await one(storage, name)
        wanted = changed(manifest)
        if wanted == manifest:
            return manifest
        words = (wanted.restored_by, wanted.approved, wanted.held)
        version = control.FORMAT if all(word is UNSET for word in words) else WORDED
        wanted = msgspec.structs.replace(wanted, format=version)
        try:
            await storage.put_control(MANIFESTS + name, control.encode(wanted), if_etag=etag)
        except Conflict:
            continue
        return wanted
    raise StorageUnavailable(f"{MANIFESTS}{name} was written by others {control.RACES_MAX} times")


def decoded(data: bytes, key: str) -> Manifest:
    """Return a manifest's content.

    Raises:
        Malformed: it is damaged, or newer than this program.
    """
    return control.decode(data, Manifest, key=key, newest=WORDED)


def entry_of(row: Mapping[str, Any]) -> CondemnedObject:
    """Return a condemned finding as an entry."""
    return CondemnedObject(
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
