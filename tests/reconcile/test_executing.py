"""The last look before a delete: each thing that must stop it is tried, on a real log."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.codec import records
from rlmm_daemon.config import load
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.ports.storage import Traffic
from rlmm_daemon.reconcile import control, executing, listing, log_reading
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.lease import Holder, LeaseHeld
from rlmm_daemon.reconcile.quarantine import Entry
from tests.reconcile.world import DAY, World

NOW = 1_800_000_000_000
SAFETY = Safety(batch_objects=1, deletes_per_second_max=1_000)


class Site:
    """A world on disk with one orphan, and what deletes it."""

    def __init__(self, home: Path) -> None:
        self.world = World(home, NOW)
        self.live = self.world.live()
        self.world.store(self.live)
        self.orphan = self.world._orphan(20 * DAY)
        self.world.write_log()
        self.world.write_local()
        self.config = load(home / "rlmm.toml")
        seen = log_reading.view(self.config)
        self.ends = {number: known.end for number, known in seen.ranges.items()}
        self.lines: list[Any] = []
        self.now_ms = NOW

    def entries(self, segment: SegmentMetadata) -> list[Entry]:
        found = []
        for key in sorted(self.world.objects):
            if uuid_text(segment.segment_id) in key:
                listed = listing.look_up(self.config, key)
                assert listed is not None
                found.append(
                    Entry(
                        key=key, size=listed.size, etag=listed.etag, kind="orphan_object",
                        modified_ms=listed.modified_ms, segment_id=uuid_text(segment.segment_id),
                    )
                )  # fmt: skip
        return found

    def there(self, entry: Entry) -> bool:
        return (self.world.home / "remote" / entry.key).exists()

    def delete(self, entries: list[Entry], **more: Any) -> executing.Done:
        return asyncio.run(self._delete(entries, **more))

    async def _delete(
        self, entries: list[Entry], *, thief: bool = False, through: Any = None
    ) -> executing.Done:
        async with control.opened(self.config) as storage:
            lease = Holder(storage, owner="a", seconds=300, now_ms=lambda: self.now_ms)
            await lease.acquire()
            if thief:
                self.now_ms += 301_000
                other = Holder(storage, owner="b", seconds=300, now_ms=lambda: self.now_ms)
                await other.acquire()
            asked: Any = through(storage) if through else storage
            executor = executing.Executor(
                self.config, asked, lease, safety=SAFETY, ends=self.ends, audit=self.lines.append
            )
            return await executor.delete(entries)


class Failing:
    """A storage that asks for fewer requests."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def delete(self, keys: list[str]) -> dict[str, RlmmError | None]:
        return dict.fromkeys(keys, StorageUnavailable("SlowDown"))


class Throttled:
    """A storage that made five requests, so many of them throttled, and does what it is asked."""

    def __init__(self, inner: Any, throttled: int) -> None:
        self._inner, self._throttled = inner, throttled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def traffic(self) -> Traffic:
        return Traffic(
            requests={("delete", "ok"): 5},
            retries={},
            retry_budget=1.0,
            throttled=self._throttled,
            in_flight={},
            in_flight_max={},
            uploads_left=0,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_what_still_qualifies_is_deleted_and_the_audit_says_so(site: Site) -> None:
    entries = site.entries(site.orphan)
    done = site.delete(entries)
    assert (done.deleted, done.failed, done.dropped) == (len(entries), 0, {})
    assert not any(map(site.there, entries))
    assert [line["deleted"] for line in site.lines] == [entry.key for entry in entries]
    assert {line["fence"] for line in site.lines} == {1}


def test_a_segment_that_the_log_names_again_is_spared(site: Site) -> None:
    entries = site.entries(site.orphan)
    site.world.events = [(site.orphan.partition, records.encode(site.orphan))]
    site.world.write_log()
    done = site.delete(entries)
    assert (done.deleted, done.dropped) == (0, {"the log names its segment again": len(entries)})
    assert all(map(site.there, entries))


def test_another_object_under_the_same_key_is_spared(site: Site) -> None:
    first, *others = site.entries(site.orphan)
    path = site.world.home / "remote" / first.key
    path.write_bytes(b"a newer one")
    done = site.delete([first, *others])
    assert done.dropped == {"another object lies there now": 1}
    assert site.there(first)
    assert done.deleted == len(others)


def test_what_is_gone_already_is_no_failure(site: Site) -> None:
    first, *others = site.entries(site.orphan)
    (site.world.home / "remote" / first.key).unlink()
    done = site.delete([first, *others])
    assert (done.dropped, done.failed) == ({"gone already": 1}, 0)


def test_nothing_is_deleted_under_a_lease_that_was_lost(site: Site) -> None:
    entries = site.entries(site.orphan)
    with pytest.raises(LeaseHeld, match="another run took"):
        site.delete(entries, thief=True)
    assert all(map(site.there, entries))


def test_nothing_is_deleted_while_the_logs_tail_can_not_be_read(site: Site) -> None:
    entries = site.entries(site.orphan)
    site.ends = {number: end + 1 for number, end in site.ends.items()}  # the log was cut
    with pytest.raises(Incomplete, match="end earlier than before"):
        site.delete(entries)
    assert all(map(site.there, entries))


def test_nothing_is_deleted_behind_a_record_that_is_no_event(site: Site) -> None:
    entries = site.entries(site.orphan)
    site.world.events = [(site.orphan.partition, b"garbage")]
    site.world.write_log()
    with pytest.raises(Incomplete, match="no event"):
        site.delete(entries)
    assert all(map(site.there, entries))


def test_a_storage_that_asks_for_less_is_given_a_pause(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    entries = site.entries(site.orphan)
    done = site.delete(entries, through=Failing)
    assert (done.deleted, done.failed) == (0, len(entries))
    assert slept.count(executing.PAUSE_SECONDS) == len(entries)
    assert slept.count(1 / SAFETY.deletes_per_second_max) == len(entries), "the rate, as ever"
    assert all(map(site.there, entries))


@pytest.mark.parametrize(("throttled", "pauses"), [(1, 0), (2, 1)])
def test_deletes_that_were_throttled_and_done_make_a_pause_too(
    site: Site, monkeypatch: pytest.MonkeyPatch, throttled: int, pauses: int
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    entries = site.entries(site.orphan)
    done = site.delete(entries, through=lambda inner: Throttled(inner, throttled))
    assert (done.deleted, done.failed) == (len(entries), 0)
    # Only the first batch was throttled: what was seen before does not count again.
    assert slept.count(executing.PAUSE_SECONDS) == pauses
