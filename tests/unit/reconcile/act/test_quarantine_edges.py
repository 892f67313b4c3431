"""The quarantine at its edges: the very millisecond, the last object that a cap has room for."""

import msgspec
import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.domain.errors import Malformed, StorageUnavailable
from rlmm_daemon.ports.storage import Conflict
from rlmm_daemon.reconcile import control
from rlmm_daemon.reconcile.act import quarantine
from rlmm_daemon.reconcile.act.quarantine import Manifest, Totals, plan
from tests.support.manifests import write_manifests
from tests.support.memory_storage import MemoryStorage
from tests.unit.reconcile.act.test_quarantine import (
    HOUR,
    MANY,
    NOW,
    SAFETY,
    WORD,
    entry,
    manifest,
)


@pytest.mark.parametrize(("late_ms", "due"), [(-1, False), (0, True)])
def test_a_quarantine_is_over_at_its_last_millisecond_and_not_before(
    late_ms: int, *, due: bool
) -> None:
    manifests = manifest(entry())
    made = manifests["r-001.json"].created_ms
    now = made + SAFETY.quarantine_hours * HOUR + late_ms
    assert quarantine.standing(manifests, SAFETY, now) == {entry().identity: due}
    assert bool(quarantine.over(manifests, SAFETY, now)) is due
    assert bool(plan([entry()], manifests, MANY, SAFETY, now_ms=now).delete) is due
    soon = quarantine.next_deletion_ms(manifests, SAFETY, now)
    assert soon == (None if due else made + SAFETY.quarantine_hours * HOUR)


@pytest.mark.parametrize("size", [1_000, 1_001])
def test_an_object_as_large_as_the_share_is_deleted_and_a_larger_one_waits(size: int) -> None:
    share = Totals(objects=10**6, bytes=int(1_000 / SAFETY.share_max))
    large = msgspec.structs.replace(entry(), size=size)
    made = plan([large], manifest(large), share, SAFETY, now_ms=NOW)
    assert (made.delete, made.beyond) == (((large,), ()) if size == 1_000 else ((), (large,)))


@pytest.mark.parametrize("room", [0, 1])
def test_a_share_of_one_object_has_room_for_one(room: int) -> None:
    few = Totals(objects=int(room / SAFETY.share_max), bytes=10**12)
    made = plan([entry()], manifest(entry()), few, SAFETY, now_ms=NOW)
    assert (made.delete, made.beyond) == (((entry(),), ()) if room else ((), (entry(),)))


def test_nothing_more_is_listed_once_as_much_is_as_a_driver_can_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = [entry(n) for n in range(10)]
    fresh = [entry(99), entry(98), entry(97)]
    for room, most in ((0, 10), (0, 9), (0, 8), (1, 11), (3, 13)):
        monkeypatch.setattr(quarantine, "ENTRIES_MAX", most)
        made = plan(fresh, manifest(*waiting, age_hours=1), MANY, SAFETY, now_ms=NOW)
        assert (len(made.quarantine), made.left) == (room, 3 - room)


def test_a_manifest_is_as_large_as_it_may_be_and_not_larger() -> None:
    made = quarantine.manifests_of("run", 3, NOW, [entry(n) for n in range(6_000)])
    sizes = [len(control.encode(each)) for each in made]
    assert max(sizes) <= quarantine.MANIFEST_BYTES_MAX + 1_000  # what it says of itself
    assert min(sizes[:-1]) > 0.9 * quarantine.MANIFEST_BYTES_MAX


def test_what_a_manifest_says_beyond_what_is_known_is_not_passed_over() -> None:
    """It may be a word that keeps its objects."""
    worded = msgspec.structs.replace(*manifest(entry()).values(), held=WORD)
    data = control.encode(worded)
    assert quarantine.decoded(data, "key") == worded
    for place in (b'"run"', b'"by"', b'"key"'):
        assert data.count(place) == 1
        with pytest.raises(Malformed):
            quarantine.decoded(data.replace(place, b'"more": 1, ' + place), "key")


class Contested(MemoryStorage):
    """A storage in which somebody else writes first, so many times."""

    others = 0

    async def put_control(self, key: str, data: bytes, *, if_etag: str | None) -> str:
        if self.others and if_etag is not None:
            self.others -= 1
            raise Conflict(key)
        return await super().put_control(key, data, if_etag=if_etag)


@pytest.mark.parametrize("others", [1, control.RACES_MAX - 1, control.RACES_MAX])
async def test_a_word_on_a_manifest_is_written_though_others_write_it_too(others: int) -> None:
    storage = Contested(clock=SystemClock())
    await storage.open()
    (name,) = await write_manifests(storage, list(manifest(entry()).values()))
    storage.others = others
    if others == control.RACES_MAX:
        with pytest.raises(StorageUnavailable, match="written by others"):
            await quarantine.restore(storage, name, WORD)
    else:
        assert (await quarantine.restore(storage, name, WORD)).restored_by == WORD
    found: Manifest = (await quarantine.Manifests(storage).now())[name]
    assert found.restored is (others < control.RACES_MAX)


@pytest.mark.parametrize("etag", ["e", None])
def test_a_finding_becomes_an_entry_with_all_that_names_its_object(etag: str | None) -> None:
    row = {
        "key": "k", "bytes": 7, "etag": etag, "modified_ms": 9, "kind": "orphan_object",
        "topic_id": "t", "partition": 3, "segment_id": "s", "upload_id": "u",
    }  # fmt: skip
    assert quarantine.entry_of(row) == quarantine.CondemnedObject(
        key="k", size=7, etag=etag or "", modified_ms=9, kind="orphan_object",
        topic_id="t", partition=3, segment_id="s", upload_id="u",
    )  # fmt: skip
