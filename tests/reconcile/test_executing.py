"""The last look before a delete: each thing that must stop it is tried, on a real log."""

import asyncio
import json
import shutil
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.cli.group import main as rlmm
from rlmm_daemon.codec import marker, records
from rlmm_daemon.codec.marker import AcceptedLoss
from rlmm_daemon.config import Config, load
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.segment import SegmentMetadata
from rlmm_daemon.ports.storage import Traffic, UploadInfo
from rlmm_daemon.reconcile import control, storage_time
from rlmm_daemon.reconcile.act import deletions, lease, object_tags, quarantine
from rlmm_daemon.reconcile.act.last_look import LastLook
from rlmm_daemon.reconcile.act.lease import LEASE_KEY, Holder, LeaseHeld
from rlmm_daemon.reconcile.act.quarantine import CondemnedObject
from rlmm_daemon.reconcile.act.steps import Actor
from rlmm_daemon.reconcile.errors import Incomplete, Refused
from rlmm_daemon.reconcile.read import listing, log_reading
from rlmm_daemon.reconcile.report.summary import Night
from tests.reconcile.world import CLUSTER, DAY, HOUR, World
from tests.support.manifests import write_manifests

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

    def entries(self, segment: SegmentMetadata) -> list[CondemnedObject]:
        found = []
        for key in sorted(self.world.objects):
            if uuid_text(segment.segment_id) in key:
                listed = listing.look_up(self.config, key)
                assert listed is not None
                found.append(
                    CondemnedObject(
                        key=key, size=listed.size, etag=listed.etag, kind="orphan_object",
                        modified_ms=listed.modified_ms, segment_id=uuid_text(segment.segment_id),
                    )
                )  # fmt: skip
        return found

    def act(
        self, condemned: list[CondemnedObject], settled: Collection[str] = (), **more: Any
    ) -> Night:
        """Carry out what a night condemned, as it does itself."""
        night = Night(run="r2", cluster=CLUSTER, listed_at_ms=NOW, execute=True)
        night.objects, night.object_bytes = 10_000, 10**12
        actor = Actor(
            daemon=self.config,
            safety=SAFETY,
            night=night,
            directory=self.world.home,
            now_ms=NOW,
            ends=self.ends,
            **more,
        )
        asyncio.run(actor._carry_out(condemned, settled))
        return night

    def quarantined(self, entries: list[CondemnedObject], run: str = "r1") -> str:
        """Leave a manifest that is old enough for its entries to be deleted."""
        made = quarantine.manifests_of(run, 1, NOW - 169 * HOUR, entries)
        (name,) = asyncio.run(self._with(lambda storage: write_manifests(storage, made)))
        return str(name)

    def manifests(self) -> set[str]:
        return {*asyncio.run(self._with(lambda storage: quarantine.Manifests(storage).now()))}

    def audit(self, word: str) -> list[dict[str, Any]]:
        lines = map(json.loads, (self.world.home / "audit.jsonl").read_text().splitlines())
        return [line for line in lines if word in line]

    def restore(self, name: str) -> None:
        asyncio.run(self._with(lambda storage: quarantine.restore(storage, name)))

    async def _with(self, work: Any) -> Any:
        async with control.opened(self.config) as storage:
            return await work(storage)

    def there(self, entry: CondemnedObject) -> bool:
        return (self.world.home / "remote" / entry.key).exists()

    def delete(self, entries: list[CondemnedObject], **more: Any) -> deletions.Done:
        return asyncio.run(self._delete(entries, **more))

    async def _delete(
        self,
        entries: list[CondemnedObject],
        *,
        thief: bool = False,
        through: Any = None,
        safety: Safety = SAFETY,
        release: bool = False,
    ) -> deletions.Done:
        async with control.opened(self.config) as storage:
            hold = Holder(storage, owner="a", seconds=300, now_ms=lambda: self.now_ms)
            await hold.acquire()
            if thief:
                self.now_ms += 301_000
                other = Holder(storage, owner="b", seconds=300, now_ms=lambda: self.now_ms)
                await other.acquire()
            asked: Any = through(storage) if through else storage
            executor = deletions.Executor(
                self.config,
                asked,
                hold,
                safety=safety,
                ends=self.ends,
                look=LastLook(self.config, storage, started_ms=NOW),
                audit=self.lines.extend,
            )
            done = await executor.delete(entries)
            if release:
                await hold.release()
            return done


class Passing:
    """A storage that does what it is asked."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Failing(Passing):
    """A storage that asks for fewer requests."""

    async def delete(self, keys: list[str]) -> dict[str, RlmmError | None]:
        return dict.fromkeys(keys, StorageUnavailable("SlowDown"))


class Throttled(Passing):
    """A storage that made five requests, so many of them throttled, and does what it is asked."""

    def __init__(self, inner: Any, throttled: int) -> None:
        super().__init__(inner)
        self._throttled = throttled

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
    told = [(word, line[word]) for line in site.lines for word in ("deleting", "deleted")
            if word in line]  # fmt: skip
    assert told == [(word, entry.key) for entry in entries for word in ("deleting", "deleted")]
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


def test_a_lease_that_was_given_back_is_free_to_a_run_whose_clock_is_behind(site: Site) -> None:
    """Each run reads the storage's time itself, and that is told by the second."""

    now_ms = storage_time.wall_ms()

    async def two() -> int:
        async with control.opened(site.config) as storage:
            before = Holder(storage, owner="a", seconds=300, now_ms=lambda: now_ms + 999)
            await before.acquire()
            await before.release()
            after = Holder(storage, owner="b", seconds=300, now_ms=lambda: now_ms)
            await after.acquire()
            return after.fence

    assert asyncio.run(two()) == 2


class Unanswered(BaseException):
    """What ends a run while it waits for the storage."""


@pytest.mark.parametrize("told", ["nothing", "an error", "all is well"])
def test_a_run_with_a_delete_that_may_still_land_keeps_the_lease_until_it_runs_out(
    site: Site, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """A restore waits for the lease: given back, it would look before that delete lands."""
    (first, *_) = site.entries(site.orphan)
    site.quarantined([first])
    known = LocalStorage.delete

    async def delete(self: LocalStorage, keys: list[str]) -> Mapping[str, RlmmError | None]:
        if told == "nothing":
            raise Unanswered
        failed: dict[str, RlmmError | None] = dict.fromkeys(keys, StorageUnavailable("time-out"))
        return failed if told == "an error" else await known(self, keys)

    monkeypatch.setattr(LocalStorage, "delete", delete)
    monkeypatch.setattr(deletions, "PAUSE_SECONDS", 0)
    try:
        site.act([first])
    except Unanswered:
        assert told == "nothing"
    found = asyncio.run(site._with(lease.look))
    assert found is not None
    assert (found.ends_ms > storage_time.wall_ms()) is (told != "all is well")


class Slow:
    """A storage, and a clock that moves on while its objects are looked at."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
        self._site, self._seconds, self._look_up = site, seconds, listing.look_up
        self._lock = threading.Lock()
        monkeypatch.setattr(listing, "look_up", self._slowly)

    def _slowly(self, *asked: Any) -> Any:
        with self._lock:
            self._site.now_ms += self._seconds * 1_000
        return self._look_up(*asked)


@pytest.mark.parametrize(("seconds", "deleted"), [(100, True), (151, False), (301, False)])
def test_a_lease_that_runs_out_while_objects_are_looked_at_stops_the_batch(
    site: Site, monkeypatch: pytest.MonkeyPatch, seconds: int, *, deleted: bool
) -> None:
    first, *_ = site.entries(site.orphan)
    Slow(site, monkeypatch, seconds)
    if deleted:
        assert site.delete([first]).deleted == 1
    else:
        with pytest.raises(LeaseHeld, match="raise lease_seconds"):
            site.delete([first])
        assert [line for line in site.lines if "deleting" in line] == []
    assert site.there(first) is not deleted


def test_what_is_restored_between_two_batches_is_spared(site: Site) -> None:
    first, second, *_ = site.entries(site.orphan)
    name = site.quarantined([first, second])

    class Restoring(Passing):
        async def delete(self, keys: list[str]) -> Any:
            await quarantine.restore(self._inner, name)
            return await self._inner.delete(keys)

    done = site.delete([first, second], through=Restoring)
    assert (done.deleted, done.dropped) == (1, {"its manifest was restored": 1})
    assert (site.there(first), site.there(second)) == (False, True)


def test_what_was_restored_since_the_night_began_is_not_deleted(site: Site) -> None:
    entries = site.entries(site.orphan)
    name = site.quarantined(entries)
    site.restore(name)
    night = site.act(entries)
    assert (night.deleted, night.quarantined, night.dropped) == (0, 0, {})
    assert all(map(site.there, entries))


def test_a_night_deletes_what_is_due_and_quarantines_what_is_new(site: Site) -> None:
    first, *others = site.entries(site.orphan)
    site.quarantined([first])
    night = site.act([first, *others])
    assert (night.deleted, night.quarantined) == (1, len(others))
    assert [site.there(each) for each in (first, *others)] == [False] + [True] * len(others)
    audit = (site.world.home / "audit.jsonl").read_text()
    lines = [json.loads(line) for line in audit.splitlines()]
    assert [each["deleting"] for each in lines if "deleting" in each] == [first.key]
    assert [each["deleted"] for each in lines if "deleted" in each] == [first.key]
    (name,) = night.manifests
    for word in ("quarantining", "quarantined"):
        told = [(each[word], each["manifest"]) for each in lines if word in each]
        assert told == [(each.key, name) for each in others]


def test_what_is_quarantined_is_in_the_audit_log_before_its_manifest_is_there(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *others = site.entries(site.orphan)
    assert others
    monkeypatch.setattr(quarantine, "MANIFEST_BYTES_MAX", 1)  # one each
    put = LocalStorage.put_control

    async def dying(self: LocalStorage, key: str, data: bytes, *, if_etag: str | None) -> str:
        if key.endswith("-002.json"):
            raise KeyboardInterrupt
        return await put(self, key, data, if_etag=if_etag)

    monkeypatch.setattr(LocalStorage, "put_control", dying)
    with pytest.raises(KeyboardInterrupt):
        site.act([first, second, *others])
    assert [line["quarantining"] for line in site.audit("quarantining")] == [first.key, second.key]
    assert [line["quarantined"] for line in site.audit("quarantined")] == [first.key]
    assert site.manifests() == {"r2-001.json"}


@pytest.mark.parametrize("restored", [False, True])
def test_a_manifest_goes_only_when_none_of_its_objects_is_seen(
    site: Site, *, restored: bool
) -> None:
    entries = site.entries(site.orphan)
    name, other = site.quarantined(entries), site.quarantined(site.entries(site.live), run="r0")
    if restored:
        site.restore(name)
    # The listing did not show them, for one an inventory of another prefix: that is a hint only.
    site.act([], [name, "never.json"])
    assert site.manifests() == {name, other}
    for each in entries[:-1]:
        (site.world.home / "remote" / each.key).unlink()
    site.act([], [name])
    assert site.manifests() == {name, other}
    last = site.world.home / "remote" / entries[-1].key
    last.write_bytes(b"another object")
    site.act([], [name])
    assert site.manifests() == ({name, other} if restored else {other}), "spared in any state"
    last.unlink()
    site.act([], [name] if restored else [])
    assert site.manifests() == {other}
    (line,) = site.audit("removing_manifest")
    assert (line["removing_manifest"], line["restored"]) == (name, restored)
    assert [line["error"] for line in site.audit("removed_manifest")] == [None]
    site.act([], [name])
    assert len(site.audit("removing_manifest")) == 1, "once more is harmless"


def test_a_night_that_is_killed_while_manifests_go_is_ended_by_the_next(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = site.entries(site.orphan)
    names = [site.quarantined([each], run=f"r{at}") for at, each in enumerate(entries)]
    for each in entries:
        (site.world.home / "remote" / each.key).unlink()
    removals: list[str] = []
    delete = LocalStorage.delete

    async def dying(self: LocalStorage, keys: list[str]) -> Any:
        done = await delete(self, keys)
        removals.extend(keys)
        if len(removals) == 2:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(LocalStorage, "delete", dying)
    with pytest.raises(KeyboardInterrupt):
        site.act([], names)
    assert site.manifests() == {*names[2:]}
    assert len(site.audit("removing_manifest")) == 2, "said before it is done"
    site.act([], names)
    assert site.manifests() == set()


def test_a_guard_that_speaks_against_it_by_now_stops_the_night(site: Site) -> None:
    entries = site.entries(site.orphan)
    site.quarantined(entries)
    given_up = AcceptedLoss(
        metadata_partition=None, topic_id="x", accepted_at_ms=NOW + 1, broker_id=1
    )
    known = msgspec.structs.replace(given_up, accepted_at_ms=NOW - DAY)
    of_world = site.world.marker()
    for name, before, after, reason in (
        ("daemons/1.json", site.world.presence(), site.world.presence(state="failed"), "is failed"),
        ("daemons/1.json", site.world.presence(), site.world.presence(ahead=1), "the log ends at"),
        (
            "marker.json",
            msgspec.structs.replace(of_world, accepted_losses=(known,)),
            msgspec.structs.replace(of_world, accepted_losses=(known, given_up)),
            "a loss of events was accepted",
        ),
    ):
        site.world.write_control(name, marker.encode(after))
        with pytest.raises(Refused, match=reason):
            site.act(entries)
        site.world.write_control(name, marker.encode(before))
    assert all(map(site.there, entries))
    assert site.act(entries).deleted == len(entries)


def test_a_log_that_was_made_anew_stops_the_night_though_it_is_longer(site: Site) -> None:
    entries = site.entries(site.orphan)
    shutil.rmtree(site.world.home / "log")
    site.world.events = [*site.world.events] * 3
    site.world.write_log()
    with pytest.raises(Refused, match="it was recreated"):
        site.delete(entries)
    assert all(map(site.there, entries))


def test_a_log_of_another_cluster_stops_the_night_whatever_the_configuration_says(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = log_reading.view

    def foreign(config: Config) -> log_reading.LogView:
        seen = view(config)
        identity = msgspec.structs.replace(seen.identity, cluster_id="another")
        return msgspec.structs.replace(seen, identity=identity)

    monkeypatch.setattr(log_reading, "view", foreign)
    with pytest.raises(Refused, match="this is 'another'"):
        site.delete(site.entries(site.orphan))
    assert all(map(site.there, site.entries(site.orphan)))


@pytest.mark.parametrize("named", [False, True])
def test_an_upload_is_aborted_unless_the_log_names_its_segment(site: Site, *, named: bool) -> None:
    aborted: list[UploadInfo] = []

    class Aborting(Passing):
        async def abort_upload(self, upload: UploadInfo) -> None:
            aborted.append(upload)

    segment_id = uuid_text(site.orphan.segment_id)
    upload = CondemnedObject(key="k", size=0, etag="", modified_ms=7, kind="incomplete_upload",
                   segment_id=segment_id, upload_id="u")  # fmt: skip
    if named:
        site.world.events = [(site.orphan.partition, records.encode(site.orphan))]
        site.world.write_log()
    done = site.delete([upload], through=Aborting)
    assert aborted == ([] if named else [UploadInfo(key="k", upload_id="u", initiated_ms=7)])
    assert done.dropped == ({"the log names its segment again": 1} if named else {})
    assert [(line["deleted"], line["upload_id"]) for line in site.lines if "deleted" in line] == (
        [] if named else [("k", "u")]
    )


def test_an_upload_that_can_not_be_aborted_is_a_failure_that_is_told(site: Site) -> None:
    class Refusing(Passing):
        async def abort_upload(self, upload: UploadInfo) -> None:
            raise StorageUnavailable(f"no {upload.upload_id}")

    upload = CondemnedObject(
        key="k", size=0, etag="", modified_ms=7, kind="incomplete_upload", upload_id="u"
    )
    lenient = msgspec.structs.replace(SAFETY, throttled_share_max=1.0)
    done = site.delete([upload], through=Refusing, safety=lenient)
    assert (done.deleted, done.failed) == (0, 1)
    assert [line["error"] for line in site.lines if "deleted" in line] == ["no u"]


def test_a_listing_of_milliseconds_names_what_an_answer_of_seconds_does(site: Site) -> None:
    """MinIO and Ceph list milliseconds; Last-Modified of a HEAD has none."""
    first, *_ = site.entries(site.orphan)
    listed = msgspec.structs.replace(first, modified_ms=first.modified_ms // 1_000 * 1_000 + 999)
    moved = msgspec.structs.replace(first, modified_ms=first.modified_ms + 1_000)
    done = site.delete([moved, listed])
    assert (done.deleted, done.dropped) == (1, {"another object lies there now": 1})


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
    assert slept.count(deletions.PAUSE_SECONDS) == len(entries)
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
    assert slept.count(deletions.PAUSE_SECONDS) == pauses


def restoring(site: Site, name: str) -> tuple[int, str]:
    """Run the command and return its exit code and what it said."""
    file = site.world.home / "reconcile.toml"
    file.write_text(f'daemon_config = "{site.world.home}/rlmm.toml"\n')
    said = CliRunner().invoke(rlmm, ["reconcile", "restore", name, "--config", str(file)])
    return said.exit_code, said.output


def test_what_is_restored_between_look_and_delete_is_told_as_it_is_when_the_run_is_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has looked at the manifests, and deletes: nothing takes that back."""
    entries = site.entries(site.orphan)
    name = site.quarantined(entries)
    said: list[tuple[int, str]] = []
    waits = threading.Event()

    async def wait_out(*asked: Any) -> None:
        waits.set()
        await known(*asked)

    known = lease.wait_out
    monkeypatch.setattr(lease, "wait_out", wait_out)
    site.now_ms = storage_time.wall_ms()

    def restore() -> None:
        said.append(restoring(site, name))

    class Paused(Passing):
        """A storage whose first delete takes long."""

        restorer: threading.Thread | None = None

        async def delete(self, keys: list[str]) -> Any:
            if self.restorer is None:
                Paused.restorer = threading.Thread(target=restore)
                Paused.restorer.start()
                await asyncio.to_thread(waits.wait, 60)
                assert said == [], "it says nothing before the run has seen it"
            return await self._inner.delete(keys)

    done = site.delete(entries, through=Paused, release=True)
    assert Paused.restorer is not None
    Paused.restorer.join(60)
    assert waits.is_set()
    assert done.dropped == {"its manifest was restored": len(entries) - 1}
    ((code, words),) = said
    assert code == 1
    assert f"{len(entries) - 1} of its {len(entries)} objects are still there" in words
    assert entries[0].key in words
    assert "gone already" in words


def test_a_night_of_a_machine_whose_clock_is_wrong_touches_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All would be due for it, or its lease would last for a year."""
    entries = site.entries(site.orphan)
    site.quarantined(entries[:1])
    known = storage_time.wall_ms
    monkeypatch.setattr(storage_time, "wall_ms", lambda: known() + 365 * DAY)
    with pytest.raises(Refused, match=r"clock is .* ahead of the storage's"):
        site.act(entries)
    assert all(map(site.there, entries))
    assert not (site.world.home / "remote" / LEASE_KEY).exists()


def test_a_night_in_which_the_clock_was_set_touches_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage's clock and this machine's agree again, and the ages were counted before."""
    entries = site.entries(site.orphan)
    site.quarantined(entries[:1])
    moved = storage_time.Steady()
    monkeypatch.setattr(moved, "_wall_ms", storage_time.wall_ms() - HOUR)
    with pytest.raises(Refused, match=r"clock was set by 3(599|600) s since the run began"):
        site.act(entries, steady=moved)
    assert all(map(site.there, entries))
    assert not (site.world.home / "remote" / LEASE_KEY).exists()


def test_a_night_that_lost_its_lease_neither_quarantines_nor_removes_a_manifest(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = site.entries(site.orphan)
    gone = site.quarantined(entries[:1])
    (site.world.home / "remote" / entries[0].key).unlink()
    acquire = Holder.acquire

    async def robbed(self: Holder) -> None:
        await acquire(self)
        thief = Holder(self._storage, owner="b", seconds=300, now_ms=lambda: 2**45)
        await acquire(thief)

    monkeypatch.setattr(Holder, "acquire", robbed)
    with pytest.raises(LeaseHeld, match="another run took"):
        site.act(entries[1:])
    assert site.manifests() == {gone}
    (site.world.home / "remote" / LEASE_KEY).unlink()
    with pytest.raises(LeaseHeld, match="another run took"):
        site.act([], [gone])
    assert site.manifests() == {gone}


def test_what_is_quarantined_is_tagged_with_the_run_and_uploads_are_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag is an object's: S3 has none for an upload. The audit log says it before and after."""
    entries = site.entries(site.orphan)
    asked: list[tuple[list[str], str | None]] = []

    def tag_all(_: Config, keys: list[str], value: str | None) -> int:
        line = site.audit("tagging")[-1]
        assert (line["tagging"], line["value"]) == (len(keys), value)
        asked.append((keys, value))
        return len(keys) - 1

    monkeypatch.setattr(object_tags, "tag_all", tag_all)
    upload = msgspec.structs.replace(entries[0], upload_id="u")
    night = site.act([*entries, upload])
    assert [(sorted(keys), value) for keys, value in asked] == [
        (sorted(each.key for each in entries), "r2")
    ]
    assert night.tagged == len(entries) - 1
    assert [line["tagged"] for line in site.audit("tagged")] == [len(entries) - 1]
    assert night.quarantined == len(entries) + 1
    site.act([])
    assert len(asked) == 1, "nothing to tag"


def test_a_damaged_manifest_stops_the_next_batch_and_is_named(site: Site) -> None:
    entries = site.entries(site.orphan)
    site.world.write_control("reconcile/manifests/r1-001.json", b"")
    with pytest.raises(Refused, match=r"manifests/r1-001.json .* is empty"):
        site.delete(entries)
    assert all(map(site.there, entries))
