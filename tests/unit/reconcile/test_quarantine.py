"""What is quarantined and what is deleted: caps, ages, what must match; the lease."""

import msgspec
import pytest

from rlmm_daemon.adapters.clock import SystemClock
from rlmm_daemon.adapters.storage.memory import MemoryStorage
from rlmm_daemon.config.reconcile import Safety
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.reconcile import quarantine
from rlmm_daemon.reconcile.lease import LEASE_KEY, Holder, LeaseHeld
from rlmm_daemon.reconcile.quarantine import Entry, Manifest, Totals, plan

HOUR = 3_600_000
NOW = 1_700_000_000_000
SAFETY = Safety()
MANY = Totals(objects=1_000_000, bytes=10**12)


def entry(number: int = 0) -> Entry:
    return Entry(key=f"k{number}", size=10, etag="e", modified_ms=number, kind="orphan_object")


def manifest(*entries: Entry, age_hours: int = 169, restored: bool = False) -> dict[str, Manifest]:
    made = Manifest(
        run="r", fence=1, created_ms=NOW - age_hours * HOUR, entries=entries, restored=restored
    )
    return {"r-001.json": made}


def test_an_object_is_listed_before_it_is_deleted() -> None:
    assert plan([entry()], {}, MANY, SAFETY, NOW).quarantine == (entry(),)
    assert plan([entry()], manifest(entry(), age_hours=167), MANY, SAFETY, NOW).delete == ()
    assert plan([entry()], manifest(entry()), MANY, SAFETY, NOW).delete == (entry(),)


def test_what_is_no_longer_condemned_is_not_deleted() -> None:
    assert plan([], manifest(entry()), MANY, SAFETY, NOW).delete == ()


@pytest.mark.parametrize("change", ["etag", "modified_ms", "upload_id"])
def test_another_object_under_the_key_begins_its_quarantine_anew(change: str) -> None:
    other = msgspec.structs.replace(entry(), **{change: 9 if change == "modified_ms" else "f"})
    made = plan([other], manifest(entry()), MANY, SAFETY, NOW)
    assert made.delete == ()
    assert made.quarantine == (other,)


def test_a_restored_manifest_spares_its_objects_for_good() -> None:
    made = plan([entry()], manifest(entry(), restored=True), MANY, SAFETY, NOW)
    assert (made.delete, made.quarantine) == ((), ())


@pytest.mark.parametrize(
    ("totals", "chosen"),
    [
        (Totals(objects=1_000, bytes=10**12), 10),
        (Totals(objects=10**9, bytes=5_000), 5),
        (Totals(objects=99, bytes=10**12), 0),
    ],
)
def test_a_run_takes_no_more_than_its_caps(totals: Totals, chosen: int) -> None:
    made = plan([entry(n) for n in range(50)], {}, totals, SAFETY, NOW)
    assert [each.key for each in made.quarantine] == [f"k{n}" for n in range(chosen)]
    assert made.left == 50 - chosen


def test_a_run_takes_at_most_ten_thousand_objects() -> None:
    every = [entry(n) for n in range(10_050)]
    assert (
        len(plan(every, {}, Totals(objects=10**9, bytes=10**15), SAFETY, NOW).quarantine) == 10_000
    )


async def test_manifests_are_written_read_and_restored() -> None:
    storage = MemoryStorage(clock=SystemClock())
    await storage.open()
    made = quarantine.manifests_of("run", 3, NOW, [entry(n) for n in range(2_001)])
    names = await quarantine.write_manifests(storage, made)
    assert [len(m.entries) for m in (await quarantine.read_manifests(storage)).values()] == [
        2000,
        1,
    ]
    await quarantine.restore(storage, names[0])
    assert (await quarantine.read_manifests(storage))[names[0]].restored
    with pytest.raises(InvalidArgument, match="no manifest"):
        await quarantine.restore(storage, "none.json")


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
