"""Deleting what a plan says, batch by batch, each one checked again at the last moment.

Before each batch: the lease is renewed (so nobody else deletes), the log's tail since the plan is
read (a segment with any new event is dropped), and each object is looked at (gone, or another one
now: dropped). What was done, and what was dropped and why, goes to the audit log at once.
"""

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from rlmm_daemon.config import Config
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.ports.storage import RemoteStorage, Traffic, UploadInfo
from rlmm_daemon.reconcile import listing, log_reading
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.lease import Holder
from rlmm_daemon.reconcile.log_reading import LogSlice
from rlmm_daemon.reconcile.quarantine import Entry
from rlmm_daemon.reconcile.schema import Kind

PAUSE_SECONDS: Final = 30.0
Audit = Callable[[Mapping[str, object]], None]


@dataclass(slots=True, kw_only=True)
class Done:
    """What became of the entries."""

    deleted: int = 0
    deleted_bytes: int = 0
    failed: int = 0
    #: Reason -> number.
    dropped: dict[str, int] = field(default_factory=dict)


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
        audit: Audit,
    ) -> None:
        """`ends` are the offsets that the plan's log was read to, by metadata partition."""
        self._config, self._storage, self._lease = config, storage, lease
        self._safety, self._audit = safety, audit
        self._ends = dict(ends)
        self._touched: set[str] = set()
        #: Throttled requests, and all of them, when they were last looked at.
        self._seen = (0, 0)
        self.done = Done()

    async def delete(self, entries: Iterable[Entry]) -> Done:
        """Delete what still qualifies.

        Raises:
            LeaseHeld: the lease was lost; what follows is left alone.
            Incomplete: the log's tail could not be read, so nothing more is deleted.
        """
        rest = iter(entries)
        while batch := [*itertools.islice(rest, self._safety.batch_objects)]:
            await self._lease.renew()
            await self._read_tail()
            chosen = [entry for entry in batch if await self._stands(entry)]
            await self._delete(chosen)
            await asyncio.sleep(len(batch) / self._safety.deletes_per_second_max)
        return self.done

    async def _read_tail(self) -> None:
        """Learn of every segment that the log has named since the plan was made."""
        touched, ends = await asyncio.to_thread(tail, self._config, self._ends)
        self._touched |= touched
        self._ends = dict(ends)

    async def _stands(self, entry: Entry) -> bool:
        if entry.segment_id in self._touched:
            return self._drop(entry, "the log names its segment again")
        if entry.upload_id is not None:
            return True
        found = await asyncio.to_thread(listing.look_up, self._config, entry.key)
        if found is None:
            return self._drop(entry, "gone already")
        if (found.etag, found.modified_ms) != (entry.etag, entry.modified_ms):
            return self._drop(entry, "another object lies there now")
        return True

    def _drop(self, entry: Entry, reason: str) -> bool:
        self.done.dropped[reason] = self.done.dropped.get(reason, 0) + 1
        self._audit({"dropped": entry.key, "reason": reason, "fence": self._lease.fence})
        return False

    async def _delete(self, entries: Collection[Entry]) -> None:
        keys = [entry.key for entry in entries if entry.upload_id is None]
        outcomes: dict[str, RlmmError | None] = {}
        failed_before = self.done.failed
        if keys:
            outcomes.update(await self._storage.delete(keys))
        for entry in entries:
            error = await self._outcome(entry, outcomes)
            if error is None:
                self.done.deleted += 1
                self.done.deleted_bytes += entry.size
            else:
                self.done.failed += 1
            self._audit(
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
        self, entry: Entry, outcomes: Mapping[str, RlmmError | None]
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


def tail(config: Config, ends: Mapping[int, int]) -> tuple[set[str], Mapping[int, int]]:
    """Return the ids of segments that the log names behind `ends`, and where it ends now.

    Raises:
        Incomplete: a partition did not answer, or was cut.
    """
    now = log_reading.view(config)
    fresh = {number: now.ranges[number].end for number in ends if number in now.ranges}
    lost = sorted(number for number in ends if fresh.get(number, -1) < ends[number])
    if lost:
        raise Incomplete(f"metadata partitions {lost} end earlier than before, or don't answer")
    return {*_named(config, now, ends, fresh)}, fresh


def _named(
    config: Config,
    now: log_reading.LogView,
    ends: Mapping[int, int],
    fresh: Mapping[int, int],
) -> Iterator[str]:
    for number, begin in ends.items():
        if fresh[number] == begin:
            continue
        part = LogSlice(
            number=number,
            begin=begin,
            end=fresh[number],
            partition_count=now.identity.partition_count,
        )
        for batch in log_reading.read(config, part):
            kinds = batch["kind"].to_pylist()
            for kind, segment_id in zip(kinds, batch["segment_id"].to_pylist(), strict=True):
                if kind == Kind.UNREADABLE:
                    raise Incomplete(f"metadata partition {number} has a record that is no event")
                if segment_id is not None:
                    yield segment_id
