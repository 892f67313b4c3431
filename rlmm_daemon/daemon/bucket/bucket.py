"""The bucket marker, and from it the place of each segment's objects."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec
import structlog

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.custom_metadata import StoredFacts, decode
from rlmm_daemon.codec.marker import (
    MARKER_KEY,
    AcceptedGap,
    AcceptedLoss,
    BucketMarker,
    Hold,
    LayoutRow,
    NewerMarker,
)
from rlmm_daemon.core.disposal.holds import (
    UNKNOWN_MS,
    as_known,
    held_whole,
    recounted,
    with_hold,
    without_holds,
)
from rlmm_daemon.core.readiness.marker_verdict import (
    IF_NONE,
    REBUILD,
    MarkerReason,
    Owner,
    Rows,
    owner_of,
    why_not_made,
    why_not_ours,
    why_remade,
)
from rlmm_daemon.core.storage.layout import Layout, key_stem, may_have_objects
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.bucket.deletes_under_way import DeletesUnderWay
from rlmm_daemon.daemon.bucket.earlier_objects import newest_ms, why_held
from rlmm_daemon.daemon.bucket.storage_clock import stored_ms
from rlmm_daemon.daemon.bucket.storage_past import NoPast, Remembered, StoragePast, remembered
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import (
    ConfigError,
    InvalidArgument,
    Malformed,
    RlmmError,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.ports.event_log import LogRange, ranges_joined
from rlmm_daemon.ports.storage import Conflict, ControlObject, ObjectKind, RemoteStorage

#: Each lost race means that another daemon wrote its row, and there are few daemons.
RACES_MAX: Final = 50
#: What an operator does about a marker, by the reason.
_NEXT: Final = {
    MarkerReason.UNREAD: "the daemon asks again by itself",
    MarkerReason.NONE: IF_NONE,
    MarkerReason.FOREIGN: "give this cluster a bucket or directory of its own",
    MarkerReason.DAMAGED: f"restore it, or run: {REBUILD}",
    MarkerReason.NEWER: "run the daemon's newer version",
    MarkerReason.REMADE: f"restore the former one, or run: {REBUILD}",
}
BACK_OFF_SECONDS: Final = 0.2
#: A look at the marker is good for so long before a copy or delete begins.
MARKER_SECONDS: Final = 5.0
BACK_OFF_SECONDS_MAX: Final = 10.0
#: The reason of an error: another daemon has this broker id, or may.
OTHER_DAEMON: Final = "other_daemon"

#: What a marker becomes by something that was accepted.
MarkerChange: TypeAlias = Callable[[BucketMarker], BucketMarker]

log = structlog.get_logger()


async def _nobody_else() -> None:
    """Take it that no other daemon has this one's broker id."""


class BucketIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a fresh marker is made of; known once the event log is open."""

    cluster_id: str
    partition_count: int
    #: Kafka's uuid text of the metadata topic.
    metadata_topic_id: str
    #: Of the daemon that would make it, and when by its clock: for a hold on what is there already.
    broker_id: int = -1
    now_ms: int = 0


class SegmentPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where one set of a segment's objects lies, or may lie."""

    layout_number: int
    #: Every kind, whether or not it was stored.
    keys: dict[ObjectKind, str]


class Bucket:
    """The marker of one storage, and this daemon's layout in it."""

    def __init__(
        self, storage: RemoteStorage, *, layout: Layout, rng: random.Random, name: str = ""
    ) -> None:
        """`name` is the bucket's or directory's, for people."""
        self.storage = storage
        self.name = name
        #: Whose objects are being deleted, by whomever in this process.
        self.removing = DeletesUnderWay()
        self._layout = layout
        self._rng = rng
        self._marker: BucketMarker | None = None
        self._number: int | None = None
        self._identity: BucketIdentity | None = None
        self._past: StoragePast = NoPast()
        #: The opener says that a storage without a marker was never used.
        self._vouched = True
        self._trouble: StorageUnavailable | None = None
        self._away: UnavailableError | None = None
        self._judged = asyncio.Event()
        #: Accepted losses that no marker took as there was none; the one that is made does.
        self._unwritten: list[MarkerChange] = []
        #: Rung when a marker is found to be out of order, and for what other reason than before.
        self.refused = Broadcast()
        #: Held by the one look at the marker that is made at a time.
        self._looking = asyncio.Lock()
        self._looks = 0
        #: By the loop: the begin of the last look that ended with an answer.
        self._looked_at: float | None = None
        #: Asked before anything is begun that ends in a delete, and before the delete. Raises
        #: StorageUnavailable while another daemon of this broker id may know better.
        self.require_alone: Callable[[], Awaitable[None]] = _nobody_else

    async def until_judged(self, timeout_seconds: float) -> None:
        """Return once the marker was read, whatever it is, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._judged.wait()

    @property
    def marker(self) -> BucketMarker | None:
        """The last marker that was in order; None until `open` returned."""
        return self._marker

    @property
    def trouble(self) -> StorageUnavailable | None:
        """What is wrong with the marker by the last look; None while nothing is known."""
        return self._trouble

    @property
    def away(self) -> UnavailableError | None:
        """Why the storage has not answered since the start; None once it did."""
        return self._away

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
        self._identity, self._past, self._vouched = identity, past or NoPast(), past is None
        backoff = Backoff(BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX, self._rng.random)
        while True:
            try:
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

    async def confirm(self, *, seconds: float = 0.0) -> None:
        """Make sure that the marker is still ours, by a look not older than so many seconds.

        With 0 the look begins after this call; those who wait together share one.

        Raises:
            StorageUnavailable: it is not, or the storage does not answer.
        """
        asked, now = self._looks, asyncio.get_running_loop().time()
        if self._looked_at is None or not seconds or self._looked_at < now - seconds:
            async with self._looking:
                if self._looks == asked or self._looked_at is None or self._looked_at < now:
                    await self._look()
        self._require()

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

    async def _look(self) -> None:
        """Read the marker and judge it; a good one is the one that counts from now on.

        Raises:
            StorageUnavailable: the storage does not answer, which says nothing about a marker.
        """
        self._looks += 1
        began = asyncio.get_running_loop().time()
        try:
            control = await self.storage.get_control(MARKER_KEY)
            present = None if control is None else self._decoded(control)
        except Malformed as error:
            self._refuse(_reason_of(error), _why(error))
        else:
            if present is None:
                self._refuse(MarkerReason.NONE, "it is gone")
            elif control is not None and self._accepts(present):
                await self._take_whole(present, control)
        self._looked_at = began

    async def _take_whole(self, present: BucketMarker, control: ControlObject) -> None:
        """Go on with a marker, and write back into an older one what was accepted since."""
        whole = _whole(present, self._marker)
        await self._take(whole)
        if whole is not present:
            with suppress(Conflict):  # the next look tries again
                await self._put(whole, control)

    async def _put(self, wanted: BucketMarker, former: ControlObject | None) -> BucketMarker:
        """Write the marker over exactly what was read, and return it as it is now.

        Raises:
            Conflict: somebody else wrote it.
            StorageUnavailable: it was not written.
        """
        written = marker.as_written(wanted)
        etag = None if former is None else former.etag
        await self.storage.put_control(MARKER_KEY, marker.encode(written), if_etag=etag)
        return written

    def _accepts(self, present: BucketMarker) -> bool:
        """Hold a marker against what is known, and set `trouble` if it is not ours."""
        identity = self._identity
        if identity is not None and (wrong := why_not_ours(owner_of(present), _own(identity))):
            self._refuse(*wrong)
            return False
        if self._marker is not None and (why := why_remade(_rows(self._marker), _rows(present))):
            self._refuse(MarkerReason.REMADE, why)
            return False
        return True

    async def _take(self, present: BucketMarker) -> None:
        """Go on with a marker that is in order, and keep its copy."""
        before, self._marker = self._marker, present
        if self._trouble is not None:
            log.info("bucket marker in order again", bucket=self.name, layouts=len(present.layouts))
        self._trouble = None
        self._judged.set()
        if before != present:
            await self._past.keep(present)

    def _refuse(self, reason: MarkerReason, why: str) -> StorageUnavailable:
        """Refuse the storage until a look finds its marker in order."""
        trouble = StorageUnavailable(
            f"{_marker_of(self.name)}: {why}; {_NEXT[reason]}",
            reason=reason.value,
            key=MARKER_KEY,
            bucket=self.name,
            retry=False,
        )
        if self._trouble is None or self._trouble.message != trouble.message:
            log.error("bucket marker refused", reason=reason.value, error=trouble.message)
            self.refused.ring()
        self._trouble = trouble
        self._judged.set()
        return trouble

    def _decoded(self, control: ControlObject) -> BucketMarker:
        """Return the marker; what is wrong with it is told with its place and a way out."""
        try:
            return _with_known_layouts(marker.decode_marker(control.data))
        except Malformed as error:
            kind, reason = type(error), _reason_of(error)
            raise kind(
                f"{_marker_of(self.name)}: {error.message}; {_NEXT[reason]}",
                reason=reason.value,
                key=MARKER_KEY,
                bucket=self.name,
            ) from error

    async def peek(self) -> BucketMarker | None:
        """Return the marker as it is, without making one; None if the storage has none yet.

        Asked before the event log is opened: a log that the marker names is never made anew.

        Raises:
            StorageUnavailable: the storage does not answer, which says nothing about a marker.
            Malformed: the marker is damaged or newer than this program.
        """
        await self.storage.open()
        control = await self.storage.get_control(MARKER_KEY)
        if control is None:
            return None
        fresh = self._decoded(control)
        if self._marker is not None and self._accepts(fresh):
            await self._take(as_known(fresh, self._marker))
        return fresh

    async def accept_loss(
        self,
        loss: AcceptedLoss,
        gaps: Collection[AcceptedGap] = (),
        *,
        cluster_id: str | None,
        partition_count: int | None = None,
        now_ms: int = 0,
    ) -> MarkerChange | None:
        """Keep an accepted loss in the marker, with a hold, and make its topic id the marker's.

        So is made the log's partition count, where it is given: who accepts the loss of all goes
        on with the log as it is.

        The hold keeps the objects whose events may be among what was lost, those of events of a
        clock like ours too, which says `now_ms`. The marker of another
        cluster than `cluster_id` is left alone. Where there is none, nobody can say that there was
        none before either: the one that `open` makes or finds later takes it. It is returned then,
        for this process may end before.

        Raises:
            StorageUnavailable: it was not written.
            Malformed: the marker is damaged or newer than this program.
        """
        hold = await self._as_young(
            Hold(
                metadata_partition=loss.metadata_partition,
                before_ms=max(loss.accepted_at_ms, now_ms),
                broker_id=loss.broker_id,
            )
        )
        accepted = _accepting(loss, gaps, hold, partition_count)
        if not await self._rewrite(accepted, cluster_id):
            self._unwritten.append(accepted)
            return accepted
        await self._hold_longer(hold, cluster_id)
        return None

    async def hold_all(self, now_ms: int, broker_id: int) -> None:
        """Hold everything that is there now, whatever the log says of it.

        Raises:
            StorageUnavailable: it was not written.
            Malformed: the marker is damaged or newer than this program.
        """
        hold = await self._as_young(
            Hold(metadata_partition=None, before_ms=now_ms, broker_id=broker_id)
        )
        await self._rewrite(
            lambda present: held_whole(present, hold.before_ms, hold.broker_id), None
        )
        await self._hold_longer(hold, None)

    async def _as_young(self, hold: Hold) -> Hold:
        """Return a hold that keeps the youngest object of any segment that is there now.

        It may be younger than now: the storage's clock was ahead when it was stored, as that of the
        event may have been that names it.

        Raises:
            StorageUnavailable: the storage does not answer.
            Malformed: the marker is damaged or newer than this program.
        """
        await self.storage.open()  # the start may not have reached it yet
        control = await self.storage.get_control(MARKER_KEY)
        rows = () if control is None else self._decoded(control).layouts
        layouts = [self._layout, *(Layout(row.prefix, row.kind) for row in rows)]
        youngest_ms = await newest_ms(self.storage, layouts)
        if youngest_ms is None:
            youngest_ms = hold.before_ms + UNKNOWN_MS
        return msgspec.structs.replace(hold, before_ms=max(hold.before_ms, youngest_ms))

    async def _hold_longer(self, hold: Hold, cluster_id: str | None) -> None:
        """Let a hold that was just written keep all that is there by the storage's own time.

        A machine that comes back with its clock behind would hold nothing of it.
        """
        before_ms = max(hold.before_ms, await self._written_ms())
        longer = msgspec.structs.replace(hold, before_ms=before_ms)
        await self._rewrite(
            lambda present: with_hold(present, longer),
            cluster_id,
        )

    async def _written_ms(self) -> int:
        """Return when the marker was written by the storage's own time; 0 where it lists nothing.

        The acceptance stands by then, so a listing that is denied or fails takes nothing back.
        """
        try:
            return await stored_ms(self.storage, MARKER_KEY) or 0
        except UnavailableError as error:
            log.warning("the storage's time is not known; a hold ends by ours", error=str(error))
            return 0

    async def end_holds(self, metadata_partition: int | None, *, cluster_id: str | None) -> None:
        """End the hold of one metadata partition, or (None) every one.

        Raises:
            StorageUnavailable: it was not written.
            Malformed: the marker is damaged or newer than this program.
        """
        await self._rewrite(lambda present: without_holds(present, metadata_partition), cluster_id)

    async def holds(self) -> tuple[Hold, ...]:
        """Return what may not be deleted.

        As the marker was last read: a daemon reads it before it goes on after a loss, and the hold
        is in it by then. Where there are holds it is read anew, for they may have been ended.

        Raises:
            StorageUnavailable: the marker was not read yet, or is another cluster's.
        """
        known = self._require().held
        if known:
            with suppress(StorageUnavailable, Malformed):
                known = (await self._refresh()).held
        return known

    async def name_log(
        self, topic_id: str, *, cluster_id: str | None, hold: Hold | None = None
    ) -> None:
        """Make a log the marker's, for everything that is known is in it.

        The marker of another cluster than `cluster_id` is left alone. `hold` is for a log that may
        lack what the one that the marker names held; it is not written for the same one.

        Raises:
            StorageUnavailable: it was not written.
            Malformed: the marker is damaged or newer than this program.
        """
        hold = None if hold is None else await self._as_young(hold)
        holds = False

        def named(present: BucketMarker) -> BucketMarker:
            nonlocal holds
            renamed = msgspec.structs.replace(present, metadata_topic_id=topic_id)
            holds = hold is not None and renamed != present
            if hold is None or renamed == present:
                return renamed
            return with_hold(renamed, hold)

        if await self._rewrite(named, cluster_id) and hold is not None and holds:
            await self._hold_longer(hold, cluster_id)

    async def _rewrite(
        self, change: Callable[[BucketMarker], BucketMarker], cluster_id: str | None
    ) -> bool:
        """Change the marker, against whoever else writes it; False if there is none as yet.

        Raises:
            StorageUnavailable: it was not written.
            Malformed: the marker is damaged or newer than this program.
        """
        await self.storage.open()  # the start may not have reached it yet
        for _ in range(RACES_MAX):
            control = await self.storage.get_control(MARKER_KEY)
            if control is None:
                if self._marker is not None or self._trouble is not None:
                    raise self._refuse(MarkerReason.NONE, "it is gone")
                return False  # the one that is made will name this log
            present = self._decoded(control)
            if cluster_id not in (None, present.cluster_id):
                return True
            wanted = change(as_known(present, self._marker))
            if marker.as_written(wanted) == marker.as_written(present):
                return True
            try:
                wanted = await self._put(wanted, control)
            except Conflict:
                continue
            if self._marker is not None and self._accepts(wanted):
                await self._take(wanted)
            return True
        raise StorageUnavailable(f"the bucket marker was written by others {RACES_MAX} times")

    def place_for_new(self, metadata: SegmentMetadata) -> SegmentPlace:
        """Return where a new copy goes.

        Raises:
            StorageUnavailable: the marker was not read yet, or is another cluster's.
        """
        self._require()
        assert self._number is not None, "settled together with the marker"
        return _place(self._number, self._layout, metadata)

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
        found = self._require()
        if not may_have_objects(metadata.partition):
            return []
        if facts is None or facts.layout_number > len(found.layouts):
            # Another daemon may have added a row since.
            found = await self._refresh()
        rows = [row for row in found.layouts if facts is None or row.number == facts.layout_number]
        if not rows:
            assert facts is not None, "every row, where none was recorded"
            raise StorageUnavailable(
                f"{_marker_of(self.name)} lacks layout {facts.layout_number}, which was recorded; "
                f"{_NEXT[MarkerReason.REMADE]}",
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
        self._require()
        return [Layout(row.prefix, row.kind) for row in (await self._refresh()).layouts]

    def _require(self) -> BucketMarker:
        if self._trouble is not None:
            raise StorageUnavailable(self._trouble.message, **self._trouble.fields)
        if self._marker is None:
            away = self._away
            if away is not None and away.fields.get("retry") is False:
                # Only a person can help: nobody's call is held until that happens.
                raise StorageUnavailable(away.message, **away.fields)
            raise StorageUnavailable(
                f"{_marker_of(self.name)} was not read yet; {_NEXT[MarkerReason.UNREAD]}",
                reason=MarkerReason.UNREAD.value,
                key=MARKER_KEY,
                bucket=self.name,
            )
        return self._marker

    async def _refresh(self) -> BucketMarker:
        await self.confirm()
        return self._require()

    async def _settle(self, identity: BucketIdentity) -> BucketMarker:
        """Read the marker, and write it where it lacks us; a lost race reads again."""
        for _ in range(RACES_MAX):
            began = asyncio.get_running_loop().time()
            control = await self.storage.get_control(MARKER_KEY)
            memory = await remembered(self._past, identity.cluster_id)
            if control is None:
                present = await self._made(identity, memory.kept)
            else:
                present = self._decoded_or_refused(control)
            known = self._marker or memory.kept
            self._require_ours(present, identity, known)
            whole = _whole(present, known)
            wanted, number = _with_layout(whole, self._layout)
            for change in self._unwritten:
                wanted = change(wanted)
            wanted = memory.put_into(wanted, identity.now_ms, identity.broker_id)
            try:
                if control is None or wanted is not present:
                    wanted = await self._put(wanted, control)
            except Conflict:
                continue
            self._unwritten.clear()
            self._number, self._looked_at = number, began
            await self._take(wanted)
            await self._written_with(memory)
            before = () if control is None else whole.held
            for hold in wanted.held:
                if hold not in before:
                    await self._hold_longer(hold, identity.cluster_id)
            return self._require()
        raise StorageUnavailable(f"the bucket marker was written by others {RACES_MAX} times")

    def _decoded_or_refused(self, control: ControlObject) -> BucketMarker:
        try:
            return self._decoded(control)
        except Malformed as error:
            self._refuse(_reason_of(error), _why(error))
            raise

    async def _written_with(self, memory: Remembered) -> None:
        """Forget what was owed, and tell of what is held as nobody can read it."""
        if memory.owes:
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
        if (why := why_not_made(await self._past.history())) is not None:
            raise self._refuse(MarkerReason.NONE, f"there is none, and {why}")
        fresh = BucketMarker(
            cluster_id=identity.cluster_id,
            partition_count=identity.partition_count,
            metadata_topic_id=identity.metadata_topic_id,
        )
        made = msgspec.structs.replace(
            recounted(kept or fresh, identity.partition_count),
            metadata_topic_id=identity.metadata_topic_id,
        )
        return made if self._vouched else await self._held_if_used(made, identity)

    async def _held_if_used(self, made: BucketMarker, identity: BucketIdentity) -> BucketMarker:
        """Return a marker that is made now, with a hold if segments may lie there already."""
        layouts = [*(Layout(row.prefix, row.kind) for row in made.layouts), self._layout]
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
        if (wrong := why_not_ours(owner_of(present), _own(identity))) is not None:
            reason, why = wrong
            self._refuse(reason, why)
            if reason is MarkerReason.DAMAGED:
                raise Malformed(f"{_marker_of(self.name)}: {why}; {_NEXT[reason]}")
            raise ConfigError(
                f"{why}; {_NEXT[reason]}",
                theirs=present.cluster_id,
                ours=identity.cluster_id,
            )
        if known is not None and (why_not := why_remade(_rows(known), _rows(present))):
            raise self._refuse(MarkerReason.REMADE, why_not)


def _whole(present: BucketMarker, known: BucketMarker | None) -> BucketMarker:
    """Return a marker with what was accepted since, and tell where it is an older one."""
    whole = as_known(present, known)
    if whole is not present:
        log.warning("bucket marker is an older one; what was accepted since is written again")
    return whole


def _marker_of(name: str) -> str:
    return f"bucket marker {MARKER_KEY}" + (f" in {name}" if name else "")


def _with_known_layouts(present: BucketMarker) -> BucketMarker:
    """Return it unless a row is one that no version wrote: a newer one's bear a newer format.

    Raises:
        Malformed: it is.
    """
    try:
        for row in present.layouts:
            Layout(row.prefix, row.kind)
    except InvalidArgument as error:
        raise Malformed(f"bucket marker: {error.message}") from error
    return present


def _reason_of(error: Malformed) -> MarkerReason:
    return MarkerReason.NEWER if isinstance(error, NewerMarker) else MarkerReason.DAMAGED


def _why(error: Malformed) -> str:
    """Return what is wrong, without the place and the way out that `_decoded` adds."""
    inner = error.__cause__
    return inner.message if isinstance(inner, Malformed) else error.message


def _own(identity: BucketIdentity) -> Owner:
    return Owner(cluster_id=identity.cluster_id, topic_id=identity.metadata_topic_id)


def _accepting(
    loss: AcceptedLoss, gaps: Collection[AcceptedGap], hold: Hold, partition_count: int | None
) -> MarkerChange:
    """Return what puts an accepted loss into a marker, once however often it is done."""

    def accepted(present: BucketMarker) -> BucketMarker:
        present = recounted(present, partition_count or present.partition_count)
        accepted = msgspec.structs.replace(
            present,
            metadata_topic_id=loss.topic_id,
            accepted_losses=tuple(dict.fromkeys((*present.accepted_losses, loss))),
            accepted_gaps=_joined([*present.gaps, *gaps]),
        )
        return with_hold(accepted, hold)

    return accepted


def _rows(present: BucketMarker) -> Rows:
    return [(row.kind, row.prefix) for row in present.layouts]


def _joined(gaps: Iterable[AcceptedGap]) -> tuple[AcceptedGap, ...]:
    """Return the same offsets in as few gaps as can be."""
    by_log: dict[tuple[str, int], list[LogRange]] = {}
    for gap in gaps:
        ranges = by_log.setdefault((gap.topic_id, gap.metadata_partition), [])
        ranges.append(LogRange(start=gap.start, end=gap.end))
    return tuple(
        AcceptedGap(topic_id=topic_id, metadata_partition=number, start=at.start, end=at.end)
        for (topic_id, number), ranges in sorted(by_log.items())
        for at in ranges_joined(ranges)
    )


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
