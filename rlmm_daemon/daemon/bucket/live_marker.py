"""Bucket marker as it was last read: judged, refused while it is not ours, and written anew."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import structlog

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import MARKER_KEY, BucketMarker, Hold, NewerMarker
from rlmm_daemon.core.disposal.holds import as_known, with_hold
from rlmm_daemon.core.readiness.marker_verdict import (
    IF_NONE,
    REBUILD,
    MarkerReason,
    Owner,
    Rows,
    owner_of,
    why_not_ours,
    why_remade,
)
from rlmm_daemon.core.storage.layout import Layout
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.bucket.storage_clock import stored_ms
from rlmm_daemon.domain.errors import (
    InvalidArgument,
    Malformed,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.ports.storage import Conflict, ControlObject, RemoteStorage

if TYPE_CHECKING:
    from rlmm_daemon.daemon.bucket.storage_past import StoragePast

#: Each lost race means that another daemon wrote its row, and there are few daemons.
RACES_MAX: Final = 50
#: What an operator does about a marker, by the reason.
NEXT_STEP: Final = {
    MarkerReason.UNREAD: "the daemon asks again by itself",
    MarkerReason.NONE: IF_NONE,
    MarkerReason.FOREIGN: "give this cluster a bucket or directory of its own",
    MarkerReason.DAMAGED: f"restore it, or run: {REBUILD}",
    MarkerReason.NEWER: "run the daemon's newer version",
    MarkerReason.REMADE: f"restore the former one, or run: {REBUILD}",
}

#: What a marker becomes by something that was accepted.
MarkerChange: TypeAlias = Callable[[BucketMarker], BucketMarker]

log = structlog.get_logger()


class BucketIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a fresh marker is made of; known once the event log is open."""

    cluster_id: str
    partition_count: int
    #: Kafka's uuid text of the metadata topic.
    metadata_topic_id: str
    #: Of the daemon that would make it, and when by its clock: for a hold on what is there already.
    broker_id: int = -1
    now_ms: int = 0


class LiveMarker:
    """The marker of one storage, as far as this daemon knows it; `Bucket` makes the first look."""

    def __init__(self, storage: RemoteStorage, name: str) -> None:
        """`name` is the bucket's or directory's, for people."""
        self.storage = storage
        self.name = name
        self._marker: BucketMarker | None = None
        self._identity: BucketIdentity | None = None
        #: None where the opener vouches that a storage without a marker was never used.
        self._past: StoragePast | None = None
        self._trouble: StorageUnavailable | None = None
        self._away: UnavailableError | None = None
        self._judged = asyncio.Event()
        #: Rung when a marker is found to be out of order, and for what other reason than before.
        self.refused = Broadcast()
        #: Held by the one look at the marker that is made at a time.
        self._looking = asyncio.Lock()
        self._looks = 0
        #: By the loop: the begin of the last look that ended with an answer.
        self._looked_at: float | None = None

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
    def in_order(self) -> bool:
        """Whether the marker was found to be ours, by the last look."""
        return self._marker is not None and self._trouble is None

    @property
    def trouble(self) -> StorageUnavailable | None:
        """What is wrong with the marker by the last look; None while nothing is known."""
        return self._trouble

    @property
    def away(self) -> UnavailableError | None:
        """Why the storage has not answered since the start; None once it did."""
        return self._away

    async def confirm(self, *, seconds: float = 0.0) -> None:
        """Make sure that the marker is still ours, by a look not older than so many seconds.

        With 0 the look begins after this call; those who wait together share one.

        Raises:
            StorageUnavailable: it is not, or the storage does not answer; or `open` has not judged
                yet whose it is, which a look alone can't.
        """
        if self._marker is None:
            with suppress(Malformed):  # a storage that is away says so itself
                await self.storage.get_control(MARKER_KEY)
            self.require()
        asked, now = self._looks, asyncio.get_running_loop().time()
        if self._looked_at is None or not seconds or self._looked_at < now - seconds:
            async with self._looking:
                if self._looks == asked or self._looked_at is None or self._looked_at < now:
                    await self._look()
        self.require()

    async def _look(self) -> None:
        """Read the marker and judge it; a good one is the one that counts from now on.

        Raises:
            StorageUnavailable: the storage does not answer, which says nothing about a marker.
        """
        self._looks += 1
        began = asyncio.get_running_loop().time()
        try:
            control = await self.storage.get_control(MARKER_KEY)
            present = None if control is None else self.decoded(control)
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
        whole = as_younger(present, self._marker)
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
        if identity is not None and (
            wrong := why_not_ours(owner_of(present), owner_who_asks(identity))
        ):
            self._refuse(*wrong)
            return False
        known = self._marker
        if known is not None and (why := why_remade(rows_of(known), rows_of(present))):
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
        if self._past is not None and before != present:
            await self._past.keep(present)

    def _refuse(self, reason: MarkerReason, why: str) -> StorageUnavailable:
        """Refuse the storage until a look finds its marker in order."""
        trouble = StorageUnavailable(
            f"{marker_named(self.name)}: {why}; {NEXT_STEP[reason]}",
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

    def decoded(self, control: ControlObject) -> BucketMarker:
        """Return the marker; what is wrong with it is told with its place and a way out."""
        try:
            return _with_known_layouts(marker.decode_marker(control.data))
        except Malformed as error:
            kind, reason = type(error), _reason_of(error)
            raise kind(
                f"{marker_named(self.name)}: {error.message}; {NEXT_STEP[reason]}",
                reason=reason.value,
                key=MARKER_KEY,
                bucket=self.name,
            ) from error

    def _decoded_or_refused(self, control: ControlObject) -> BucketMarker:
        try:
            return self.decoded(control)
        except Malformed as error:
            self._refuse(_reason_of(error), _why(error))
            raise

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
        fresh = self.decoded(control)
        if self._marker is not None and self._accepts(fresh):
            await self._take(as_known(fresh, self._marker))
        return fresh

    async def holds(self) -> tuple[Hold, ...]:
        """Return what may not be deleted.

        As the marker was last read: a daemon reads it before it goes on after a loss, and the hold
        is in it by then. Where there are holds it is read anew, for they may have been ended.

        Raises:
            StorageUnavailable: the marker was not read yet, or is another cluster's.
        """
        known = self.require().held
        if known:
            with suppress(StorageUnavailable, Malformed):
                known = (await self.refresh()).held
        return known

    async def hold_longer(self, hold: Hold, cluster_id: str | None) -> None:
        """Let a hold that was just written keep all that is there by the storage's own time.

        A machine that comes back with its clock behind would hold nothing of it.
        """
        before_ms = max(hold.before_ms, await self._written_ms())
        longer = msgspec.structs.replace(hold, before_ms=before_ms)
        await self.rewrite(lambda present: with_hold(present, longer), cluster_id)

    async def _written_ms(self) -> int:
        """Return when the marker was written by the storage's own time; 0 where it lists nothing.

        The acceptance stands by then, so a listing that is denied or fails takes nothing back.
        """
        try:
            return await stored_ms(self.storage, MARKER_KEY) or 0
        except UnavailableError as error:
            log.warning("the storage's time is not known; a hold ends by ours", error=str(error))
            return 0

    async def rewrite(
        self, change: Callable[[BucketMarker], BucketMarker], cluster_id: str | None
    ) -> bool:
        """Change the marker, against whoever else writes it; False if this cluster has none there.

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
            present = self.decoded(control)
            if cluster_id not in (None, present.cluster_id):
                return False  # another storage is this cluster's, or will be
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

    def require(self) -> BucketMarker:
        """Return the last marker that was in order.

        Raises:
            StorageUnavailable: it was not read yet, or is not in order.
        """
        if self._trouble is not None:
            raise StorageUnavailable(self._trouble.message, **self._trouble.fields)
        if self._marker is None:
            away = self._away
            if away is not None and away.fields.get("retry") is False:
                # Only a person can help: nobody's call is held until that happens.
                raise StorageUnavailable(away.message, **away.fields)
            raise StorageUnavailable(
                f"{marker_named(self.name)} was not read yet; {NEXT_STEP[MarkerReason.UNREAD]}",
                reason=MarkerReason.UNREAD.value,
                key=MARKER_KEY,
                bucket=self.name,
            )
        return self._marker

    async def refresh(self) -> BucketMarker:
        """Return the marker by a fresh look.

        Raises:
            StorageUnavailable: it is not in order, or the storage does not answer.
        """
        await self.confirm()
        return self.require()


def as_younger(present: BucketMarker, known: BucketMarker | None) -> BucketMarker:
    """Return a marker with what was accepted since, and tell where it is an older one."""
    whole = as_known(present, known)
    if whole is not present:
        log.warning("bucket marker is an older one; what was accepted since is written again")
    return whole


def marker_named(name: str) -> str:
    """Return what a message calls the marker of a bucket or directory."""
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
    """Return what is wrong, without the place and the way out that `decoded` adds."""
    inner = error.__cause__
    return inner.message if isinstance(inner, Malformed) else error.message


def owner_who_asks(identity: BucketIdentity) -> Owner:
    """Return whom a marker that this daemon makes names."""
    return Owner(cluster_id=identity.cluster_id, topic_id=identity.metadata_topic_id)


def rows_of(present: BucketMarker) -> Rows:
    """Return a marker's layouts by their numbers."""
    return [(row.kind, row.prefix) for row in present.layouts]
