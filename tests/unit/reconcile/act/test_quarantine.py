"""What is quarantined and what is deleted: caps, ages, what must match; the lease."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pytest
from msgspec import UNSET

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec.marker import CONTROL_BYTES_MAX
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.domain.errors import InvalidArgument, Malformed
from rlmm_daemon.ports.storage import ControlObject
from rlmm_daemon.reconcile import control, storage_time
from rlmm_daemon.reconcile.act import lease, quarantine
from rlmm_daemon.reconcile.act.lease import LEASE_KEY, Holder, Lease, LeaseHeld
from rlmm_daemon.reconcile.act.quarantine import (
    CondemnedObject,
    Manifest,
    ManifestWord,
    Totals,
    plan,
)
from rlmm_daemon.reconcile.errors import Refused
from tests.support.manifests import write_manifests
from tests.support.memory_storage import MemoryStorage

HOUR = 3_600_000
NOW = 1_700_000_000_000
SAFETY = Safety()
WORD = ManifestWord(by="me@here", at_ms=NOW, reason="seen")
MANY = Totals(objects=1_000_000, bytes=10**12)


def entry(number: int = 0) -> CondemnedObject:
    return CondemnedObject(
        key=f"k{number}", size=10, etag="e", modified_ms=number, kind="orphan_object"
    )


def manifest(
    *entries: CondemnedObject, age_hours: int = 169, restored: bool = False
) -> dict[str, Manifest]:
    made = Manifest(
        run="r", fence=1, created_ms=NOW - age_hours * HOUR, entries=entries, restored=restored
    )
    return {"r-001.json": made}


def test_an_object_is_listed_before_it_is_deleted() -> None:
    assert plan([entry()], {}, MANY, SAFETY, now_ms=NOW).quarantine == (entry(),)
    assert plan([entry()], manifest(entry(), age_hours=167), MANY, SAFETY, now_ms=NOW).delete == ()
    assert plan([entry()], manifest(entry()), MANY, SAFETY, now_ms=NOW).delete == (entry(),)


def test_what_is_no_longer_condemned_is_not_deleted() -> None:
    assert plan([], manifest(entry()), MANY, SAFETY, now_ms=NOW).delete == ()


@pytest.mark.parametrize("change", ["etag", "modified_ms", "upload_id"])
def test_another_object_under_the_key_begins_its_quarantine_anew(change: str) -> None:
    value = 9_000 if change == "modified_ms" else "f"
    other = msgspec.structs.replace(entry(), **{change: value})
    made = plan([other], manifest(entry()), MANY, SAFETY, now_ms=NOW)
    assert made.delete == ()
    assert made.quarantine == (other,)


def test_a_restored_manifest_spares_its_objects_for_good() -> None:
    made = plan([entry()], manifest(entry(), restored=True), MANY, SAFETY, now_ms=NOW)
    assert (made.delete, made.quarantine) == ((), ())


@pytest.mark.parametrize(
    ("totals", "chosen"),
    [
        (Totals(objects=1_000, bytes=10**12), 10),
        (Totals(objects=10**9, bytes=5_000), 5),
    ],
)
def test_a_run_takes_no_more_than_its_caps(totals: Totals, chosen: int) -> None:
    every = [entry(n) for n in range(50)]
    made = plan(every, {}, totals, SAFETY, now_ms=NOW)
    assert [each.key for each in made.quarantine] == [f"k{n}" for n in range(chosen)]
    assert made.left == 50 - chosen
    made = plan(every, manifest(*every), totals, SAFETY, now_ms=NOW)
    assert [each.key for each in made.delete] == [f"k{n}" for n in range(chosen)]
    assert (made.left, made.quarantine) == (50 - chosen, ())


@pytest.mark.parametrize("listed", [False, True])
def test_a_run_takes_at_most_ten_thousand_objects(*, listed: bool) -> None:
    every = [entry(n) for n in range(10_050)]
    manifests = manifest(*every) if listed else {}
    made = plan(every, manifests, Totals(objects=10**9, bytes=10**15), SAFETY, now_ms=NOW)
    assert len(made.delete if listed else made.quarantine) == 10_000


@pytest.mark.parametrize(
    "totals", [Totals(objects=1_000, bytes=10**12), Totals(objects=10**9, bytes=10_000)]
)
def test_what_is_deleted_and_what_is_quarantined_share_one_cap(totals: Totals) -> None:
    old, new = [entry(n) for n in range(6)], [entry(n) for n in range(-50, 0)]
    made = plan([*new, *old], manifest(*old), totals, SAFETY, now_ms=NOW)
    assert (made.delete, made.quarantine) == (tuple(old), tuple(new[:4]))
    assert made.left == 46


def test_one_object_beyond_the_cap_does_not_keep_back_what_is_behind_it() -> None:
    large = msgspec.structs.replace(entry(0), size=6_000)
    made = plan(
        [large, entry(1), entry(2)], {}, Totals(objects=10**6, bytes=5_000), SAFETY, now_ms=NOW
    )
    assert (made.quarantine, made.left) == ((large, entry(1), entry(2)), 0)


def test_what_waits_is_told_from_what_is_due() -> None:
    restored, due, waiting = (entry(n) for n in range(3))
    manifests = {
        "a": manifest(restored, due)["r-001.json"],
        "b": manifest(waiting, age_hours=1)["r-001.json"],
        "c": manifest(restored, age_hours=1, restored=True)["r-001.json"],
        "d": manifest(due, age_hours=1)["r-001.json"],
    }
    assert quarantine.standing(manifests, SAFETY, NOW) == {
        due.identity: True, waiting.identity: False, restored.identity: False
    }  # fmt: skip


@pytest.mark.parametrize("word", ["restored", "held"])
def test_what_an_operator_spared_is_spared_in_a_bucket_that_was_rewritten(word) -> None:
    """A copy of the bucket, or another key of encryption: other times, maybe other ETags."""
    spared, other = entry(1), entry(2)
    words = {"restored": True} if word == "restored" else {"held": ManifestWord(by="x", at_ms=1)}
    manifests = {
        "a": msgspec.structs.replace(manifest(spared)["r-001.json"], **words),
        "b": manifest(other)["r-001.json"],
    }
    now = [
        msgspec.structs.replace(each, modified_ms=each.modified_ms + 10**9, etag="new")
        for each in (spared, other)
    ]
    made = plan(now, manifests, MANY, SAFETY, now_ms=NOW)
    assert (made.delete, made.quarantine, made.left) == ((), (now[1],), 0)
    there = {each.identity for each in now}
    assert quarantine.settled(quarantine.over(manifests, SAFETY, NOW), there) == ["b"]
    both = {**manifests, "c": manifest(*now)["r-001.json"]}
    assert plan(now, both, MANY, SAFETY, now_ms=NOW).delete == (now[1],)


def test_a_listing_with_milliseconds_names_the_same_object_as_one_without() -> None:
    precise = msgspec.structs.replace(entry(), modified_ms=1_999)
    whole = msgspec.structs.replace(entry(), modified_ms=1_000)
    other = msgspec.structs.replace(entry(), modified_ms=2_000)
    assert plan([whole], manifest(precise), MANY, SAFETY, now_ms=NOW).delete == (whole,)
    assert plan([other], manifest(precise), MANY, SAFETY, now_ms=NOW).quarantine == (other,)


def test_there_is_room_for_so_many_entries_and_deletes_make_some() -> None:
    waiting = [entry(n) for n in range(quarantine.ENTRIES_MAX - 3)]
    fresh = [entry(-n) for n in range(1, 6)]
    made = plan(fresh, manifest(*waiting, age_hours=1), MANY, SAFETY, now_ms=NOW)
    assert (made.quarantine, made.left) == (tuple(reversed(fresh))[:3], 2)
    made = plan([*waiting, *fresh], manifest(*waiting, *fresh[:3]), MANY, SAFETY, now_ms=NOW)
    assert (len(made.delete), made.quarantine) == (SAFETY.objects_max, ())


def test_a_manifest_goes_when_its_quarantine_is_over_and_nothing_of_it_is_left() -> None:
    gone, left = entry(1), entry(2)
    manifests = {
        "gone": manifest(gone)["r-001.json"],
        "part": manifest(gone, left)["r-001.json"],
        "young": manifest(gone, age_hours=167)["r-001.json"],
        "restored": manifest(gone, restored=True)["r-001.json"],
        "spares": manifest(left, restored=True)["r-001.json"],
    }
    there = {left.identity, ("k1", "another", 0, None)}
    over = quarantine.over(manifests, SAFETY, NOW)
    assert over.keys() == {"gone", "part", "restored", "spares"}
    assert quarantine.settled(over, there) == ["gone"], "what is spared, is in whatever state"
    assert quarantine.settled(over, {left.identity}) == ["gone", "restored"]


class Counting(MemoryStorage):
    """A storage that knows what was read of it."""

    read: list[str]

    async def get_control(self, key: str) -> ControlObject | None:
        self.read.append(key.rpartition("/")[2])
        return await super().get_control(key)


async def test_only_what_changed_is_read_again() -> None:
    storage = Counting(clock=SystemClock())
    await storage.open()
    made = quarantine.manifests_of("run", 3, NOW, [entry(n) for n in range(5_001)])
    first, second, *others = await write_manifests(storage, made)
    known, storage.read = quarantine.Manifests(storage), []
    assert (await known.now()).keys() == {first, second, *others} == set(storage.read)
    storage.read = []
    assert len(await known.now()) == len(made)
    assert storage.read == []
    await quarantine.restore(storage, second)
    storage.read = []
    assert [name for name, each in (await known.now()).items() if each.restored] == [second]
    assert storage.read == [second]
    await storage.delete([quarantine.MANIFESTS + first])
    assert (await known.now()).keys() == {second, *others}


async def test_manifests_are_written_read_and_restored() -> None:
    storage = MemoryStorage(clock=SystemClock())
    await storage.open()
    every = [entry(n) for n in range(5_001)]
    made = quarantine.manifests_of("run", 3, NOW, every)
    assert len(made) > 1
    names = await write_manifests(storage, made)
    read = (await quarantine.Manifests(storage).now()).values()
    assert [each for one in read for each in one.entries] == every
    await quarantine.restore(storage, names[0])
    assert (await quarantine.Manifests(storage).now())[names[0]].restored
    with pytest.raises(InvalidArgument, match="no manifest"):
        await quarantine.restore(storage, "none.json")


def test_a_manifest_of_the_longest_names_is_one_that_can_be_read_again() -> None:
    longest = CondemnedObject(
        key='"' * 1_024, size=10**15, etag="e" * 64, modified_ms=NOW, kind="deleted_but_present",
        topic_id="t" * 22, partition=2**31 - 1, segment_id="s" * 22, upload_id="u" * 1_024,
    )  # fmt: skip
    made = quarantine.manifests_of("run", 3, NOW, [longest] * 2_000)
    assert sum(len(each.entries) for each in made) == 2_000
    assert max(len(control.encode(each)) for each in made) < CONTROL_BYTES_MAX / 2 + 10_000


@pytest.mark.parametrize(
    ("kind", "newest"),
    [
        (Manifest, quarantine.WORDED),
        (Lease, 1),
        (control.AcceptedRecords, control.ACCEPTED_FORMAT),
    ],
)
def test_what_a_newer_version_wrote_is_left_alone(kind: type[msgspec.Struct], newest: int) -> None:
    values = {
        Manifest: Manifest(run="r", fence=1, created_ms=NOW, entries=()),
        Lease: Lease(owner="o", fence=1, expires_ms=NOW),
        control.AcceptedRecords: control.AcceptedRecords(),
    }
    data = control.encode(values[kind])
    assert control.decode(data, kind) == values[kind]
    newer = b'"format": %d' % (newest + 1)
    with pytest.raises(Malformed, match=r"the-key .* is not known"):
        control.decode(data.replace(b'"format": 1', newer), kind, key="the-key", newest=newest)
    for damaged in (data[:-3], b"[]", b"{}", data.replace(b"{", b'{"more": 1,', 1)):
        with pytest.raises(Malformed):
            control.decode(damaged, kind)


async def test_accepted_records_keep_who_said_so_in_a_format_of_its_own() -> None:
    storage = MemoryStorage(clock=SystemClock())
    await storage.open()
    nobody = control.AcceptedRecord(
        metadata_partition=1, offset=2, sha256="ab" * 32, reason="seen", accepted_at_ms=NOW
    )
    somebody = msgspec.structs.replace(nobody, offset=3, accepted_by="ann@host")
    for record, version in ((nobody, 1), (somebody, 2), (nobody, 2)):
        await control.accept(storage, record)
        assert (await control.read_accepted(storage)).format == version
    assert (await control.read_accepted(storage)).records == (nobody, somebody)


async def test_nothing_is_read_beside_a_damaged_manifest() -> None:
    storage = MemoryStorage(clock=SystemClock())
    await storage.open()
    await storage.put_control(f"{quarantine.MANIFESTS}a-001.json", b"{", if_etag=None)
    with pytest.raises(Malformed, match=f"{quarantine.MANIFESTS}a-001.json"):
        await quarantine.Manifests(storage).now()
    found, damaged = await quarantine.Manifests(storage).look()
    assert not found
    assert [*damaged] == ["a-001.json"]
    with pytest.raises(InvalidArgument, match="can't be read"):
        await quarantine.restore(storage, "a-001.json")


async def test_a_manifest_and_a_lease_of_no_time_that_a_calendar_has_are_damaged() -> None:
    storage = MemoryStorage(clock=SystemClock())
    await storage.open()
    manifest = b'{"format": 1, "run": "r", "fence": 1, "entries": [], "created_ms": 1%s}' % (
        b"0" * 18
    )
    await storage.put_control(f"{quarantine.MANIFESTS}a-001.json", manifest, if_etag=None)
    _, damaged = await quarantine.Manifests(storage).look()
    assert [*damaged] == ["a-001.json"]
    written = b'{"format": 1, "owner": "r", "fence": 1, "expires_ms": -1%s}' % (b"0" * 18)
    await storage.put_control(lease.LEASE_KEY, written, if_etag=None)
    found = await lease.look(storage)
    assert found is not None
    assert found.lease is None
    assert found.ends_ms > 0


class Clock:
    now = NOW

    def __call__(self) -> int:
        return self.now


def holder(storage: MemoryStorage, clock: Clock, owner: str) -> Holder:
    return Holder(storage, owner=owner, seconds=300, now_ms=clock)


async def test_one_owner_at_a_time_and_a_number_that_grows() -> None:
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    first, second = holder(storage, clock, "a"), holder(storage, clock, "b")
    await first.acquire()
    with pytest.raises(LeaseHeld, match="a holds"):
        await second.acquire()
    clock.now += 299_000
    await first.renew()
    clock.now += 299_000
    with pytest.raises(LeaseHeld):
        await second.acquire()
    await first.release()
    await second.acquire()
    assert (first.fence, second.fence) == (1, 2)


async def test_an_owner_that_slept_past_its_lease_is_stopped() -> None:
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    slow, quick = holder(storage, clock, "slow"), holder(storage, clock, "quick")
    await slow.acquire()
    clock.now += 301_000
    await quick.acquire()
    with pytest.raises(LeaseHeld, match="another run took"):
        await slow.renew()
    await slow.release()  # and it does not take the other's away
    assert await storage.get_control(LEASE_KEY) is not None
    await quick.renew()


@pytest.mark.parametrize(
    "totals", [Totals(objects=99, bytes=10**12), Totals(objects=10**6, bytes=900)]
)
def test_what_no_share_has_room_for_is_quarantined_and_goes_once_it_is_approved(
    totals: Totals,
) -> None:
    """Orphans of a small bucket, and ones larger than the share of bytes, would stay for ever."""
    orphan = entry(1)
    made = plan([orphan], {}, totals, SAFETY, now_ms=NOW)
    assert (made.quarantine, made.left, made.beyond) == ((orphan,), 0, ())
    made = plan([orphan], manifest(orphan), totals, SAFETY, now_ms=NOW)
    assert (made.delete, made.left, made.beyond) == ((), 1, (orphan,))
    let = {"r-001.json": msgspec.structs.replace(*manifest(orphan).values(), approved=WORD)}
    made = plan([orphan], let, totals, SAFETY, now_ms=NOW)
    assert (made.delete, made.left, made.beyond) == ((orphan,), 0, ())
    young = {"r-001.json": msgspec.structs.replace(*let.values(), created_ms=NOW - HOUR)}
    assert plan([orphan], young, totals, SAFETY, now_ms=NOW).delete == (), "its time has to come"
    assert plan([], let, totals, SAFETY, now_ms=NOW).delete == (), "it has to be condemned again"


def test_what_is_approved_counts_against_the_number_of_objects_alone() -> None:
    let, others = [entry(n) for n in range(7)], [entry(n) for n in range(100, 120)]
    manifests = {
        "a": msgspec.structs.replace(*manifest(*let).values(), approved=WORD),
        "b": manifest(*others)["r-001.json"],
    }
    made = plan([*others, *let], manifests, Totals(objects=500, bytes=10**12), SAFETY, now_ms=NOW)
    assert made.delete == (*let, *others[:5])
    few = Safety(objects_max=9)
    made = plan([*others, *let], manifests, Totals(objects=500, bytes=10**12), few, now_ms=NOW)
    assert made.delete == (*let, *others[:2])


def test_what_is_held_back_is_left_alone_until_it_is_released() -> None:
    held = {"r-001.json": msgspec.structs.replace(*manifest(entry()).values(), held=WORD)}
    assert plan([entry()], held, MANY, SAFETY, now_ms=NOW).delete == ()
    both = {**held, "b": msgspec.structs.replace(*manifest(entry()).values(), approved=WORD)}
    assert plan([entry()], both, MANY, SAFETY, now_ms=NOW).delete == (), "whatever else names it"
    assert quarantine.next_deletion_ms(held, SAFETY, 0) is None


def test_the_next_deletion_is_when_the_first_quarantine_is_over() -> None:
    manifests = {
        "young": manifest(entry(1), age_hours=1)["r-001.json"],
        "old": manifest(entry(2), age_hours=100)["r-001.json"],
        "gone": manifest(entry(3), age_hours=300)["r-001.json"],
        "restored": manifest(entry(4), age_hours=160, restored=True)["r-001.json"],
    }
    assert quarantine.next_deletion_ms(manifests, SAFETY, NOW) == NOW + 68 * HOUR
    assert quarantine.next_deletion_ms(manifests, SAFETY, 0) == NOW - 132 * HOUR, "due"
    assert quarantine.next_deletion_ms({}, SAFETY, NOW) is None


async def test_a_word_is_kept_with_who_said_it_and_older_readers_are_told_by_the_format() -> None:
    storage = MemoryStorage(clock=SystemClock())
    await storage.open()
    (name,) = await write_manifests(storage, manifest(entry()).values())

    async def written() -> bytes:
        found = await storage.get_control(quarantine.MANIFESTS + name)
        assert found is not None
        return found.data

    plain = await written()
    assert b"held" not in plain
    assert b'"format": 1' in plain
    held = await quarantine.change(
        storage, name, lambda known: msgspec.structs.replace(known, held=WORD)
    )
    assert (held.held, held.format) == (WORD, quarantine.WORDED)
    assert (await quarantine.Manifests(storage).now())[name] == held
    await quarantine.change(storage, name, lambda known: msgspec.structs.replace(known, held=UNSET))
    assert await written() == plain
    assert (await quarantine.restore(storage, name, WORD)).restored_by == WORD


async def test_a_lease_of_a_clock_that_was_a_year_ahead_ends_within_the_hour() -> None:
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    clock.now = storage_time.wall_ms()
    wrong = Lease(owner="a", fence=4, expires_ms=clock.now + 365 * 24 * HOUR)
    await storage.put_control(LEASE_KEY, control.encode(wrong), if_etag=None)
    with pytest.raises(LeaseHeld, match=r"a holds .* for another 3[56]"):
        await holder(storage, clock, "b").acquire()
    clock.now += HOUR + 1_000
    late = holder(storage, clock, "b")
    await late.acquire()
    assert late.fence == 5


@pytest.mark.parametrize("data", [b"", b"{", b"[]"])
async def test_a_lease_that_can_not_be_read_is_named_with_what_ends_it(data: bytes) -> None:
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    await storage.overwrite_control(LEASE_KEY, data)
    with pytest.raises(Malformed, match=f"{LEASE_KEY}.*break-lease --execute"):
        await holder(storage, clock, "a").acquire()


@dataclass
class Deleting:
    """A run that goes on while somebody waits for it: what it does in each pause."""

    clock: Clock
    steps: list[Callable[[], Awaitable[object]]]
    waited: int = 0

    async def __call__(self, seconds: float) -> None:
        assert self.waited < 10_000, "it waits for ever"
        self.waited += 1
        self.clock.now += int(seconds * 1_000)
        if self.steps:
            await self.steps.pop(0)()


async def test_who_waits_for_a_run_waits_until_it_has_looked_again() -> None:
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    run = holder(storage, clock, "a")
    await run.acquire()
    deleting = Deleting(clock, [run.renew, run.renew, run.renew])
    await lease.wait_out(storage, clock, deleting)
    assert deleting.waited == 2, "what it looked at before its first renewal is deleted by then"
    deleting = Deleting(clock, [run.renew, run.release])
    await lease.wait_out(storage, clock, deleting)
    assert deleting.waited == 2
    await lease.wait_out(storage, clock, deleting)
    assert deleting.waited == 2, "nobody deletes"


async def test_who_waits_for_a_run_that_is_gone_waits_for_what_it_had_sent() -> None:
    """Killed, it told nobody of a delete that was under way; paused, it goes on."""
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    await holder(storage, clock, "a").acquire()
    deleting = Deleting(clock, [])
    await lease.wait_out(storage, clock, deleting)
    assert deleting.waited == 300 + lease.LATE_SECONDS


async def test_who_comes_behind_the_lease_of_a_run_that_was_killed_waits_for_what_it_had_sent() -> (
    None
):
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    await holder(storage, clock, "a").acquire()
    clock.now += 301_000
    deleting = Deleting(clock, [])
    await lease.wait_out(storage, clock, deleting)
    assert deleting.waited == lease.LATE_SECONDS - 1


@pytest.mark.parametrize("late", [True, False])
async def test_a_run_behind_one_that_was_killed_has_a_restore_wait_for_both(*, late: bool) -> None:
    """It looks again and again, is answered each time, and knows nothing of what the other sent."""
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    await holder(storage, clock, "killed").acquire()
    clock.now += 300_000 + lease.LATE_SECONDS * 1_000 - int(late)
    run = holder(storage, clock, "next")
    await run.acquire()
    deleting = Deleting(clock, [run.renew, run.renew, run.renew, run.release])
    await lease.wait_out(storage, clock, deleting)
    assert deleting.waited == (3 + 300 + lease.LATE_SECONDS if late else 2)


async def test_who_waits_for_a_run_of_which_a_delete_was_not_answered_waits_behind_that() -> None:
    """It has looked again, and what it had sent before may still be carried out."""
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    clock.now = storage_time.wall_ms()
    run = holder(storage, clock, "a")
    await run.acquire()
    run.unanswered = True
    deleting = Deleting(clock, [run.renew, run.renew, run.renew, run.release])
    await lease.wait_out(storage, clock, deleting)
    assert deleting.waited == 3 + 300 + lease.LATE_SECONDS
    await holder(storage, clock, "b").acquire()
    await run.release()
    found = await lease.look(storage)
    assert found is not None
    assert (found.owner, found.lease and found.lease.format) == ("b", control.FORMAT)


async def test_a_lease_that_is_broken_is_nobodys_until_it_would_have_ended() -> None:
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    paused, other = holder(storage, clock, "paused"), holder(storage, clock, "other")
    await paused.acquire()

    async def early() -> None:
        with pytest.raises(LeaseHeld, match="broken by me"):
            await other.acquire()
        with pytest.raises(LeaseHeld, match="another run took"):
            await paused.renew()

    deleting = Deleting(clock, [early])
    found = await lease.look(storage)
    assert found is not None
    await lease.take_away(storage, found, by="me", fence=9, now_ms=clock, pause=deleting)
    assert deleting.waited == 301, "the next one's clock may be a second behind"
    clock.now -= 999
    await other.acquire()
    assert other.fence == 10


async def test_a_restore_waits_for_what_the_run_had_sent_whose_lease_was_broken() -> None:
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    await holder(storage, clock, "killed").acquire()
    found = await lease.look(storage)
    assert found is not None
    deleting = Deleting(clock, [])
    await lease.take_away(storage, found, by="me", fence=9, now_ms=clock, pause=deleting)
    await lease.wait_out(storage, clock, deleting)
    assert deleting.waited == 300 + lease.LATE_SECONDS


async def test_a_lease_that_is_broken_may_be_taken_before_that_is_said() -> None:
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    other = holder(storage, clock, "other")
    await holder(storage, clock, "gone").acquire()
    found = await lease.look(storage)
    assert found is not None

    deleting = Deleting(clock, [other.acquire])
    clock.now = found.ends_ms - 1_000
    await lease.take_away(storage, found, by="me", fence=9, now_ms=clock, pause=deleting)
    assert deleting.waited == 2
    await other.renew()


async def test_a_lease_whose_owner_lives_is_not_broken_unseen() -> None:
    storage, clock = MemoryStorage(clock=SystemClock()), Clock()
    await storage.open()
    alive = holder(storage, clock, "a")
    await alive.acquire()
    found = await lease.look(storage)
    assert found is not None
    clock.now += 1
    await alive.renew()
    with pytest.raises(LeaseHeld, match="it lives"):
        await lease.take_away(storage, found, by="me", fence=9, now_ms=clock)
    await alive.renew()


async def test_a_clock_that_is_not_the_storages_refuses() -> None:
    storage = MemoryStorage(clock=SystemClock())
    await storage.open()
    clock = await storage_time.read(storage)
    now_ms = storage_time.wall_ms()
    clock.check(now_ms)
    for ahead, word in ((365 * 24 * HOUR, "ahead of"), (-HOUR, "behind")):
        with pytest.raises(Refused, match=f"{word} the storage's"):
            clock.check(now_ms + ahead)


def test_a_clock_that_is_set_while_a_run_goes_on_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when time is first asked for some minutes after the machine's start."""
    steady, known = storage_time.Steady(), storage_time.wall_ms
    steady.check()
    monkeypatch.setattr(storage_time, "wall_ms", lambda: known() - 24 * HOUR)
    with pytest.raises(Refused, match="was set by -864"):
        steady.check()
