"""Deleting what a plan says, batch by batch, each one checked again at the last moment.

Before each batch: the guards are asked again and what was restored is dropped, the lease is renewed
(so nobody else deletes), the log's tail since the plan is read (a segment with any new event is
dropped), and each object is looked at (gone, or another one now: dropped). What is about to be
deleted is in the audit log before it is, and what became of it right after.

Between that look and the delete lie seconds, at most half of a lease, in which no object of a
segment begins anew: Kafka draws a new id for every copy, and only `rlmm log repair`, run right then
for a segment that the tail did not name yet, could put something under one of these keys.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, runtime_checkable

import msgspec

from rlmm_daemon.config import Config
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.ports.storage import RemoteStorage, Traffic, UploadInfo
from rlmm_daemon.reconcile.act import quarantine
from rlmm_daemon.reconcile.act.last_look import Seen
from rlmm_daemon.reconcile.act.lease import Holder
from rlmm_daemon.reconcile.act.quarantine import CondemnedObject, Manifest, Name
from rlmm_daemon.reconcile.read import late_events, listing
from rlmm_daemon.reconcile.read.log_reading import LogView

PAUSE_SECONDS: Final = 30.0
GONE: Final = "gone already"
#: Objects that are looked at side by side.
_LOOKS_AT_ONCE: Final = 16
#: Writes lines down, all of them on disk when it returns.
Audit = Callable[[Iterable[Mapping[str, object]]], None]


class Done(msgspec.Struct, kw_only=True):
    """What became of the entries."""

    deleted: int = 0
    deleted_bytes: int = 0
    failed: int = 0
    #: Reason -> number.
    dropped: dict[str, int] = msgspec.field(default_factory=dict)


@runtime_checkable
class _Counting(Protocol):
    """A storage that counts its requests."""

    def traffic(self) -> Traffic: ...


class Executor:
    """Deletes under a lease."""

    def __init__(
        self,
        config: Config,
        storage: RemoteStorage,
        lease: Holder,
        *,
        safety: Safety,
        ends: Mapping[int, int],
        look: Callable[[], Awaitable[Seen]],
        audit: Audit,
    ) -> None:
        """`ends` are the offsets that the plan's log was read to, by metadata partition."""
        self._config, self._storage, self._lease = config, storage, lease
        self._safety, self._audit, self._look = safety, audit, look
        self._ends = dict(ends)
        self._touched: set[str] = set()
        #: Throttled requests, and all of them, when they were last looked at.
        self._seen = (0, 0)
        self.done = Done()

    async def delete(self, entries: Iterable[CondemnedObject]) -> Done:
        """Delete what still qualifies.

        Raises:
            LeaseHeld: the lease was lost; what follows is left alone.
            Refused: a guard speaks against it by now.
            Incomplete: the log's tail could not be read, so nothing more is deleted.
        """
        rest = iter(entries)
        while batch := [*itertools.islice(rest, self._safety.batch_objects)]:
            seen = await self._look()
            await self._lease.renew()
            await self._read_tail(seen.log)
            kept = quarantine.kept(seen.manifests)
            reasons = await asyncio.to_thread(self._reasons, batch, kept)
            chosen = [entry for entry, reason in zip(batch, reasons, strict=True) if not reason]
            self._lease.check()
            self._note_all(zip(batch, reasons, strict=True))
            await self._delete(chosen)
            await asyncio.sleep(len(batch) / self._safety.deletes_per_second_max)
        return self.done

    async def _read_tail(self, now: LogView) -> None:
        """Learn of every segment that the log has named since the plan was made."""
        touched, ends = await asyncio.to_thread(late_events.tail, self._config, self._ends, now)
        self._touched |= touched
        self._ends = dict(ends)

    def _reasons(self, batch: Sequence[CondemnedObject], kept: Mapping[Name, str]) -> list[str]:
        """Return for each entry why it is left alone; "": it is not."""
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as workers:
            return [*workers.map(lambda entry: self._reason(entry, kept), batch)]

    def _reason(self, entry: CondemnedObject, kept: Mapping[Name, str]) -> str:
        if reason := kept.get(entry.name):
            return reason
        if entry.segment_id in self._touched:
            return "the log names its segment again"
        if entry.upload_id is not None:
            return ""
        return what_changed(self._config, entry)

    def _note_all(self, reasons: Iterable[tuple[CondemnedObject, str]]) -> None:
        """Say in the audit log what is left alone, and what is about to be deleted."""
        lines: list[Mapping[str, object]] = []
        for entry, reason in reasons:
            if reason:
                self.done.dropped[reason] = self.done.dropped.get(reason, 0) + 1
            told = {"dropped": entry.key, "reason": reason} if reason else {"deleting": entry.key}
            lines.append({**told, "upload_id": entry.upload_id, "fence": self._lease.fence})
        self._audit(lines)

    async def _delete(self, entries: Sequence[CondemnedObject]) -> None:
        keys = [entry.key for entry in entries if entry.upload_id is None]
        outcomes: dict[str, RlmmError | None] = {}
        failed_before = self.done.failed
        lines: list[Mapping[str, object]] = []
        if keys:
            # Half of the lease is left (`Holder.check`): what takes longer is somebody else's.
            async with asyncio.timeout(self._safety.lease_seconds / 2):
                before, self._lease.unanswered = self._lease.unanswered, True
                outcomes.update(await self._storage.delete(keys))
            self._lease.unanswered = before or any(map(outcomes.get, keys))
        for entry in entries:
            error = await self._outcome(entry, outcomes)
            if error is None:
                self.done.deleted += 1
                self.done.deleted_bytes += entry.size
            else:
                self.done.failed += 1
            lines.append(
                {
                    "deleted": entry.key,
                    "upload_id": entry.upload_id,
                    "etag": entry.etag,
                    "bytes": entry.size,
                    "kind": entry.kind,
                    "fence": self._lease.fence,
                    "error": None if error is None else error.message,
                }
            )
        self._audit(lines)
        failed_share = (self.done.failed - failed_before) / max(len(entries), 1)
        if max(failed_share, self._throttled_share()) > self._safety.throttled_share_max:
            await asyncio.sleep(PAUSE_SECONDS)

    def _throttled_share(self) -> float:
        """Return which share of the requests since the last look was told to come less often.

        A delete that was throttled and then done is no failure, so only the storage can say it.
        """
        if not isinstance(self._storage, _Counting):
            return 0.0
        traffic = self._storage.traffic()
        now = traffic.throttled, sum(traffic.requests.values())
        throttled, requests = (
            after - before for after, before in zip(now, self._seen, strict=True)
        )
        self._seen = now
        return throttled / max(requests, 1)

    async def _outcome(
        self, entry: CondemnedObject, outcomes: Mapping[str, RlmmError | None]
    ) -> RlmmError | None:
        if entry.upload_id is None:
            return outcomes.get(entry.key)
        upload = UploadInfo(
            key=entry.key, upload_id=entry.upload_id, initiated_ms=entry.modified_ms
        )
        try:
            await self._storage.abort_upload(upload)
        except RlmmError as error:
            return error
        return None


def what_changed(config: Config, entry: CondemnedObject) -> str:
    """Return what has become of the object that an entry names; "": it is there as it was."""
    found = listing.look_up(config, entry.key)
    if found is None:
        return GONE
    # No answer to HEAD has milliseconds.
    if (found.etag, found.modified_ms // 1_000) != (entry.etag, entry.modified_ms // 1_000):
        return "another object lies there now"
    return ""


def left(config: Config, manifest: Manifest) -> int:
    """Return how many of a manifest's objects it still speaks of; uploads are not looked for."""
    found = changes(config, manifest.entries).values()
    return sum(change != GONE if manifest.kept else not change for change in found)


def changes(config: Config, entries: Iterable[CondemnedObject]) -> Mapping[str, str]:
    """Return what has become of each object, by its key; uploads are not looked for."""
    objects = [entry for entry in entries if entry.upload_id is None]
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as workers:
        found = workers.map(lambda entry: what_changed(config, entry), objects)
        return {entry.key: each for entry, each in zip(objects, found, strict=True)}
