"""The bucket, opened with this daemon's layout, and the place of each segment's objects."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
import structlog

from rlmm_daemon.codec.custom_metadata import StoredFacts, decode
from rlmm_daemon.codec.marker import MARKER_KEY, BucketMarker, LayoutRow, Presence
from rlmm_daemon.core.disposal.holds import held_whole, recounted, with_told
from rlmm_daemon.core.readiness.marker_verdict import (
    LogHistory,
    MarkerReason,
    owner_of,
    why_not_made,
    why_not_ours,
    why_remade,
)
from rlmm_daemon.core.storage.layout import Layout, key_stem, may_have_objects
from rlmm_daemon.daemon.bucket.deletes_under_way import DeletesUnderWay
from rlmm_daemon.daemon.bucket.earlier_objects import why_held
from rlmm_daemon.daemon.bucket.live_marker import (
    NEXT_STEP,
    RACES_MAX,
    BucketIdentity,
    LiveMarker,
    MarkerChange,
    as_younger,
    marker_named,
    owner_who_asks,
    rows_of,
)
from rlmm_daemon.daemon.bucket.storage_past import Remembered, StoragePast, remembered
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import (
    ConfigError,
    Malformed,
    RlmmError,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.ports.storage import Conflict, ObjectKind, RemoteStorage

BACK_OFF_SECONDS: Final = 0.2
#: Of a storage that has not answered the start for so long it is told that it is away.
ANSWER_SECONDS: Final = 30.0
#: A look at the marker is good for so long before a copy or delete begins.
MARKER_SECONDS: Final = 5.0
BACK_OFF_SECONDS_MAX: Final = 10.0
#: The reason of an error: another daemon has this broker id, or may.
OTHER_DAEMON: Final = "other_daemon"

log = structlog.get_logger()


async def _nobody_else() -> None:
    """Take it that no other daemon has this one's broker id."""


class PresenceFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What daemons say of themselves."""

    told: Sequence[Presence] = ()
    #: Keys of files that can't be read, and when the storage took them.
    unread: Mapping[str, int] = msgspec.field(default_factory=dict)
    #: Why not even those of brokers in the cluster were asked for; None: they were.
    unnamed: str | None = None


async def _no_files() -> PresenceFiles:
    """Take it that no daemon has said anything of itself."""
    return PresenceFiles()


class SegmentPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where one set of a segment's objects lies, or may lie."""

    layout_number: int
    #: Every kind, whether or not it was stored.
    keys: dict[ObjectKind, str]


class Bucket(LiveMarker):
    """The marker of one storage, and this daemon's layout in it."""

    def __init__(
        self, storage: RemoteStorage, *, layout: Layout, rng: random.Random, name: str = ""
    ) -> None:
        """`name` is the bucket's or directory's, for people."""
        super().__init__(storage, name)
        #: Whose objects are being deleted, by whomever in this process.
        self.removing = DeletesUnderWay()
        self.layout = layout
        #: Accepted losses that no marker took as there was none; the one that is made does.
        self.unwritten: list[MarkerChange] = []
        self._rng = rng
        self._number: int | None = None
        #: Asked before anything is begun that ends in a delete, and before the delete. Raises
        #: StorageUnavailable while another daemon of this broker id may know better.
        self.require_alone: Callable[[], Awaitable[None]] = _nobody_else
        #: Asked by `open`: presence files tell of holds that an older marker has not.
        self.presences: Callable[[], Awaitable[PresenceFiles]] = _no_files

    async def open(self, identity: BucketIdentity, past: StoragePast | None = None) -> BucketMarker:
        """Open the storage and return its marker with our layout in it; waits for the storage.

        Retries for ever with back-off: a daemon without its bucket is not ready, not dead. A
        marker that is gone or was remade is waited for too, with `trouble` set. The partition count
        and topic id of an existing marker are returned, not judged. Without `past` the caller
        vouches that a storage without a marker was never used.

        Raises:
            ConfigError: the bucket belongs to another cluster; copies and reads stay refused.
            Malformed: the marker is damaged or newer than this program; likewise.
        """
        self._identity, self._past = identity, past
        backoff = Backoff(BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX, self._rng.random)
        while True:
            try:
                with self._told_if_silent():
                    await self.storage.open()
                settled = await self._settle(identity)
            except (ConfigError, Malformed):
                raise
            except UnavailableError as error:
                self._away = None if error is self._trouble else error
                if self._away is not None:  # else it was told when it was found
                    seconds = round(backoff.bound, 1)
                    log.warning("bucket not reached", error=str(error), retry_seconds=seconds)
            else:
                self._away = None
                return settled
            await asyncio.sleep(backoff.next())

    @contextmanager
    def _told_if_silent(self) -> Iterator[None]:
        """Tell that the storage is away while the block gets no answer: one that hangs never does.

        It is not given up: what hangs is no sooner through when it is asked anew.
        """

        def tell() -> None:
            self._away = StorageUnavailable(
                f"{self.name or 'the storage'} has not answered for {ANSWER_SECONDS:g} s: it is "
                "away, or its disk or mount hangs"
            )
            log.warning("bucket not reached", error=self._away.message)

        timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS, tell)
        try:
            yield
        finally:
            timer.cancel()

    async def delete(self, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
        """Delete objects as the storage does, unless the marker is not in order.

        In another bucket every object is absent, which would read as success. Nor while another
        daemon of this broker id may know of a need for them.
        """
        try:
            await self.confirm(seconds=MARKER_SECONDS)
            await self.require_alone()
        except StorageUnavailable as error:
            return dict.fromkeys(keys, error)
        return await self.storage.delete(keys)

    def place_for_new(self, metadata: SegmentMetadata) -> SegmentPlace:
        """Return where a new copy goes.

        Raises:
            StorageUnavailable: the marker was not read yet, or is another cluster's.
        """
        self.require()
        assert self._number is not None, "settled together with the marker"
        return _place(self._number, self.layout, metadata)

    async def places(
        self, metadata: SegmentMetadata, kept_custom_metadata: bytes | None = None
    ) -> list[SegmentPlace]:
        """As `places_of`, by the custom metadata or those kept; Malformed if these are too new."""
        facts = decode(metadata.custom_metadata) or decode(kept_custom_metadata)
        return await self.places_of(metadata, facts)

    async def places_of(
        self, metadata: SegmentMetadata, facts: StoredFacts | None
    ) -> list[SegmentPlace]:
        """Return where the objects are: one place if it was recorded, else every listed layout.

        None for a topic's name that Kafka forbids: no object was ever stored under one.
        StorageUnavailable if the marker cannot be read, or lacks the recorded layout.
        """
        found = self.require()
        if not may_have_objects(metadata.partition):
            return []
        if facts is None or facts.layout_number > len(found.layouts):
            # Another daemon may have added a row since.
            found = await self.refresh()
        rows = [row for row in found.layouts if facts is None or row.number == facts.layout_number]
        if not rows:
            assert facts is not None, "every row, where none was recorded"
            raise StorageUnavailable(
                f"{marker_named(self.name)} lacks layout {facts.layout_number}, "
                f"which was recorded; {NEXT_STEP[MarkerReason.REMADE]}",
                reason=MarkerReason.REMADE.value,
                key=MARKER_KEY,
                bucket=self.name,
                retry=False,
            )
        return [_place(row.number, Layout(row.prefix, row.kind), metadata) for row in rows]

    async def layouts(self) -> list[Layout]:
        """Return every layout that any daemon ever used, by a fresh look at the marker.

        Raises:
            StorageUnavailable: the marker cannot be read.
        """
        self.require()
        return [Layout(row.prefix, row.kind) for row in (await self.refresh()).layouts]

    async def _settle(self, identity: BucketIdentity) -> BucketMarker:
        """Read the marker, and write it where it lacks us; a lost race reads again."""
        for _ in range(RACES_MAX):
            began = asyncio.get_running_loop().time()
            with self._told_if_silent():
                control = await self.storage.get_control(MARKER_KEY)
                presences = await self.presences()
            memory = await remembered(self._past, identity.cluster_id)
            if control is None:
                present = await self._made(identity, memory.kept)
            else:
                present = self._decoded_or_refused(control)
            known = self._marker or memory.kept
            self._require_ours(present, identity, known)
            whole = as_younger(present, known)
            wanted, number = _with_layout(whole, self.layout)
            if control is not None and number > len(whole.layouts):
                await self._require_unnamed(number)
            for change in self.unwritten:
                wanted = change(wanted)
            wanted = memory.put_into(wanted, identity.now_ms, identity.broker_id)
            wanted = self._with_told(wanted, presences, identity)
            try:
                if control is None or wanted is not present:
                    wanted = await self._put(wanted, control)
            except Conflict:
                continue
            self.unwritten.clear()
            self._number, self._looked_at = number, began
            await self._take(wanted)
            await self._written_with(memory)
            before = () if control is None else whole.held
            for hold in wanted.held:
                if hold not in before:
                    await self.hold_longer(hold, identity.cluster_id)
            return self.require()
        raise StorageUnavailable(f"the bucket marker was written by others {RACES_MAX} times")

    def _with_told(
        self, wanted: BucketMarker, presences: PresenceFiles, identity: BucketIdentity
    ) -> BucketMarker:
        """Return a marker with the holds that no memory of ours has, as it may be an older one.

        With one on everything, where a file can't be read: how far its daemon had read the log, and
        what it held, nobody knows.
        """
        whole = with_told(wanted, presences.told)
        if whole is not wanted:
            log.warning(
                "bucket marker got a hold that a presence file tells of; the marker lacked it, so "
                "it may be an older one; once nothing is needed of it: rlmm partition end-hold",
                bucket=self.name,
                holds=[hold.metadata_partition for hold in whole.held if hold not in wanted.held],
            )
        if presences.unread:
            log.error(
                "bucket marker got a hold on all objects: a presence file can't be read, so nobody "
                "knows how far its daemon had read the log; see docs/recovery.md",
                bucket=self.name,
                keys=list(presences.unread),
            )
            whole = held_whole(whole, identity.now_ms, identity.broker_id)
        return whole

    async def _written_with(self, memory: Remembered) -> None:
        """Forget what was owed, and tell of what is held as nobody can read it."""
        if self._past is not None and memory.owes:
            await self._past.paid()
        if memory.unread is not None:
            log.warning(
                "bucket marker got a hold on all objects: what was known of it can't be read, and "
                "it may be an older one; once none of them is needed: "
                "rlmm partition end-hold --all --execute",
                bucket=self.name,
                why=memory.unread,
            )

    async def _made(self, identity: BucketIdentity, kept: BucketMarker | None) -> BucketMarker:
        """Return a fresh marker for a storage that has none, with the rows that are known.

        Raises:
            StorageUnavailable: segments may lie there already, under layouts that nobody knows.
        """
        history = LogHistory() if self._past is None else await self._past.history()
        if (why := why_not_made(history)) is not None:
            raise self._refuse(MarkerReason.NONE, f"there is none, and {why}")
        seen = kept is not None and kept.layouts  # without any, an accepted loss alone left it
        if seen and self.storage.local_path(MARKER_KEY) is not None:
            # What is copied into an empty mount point is hidden once the mount is back.
            raise self._refuse(
                MarkerReason.NONE, "there is none, and this daemon has seen one: is it mounted?"
            )
        fresh = BucketMarker(
            cluster_id=identity.cluster_id,
            partition_count=identity.partition_count,
            metadata_topic_id=identity.metadata_topic_id,
        )
        made = msgspec.structs.replace(
            recounted(kept or fresh, identity.partition_count),
            metadata_topic_id=identity.metadata_topic_id,
        )
        return made if self._past is None else await self._held_if_used(made, identity)

    async def _require_unnamed(self, number: int) -> None:
        """Return if no live segment names a layout that the marker is about to be given.

        Raises:
            StorageUnavailable: one does, so the marker is an older one, or nobody can say now.
        """
        named = None if self._past is None else await self._past.named_from(number)
        if named is not None:
            raise self._refuse(
                MarkerReason.REMADE,
                f"it has {number - 1} layouts, and the event log has segments under layout {named}",
            )

    async def _held_if_used(self, made: BucketMarker, identity: BucketIdentity) -> BucketMarker:
        """Return a marker that is made now, with a hold if segments may lie there already."""
        layouts = [*(Layout(row.prefix, row.kind) for row in made.layouts), self.layout]
        why = await why_held(self.storage, layouts)
        if why is None:
            return made
        log.warning(
            "bucket marker made with a hold: the event log names none of the segments that may lie "
            "there; once they are known to be nobody's: rlmm partition end-hold --all --execute",
            bucket=self.name,
            why=why,
        )
        return held_whole(made, identity.now_ms, identity.broker_id)

    def _require_ours(
        self, present: BucketMarker, identity: BucketIdentity, known: BucketMarker | None
    ) -> None:
        """Return if the marker is this cluster's and only appended to what we knew of it."""
        if (wrong := why_not_ours(owner_of(present), owner_who_asks(identity))) is not None:
            reason, why = wrong
            self._refuse(reason, why)
            if reason is MarkerReason.DAMAGED:
                raise Malformed(f"{marker_named(self.name)}: {why}; {NEXT_STEP[reason]}")
            raise ConfigError(
                f"{why}; {NEXT_STEP[reason]}",
                theirs=present.cluster_id,
                ours=identity.cluster_id,
            )
        if known is not None and (why_not := why_remade(rows_of(known), rows_of(present))):
            raise self._refuse(MarkerReason.REMADE, why_not)


def _with_layout(present: BucketMarker, layout: Layout) -> tuple[BucketMarker, int]:
    for row in present.layouts:
        if (row.prefix, row.kind) == (layout.prefix, layout.kind):
            return present, row.number
    number = len(present.layouts) + 1
    row = LayoutRow(number=number, kind=layout.kind, prefix=layout.prefix)
    return msgspec.structs.replace(present, layouts=(*present.layouts, row)), number


def _place(number: int, layout: Layout, metadata: SegmentMetadata) -> SegmentPlace:
    stem = key_stem(layout, metadata.partition, metadata.start_offset, metadata.segment_id)
    return SegmentPlace(layout_number=number, keys={kind: stem + kind.value for kind in ObjectKind})
