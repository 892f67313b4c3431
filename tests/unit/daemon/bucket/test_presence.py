"""Lives of one broker id over one presence file: who is alone, who is not, and for how long."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.lock_place import place_of
from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import OtherDaemon
from rlmm_daemon.core.readiness.twins import (
    GONE_SECONDS,
    QUIET_SECONDS,
    Alone,
    Doubted,
    Met,
    Unread,
)
from rlmm_daemon.daemon.bucket import presence as module
from rlmm_daemon.daemon.bucket.presence import (
    Author,
    PresenceFacts,
    PresenceFile,
    Remembrance,
)
from rlmm_daemon.domain.errors import Malformed, StorageUnavailable
from rlmm_daemon.ports.storage import ControlObject
from tests.simulation.loop import SimLoop, ended
from tests.support.memory_storage import MemoryBucket, MemoryStorage
from tests.unit.daemon.events import until

KEY = marker.presence_key(1)


class HandClock(SystemClock):
    """Goes on when told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return round(1000 * self.seconds)


class Storage(MemoryStorage):
    """One that can be away, or lose the answer to a write."""

    away = False
    deaf = False
    #: Why it takes no writes, while reads are answered.
    refusal = ""
    writes = 0

    async def get_control(self, key: str) -> ControlObject | None:
        if self.away:
            raise StorageUnavailable("away")
        return await super().get_control(key)

    async def overwrite_control(self, key: str, data: bytes) -> None:
        self.writes += 1
        if self.away or self.refusal:
            raise StorageUnavailable(self.refusal or "away")
        await super().overwrite_control(key, data)
        if self.deaf:
            raise StorageUnavailable("no answer")


class Lives:
    """All that ever wrote one presence file."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.bucket = MemoryBucket()
        self.signs: list[str] = []

    def life(
        self, host: str, place: str = "", remembrance: Remembrance | None = None
    ) -> PresenceFile:
        async def met() -> None:
            self.signs.append(host)

        return PresenceFile(
            Storage(self.bucket, clock=self.clock),
            self.clock,
            cluster_id="c1",
            broker_id=1,
            copy_deadline_seconds=600.0,
            facts=lambda: PresenceFacts(
                incarnation=1, lease_end_ms=None, metadata_manager="rlmm", partitions={}
            ),
            spawn=asyncio.get_running_loop().create_task,
            author=Author(place=place or f"the lock of {host}", host=host),
            on_met=met,
            remembrance=remembrance,
        )

    def written(self) -> marker.Presence:
        return marker.decode_presence(self.bucket.objects[KEY].body)

    async def pass_time(self, seconds: float, *living: PresenceFile) -> None:
        """Let time go by, in which those who live write their file as they do."""
        until = self.clock.seconds + seconds
        while self.clock.seconds < until:
            self.clock.seconds += min(module.REWRITE_SECONDS, until - self.clock.seconds)
            for each in living:
                await each._try_write()


@pytest.fixture
def lives() -> Lives:
    return Lives()


def storage_of(life: PresenceFile) -> Storage:
    assert isinstance(life._storage, Storage)
    return life._storage


async def refused(life: PresenceFile) -> str:
    """Return why nothing may be deleted, by a look of just now."""
    life._clock.seconds += module.LOOK_SECONDS  # type: ignore[attr-defined] # a hand clock
    with pytest.raises(StorageUnavailable) as error:
        await life.require_alone()
    return error.value.message


async def test_the_first_of_all_is_alone(lives: Lives):
    one = lives.life("one")
    assert one.standing == Unread()
    await one.write()
    await one.require_alone()
    assert lives.written().other is None


async def test_a_restart_under_the_same_lock_is_alone_at_once_however_it_ended(lives: Lives):
    for _ in range(3):
        life = lives.life("one", place="lock")
        await life.write()
        await life.require_alone()


async def test_whoever_follows_one_that_has_stopped_is_alone_at_once(lives: Lives):
    old = lives.life("old")
    await old.write()
    await old.write(ended=True)
    await old.write()
    assert lives.written().ended, "its last word stays the last"
    new = lives.life("new")
    await new.write()
    await new.require_alone()


async def test_whoever_follows_a_killed_one_on_another_host_waits_until_it_must_have_shown(
    lives: Lives,
):
    await lives.life("old").write()
    new = lives.life("new")
    await new.write()
    assert "(old), which may still run" in await refused(new)
    assert lives.written().other == OtherDaemon(who="old", met=False)
    await lives.pass_time(QUIET_SECONDS - 10, new)
    assert "may still run" in await refused(new)
    await lives.pass_time(20, new)
    await new.require_alone()
    await lives.pass_time(1, new)
    assert lives.written().other is None
    assert lives.signs == []


async def test_a_clone_and_its_original_find_each_other_until_one_of_them_is_stopped(lives: Lives):
    original = lives.life("original")
    await original.write()
    clone = lives.life("clone")
    await clone.write()
    assert await refused(clone)
    assert "another daemon has broker id 1: clone" in await refused(original)
    await original.write()
    assert lives.written().other == OtherDaemon(who="clone", met=True)
    assert lives.written().format == 2, "a nightly job that does not know better stops at it"
    assert "another daemon has broker id 1: original" in await refused(clone)
    await lives.pass_time(1000, clone, original)
    for each in (original, clone):
        assert await refused(each)
    assert {"clone", "original"} == set(lives.signs)
    await clone.write(ended=True)
    await original.write()
    signs = len(lives.signs)
    await lives.pass_time(GONE_SECONDS - 10, original)
    assert await refused(original)
    await lives.pass_time(20, original)
    await original.require_alone()
    assert len(lives.signs) > signs, "what the other one stored until then is held too"


async def test_a_restart_of_one_of_two_does_not_forget_the_other(lives: Lives):
    original, clone = lives.life("original"), lives.life("clone")
    await original.write()
    await clone.write()
    await original.write()
    again = lives.life("original")
    await again.write()
    assert isinstance(again.standing, Met)
    await again.write(ended=True)
    last = lives.life("original")
    await last.write()
    assert isinstance(last.standing, Met)


async def test_a_running_machine_that_was_copied_with_its_memory_is_found_by_its_second_write(
    lives: Lives,
):
    """Both hold a lock of the same name, and the same past."""
    one, other = lives.life("one", place="lock"), lives.life("one", place="lock")
    await one.write()
    lives.clock.seconds += 1
    await other.write()
    assert "may still run" in await refused(one)
    await one.write()
    lives.clock.seconds += 1
    await other.write()
    assert "another daemon has broker id 1" in await refused(one)


async def test_a_late_write_of_the_forerunner_shows_once_and_is_forgiven(lives: Lives):
    await lives.life("one", place="lock").write()
    late = lives.bucket.objects[KEY].body
    life = lives.life("one", place="lock")
    lives.clock.seconds += 1
    await life.write()
    await Storage(lives.bucket, clock=lives.clock).overwrite_control(KEY, late)
    assert isinstance(life.standing, Alone)
    await refused(life)
    for _ in range(2):
        assert await refused(life)  # the same one, looked at again, is no news
    assert isinstance(life.standing, Doubted)
    await lives.pass_time(QUIET_SECONDS + 100, life)
    await life.require_alone()
    assert lives.signs == []


@pytest.mark.parametrize(("ended", "place"), [(True, "the next boot's"), (False, "lock")])
async def test_a_forerunner_that_has_ended_is_no_other_daemon_while_its_file_is_not_written_over(
    lives: Lives, *, ended: bool, place: str
):
    """So it was after each start at which the storage did not take the first write."""
    old = lives.life("old", place="lock")
    await old.write()
    if ended:
        await old.write(ended=True)
    life = lives.life("new", place=place)
    storage = storage_of(life)
    storage.refusal = "SlowDown"
    for _ in range(3):
        await life._try_write()
        lives.clock.seconds += module.LOOK_SECONDS
        await life.require_alone()
    storage.refusal = ""
    await life.write()
    await life.require_alone()
    assert lives.written().other is None
    assert lives.signs == []


async def test_what_shows_again_behind_a_write_is_no_forerunners(lives: Lives):
    await lives.life("one", place="lock").write()
    late = lives.bucket.objects[KEY].body
    life = lives.life("one", place="lock")
    storage = Storage(lives.bucket, clock=lives.clock)
    for _ in range(2):
        lives.clock.seconds += 1
        await life.write()
        await storage.overwrite_control(KEY, late)
        assert await refused(life)
    assert isinstance(life.standing, Met)


async def test_a_restart_does_not_cut_the_wait_short(lives: Lives):
    await lives.life("old").write()
    for _ in range(2):
        new = lives.life("new")
        await new.write()
        assert "may still run" in await refused(new)


async def test_a_write_whose_answer_was_lost_is_its_own(lives: Lives):
    life = lives.life("one")
    await life.write()
    storage = storage_of(life)
    storage.deaf = True
    lives.clock.seconds += 60
    with pytest.raises(StorageUnavailable):
        await life.write()
    await life.require_alone()


async def test_who_wrote_a_damaged_file_may_still_live(lives: Lives):
    await Storage(lives.bucket, clock=lives.clock).overwrite_control(KEY, b"{")
    life = lives.life("one")
    await life.write()
    assert await refused(life)
    await lives.pass_time(QUIET_SECONDS + 100, life)
    await life.require_alone()


async def test_a_file_that_was_removed_says_nothing(lives: Lives):
    life = lives.life("one")
    await life.write()
    del lives.bucket.objects[KEY]
    lives.clock.seconds += module.LOOK_SECONDS
    await life.require_alone()
    await life.write()
    assert lives.written().other is None


async def test_an_earlier_version_that_runs_beside_is_found_too(lives: Lives):
    life = lives.life("one")
    await life.write()
    older = marker.Presence(
        cluster_id="c1",
        broker_id=1,
        incarnation=1,
        started_at_ms=0,
        written_at_ms=0,
        copy_deadline_seconds=1.0,
        lease_end_ms=None,
        metadata_manager="rlmm",
        partitions={},
    )
    lives.bucket.objects.pop(KEY)
    await Storage(lives.bucket, clock=lives.clock).overwrite_control(KEY, marker.encode(older))
    assert "a daemon of an earlier version" in await refused(life)


async def test_a_bucket_that_does_not_answer_lets_nothing_be_deleted(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "FIRST_LOOK_SECONDS", 0.01)
    life = lives.life("one")
    assert "not read in time" in await refused(life)
    await life.write()
    storage = storage_of(life)
    storage.away = True
    await life.require_alone()  # by the look of just now
    lives.clock.seconds += module.LOOK_SECONDS
    assert await refused(life) == "away"


async def test_what_the_meeting_calls_for_is_done_before_anything_else_is(lives: Lives):
    """A hold that could not be written is due at the next look."""
    life = lives.life("one")
    await life.write()
    failures = ["the marker was not written"]
    done: list[bool] = []

    async def met() -> None:
        if failures:
            raise StorageUnavailable(failures.pop())
        done.append(True)

    life._on_met = met
    await lives.life("other").write()
    assert await refused(life) == "the marker was not written"
    assert "another daemon" in await refused(life)
    assert done == [True]
    assert "another daemon" in await refused(life)
    assert done == [True, True], "the other's file was there again"
    await life.write()
    done.clear()
    assert "another daemon" in await refused(life)
    assert done == []


class Remembered:
    """A state directory, as far as it is asked for here."""

    def __init__(self) -> None:
        self.who: str | None = None
        self.failure: OSError | None = None

    async def other_daemon(self) -> str | None:
        if self.failure is not None:
            raise self.failure
        return self.who

    async def note_other_daemon(self, who: str | None) -> None:
        if self.failure is not None:
            raise self.failure
        self.who = who


async def test_whom_an_earlier_life_had_met_is_met_again_though_the_bucket_never_heard_of_it(
    lives: Lives,
):
    """What that one acknowledged between the meeting and its silence is held at its silence."""
    kept = Remembered()
    life = lives.life("one", remembrance=kept)
    await life.write()

    async def away() -> None:
        raise StorageUnavailable("away")

    life._on_met = away
    await lives.life("other").write()
    assert await refused(life) == "away"
    assert kept.who == "other"
    lives.signs.clear()
    again = lives.life("one", "the lock after another boot", kept)
    await again._try_write()
    assert "another daemon has broker id 1: other" in (again.why_not_alone() or "")
    assert lives.signs == ["one"]
    await lives.pass_time(GONE_SECONDS + module.REWRITE_SECONDS, again)
    assert again.why_not_alone() is None
    assert lives.signs[-2:] == ["one", "one"]
    assert not kept.who
    last = lives.life("one", "a third lock", kept)
    await last._try_write()
    assert "another daemon has" not in (last.why_not_alone() or "")


async def test_a_state_directory_that_does_not_answer_lets_nothing_be_deleted(lives: Lives):
    kept = Remembered()
    kept.failure = OSError("no answer")
    life = lives.life("one", remembrance=kept)
    with pytest.raises(StorageUnavailable, match="the state directory can't be read: no answer"):
        await life.write()
    assert life.standing == Unread()
    kept.failure = None
    await life.write()
    await life.require_alone()


async def test_a_meeting_that_can_not_be_noted_is_one_all_the_same(lives: Lives):
    kept = Remembered()
    life = lives.life("one", remembrance=kept)
    await life.write()
    kept.failure = OSError("full")
    await lives.life("other").write()
    assert "another daemon" in await refused(life)
    assert (kept.who, lives.signs) == (None, ["one"])


async def test_a_meeting_is_noted_as_soon_as_the_state_directory_takes_it(lives: Lives):
    kept = Remembered()
    life = lives.life("one", remembrance=kept)
    await life.write()
    kept.failure = OSError("full")
    await lives.life("other").write()
    assert await refused(life)
    kept.failure = None
    assert await refused(life)
    assert kept.who == "other"
    kept.failure = OSError("full")
    await lives.pass_time(GONE_SECONDS + module.REWRITE_SECONDS, life)
    assert kept.who == "other"
    kept.failure = None
    await lives.pass_time(module.REWRITE_SECONDS, life)
    assert kept.who is None


async def test_nothing_is_deleted_while_a_hold_is_due_by_a_look_of_just_now_either(lives: Lives):
    """At the other's silence: its look had found nobody, and the next one was spared."""
    life = lives.life("one")
    await life.write()
    await lives.life("other").write()
    await life.write()
    failures = 0

    async def denied() -> None:
        nonlocal failures
        failures += 1
        raise StorageUnavailable("the marker is not written")

    life._on_met = denied
    lives.clock.seconds += GONE_SECONDS
    for _ in range(3):
        with pytest.raises(StorageUnavailable, match="the marker is not written"):
            await life.require_alone()
    assert (failures, life.standing) == (3, Alone())
    assert "hold on what it may have stored is not written yet" in (life.why_not_alone() or "")


async def test_a_hold_that_takes_long_keeps_no_file_from_being_written_and_is_done_once(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
):
    """It may list all objects: begun anew within each write's time it would never end."""
    for limit in ("WRITE_SECONDS_MAX", "FIRST_LOOK_SECONDS"):
        monkeypatch.setattr(module, limit, 0.05)
    life, listed, calls = lives.life("one"), asyncio.Event(), 0
    await life.write()

    async def slow() -> None:
        nonlocal calls
        calls += 1
        await listed.wait()

    life._on_met = slow
    await lives.life("other").write()
    await life._try_write()
    assert lives.written().other == OtherDaemon(who="other", met=True)
    lives.clock.seconds += GONE_SECONDS
    for _ in range(2):
        assert "another daemon" in await refused(life)
    assert life.trouble is not None
    assert "is not written yet" in life.trouble.message
    assert calls == 1
    listed.set()
    await until(lambda: not life._owes)
    await life.require_alone()
    assert calls == 2, "at the meeting, and at the silence"


async def test_a_file_that_is_too_large_to_be_anybodys_is_written_over(lives: Lives, monkeypatch):
    """Its error ended the process, and the next one at its first look again."""
    life = lives.life("one")
    storage, real = storage_of(life), MemoryStorage.get_control

    async def too_large(key: str) -> ControlObject | None:
        if storage.writes:
            return await real(storage, key)
        raise Malformed("more bytes than a control object has")

    monkeypatch.setattr(storage, "get_control", too_large)
    await life._try_write()
    assert isinstance(life.standing, Doubted)
    assert lives.written().host == "one"


async def test_the_other_one_hears_of_it_within_moments(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    life = lives.life("one")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(life.run())
        await until(lambda: KEY in lives.bucket.objects)
        await lives.life("other").write()
        await refused(life)
        await until(lambda: lives.written().host == "one" and lives.written().other is not None)
        running.cancel()


async def test_a_storage_that_takes_no_writes_keeps_the_doubt_and_says_so_until_it_takes_them(
    lives: Lives,
):
    """The other one may be refused as well: that it does not write says nothing then."""
    await lives.life("old").write()
    new = lives.life("new")
    storage = storage_of(new)
    storage.refusal = "PutObject is denied"
    for _ in range(3):
        await lives.pass_time(10 * GONE_SECONDS, new)
        why = await refused(new)
        assert "(old), which may still run, and is not written over (PutObject is denied)" in why
        assert "until the storage takes that write" in why
    storage.refusal = ""
    await lives.pass_time(1, new)
    await lives.pass_time(QUIET_SECONDS - 10, new)
    assert "nothing is deleted until it was silent" in await refused(new)
    await lives.pass_time(20, new)
    await new.require_alone()
    assert new.trouble is None


async def test_nor_is_one_that_was_met_called_gone_by_a_storage_that_takes_no_writes(lives: Lives):
    life = lives.life("one")
    await life.write()
    await lives.life("other").write()
    storage = storage_of(life)
    storage.refusal = "PutObject is denied"
    await lives.pass_time(10 * GONE_SECONDS, life)
    assert "180 s after the storage takes this one's (PutObject is denied)" in await refused(life)
    storage.refusal = ""
    await lives.pass_time(GONE_SECONDS + 100, life)
    await life.require_alone()


@asynccontextmanager
async def at_work(life: PresenceFile) -> AsyncIterator[Storage]:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(life.run())
        yield storage_of(life)
        running.cancel()


def in_simulated_time(main: Coroutine[object, object, None]) -> None:
    with ended(SimLoop(rng=random.Random(0))) as loop:
        loop.run_until_complete(main)


def test_positions_that_move_are_told_every_ten_seconds_and_those_that_rest_are_not(lives: Lives):
    async def main() -> None:
        life = lives.life("one")
        async with at_work(life) as storage:
            await asyncio.sleep(30)
            assert storage.writes == 1
            life.moved()
            await asyncio.sleep(0.1)
            assert storage.writes == 2, "what moves behind a rest is told at once"
            for _ in range(1_200):
                life.moved()
                await asyncio.sleep(0.5)
            assert storage.writes == 2 + 60
            life.moved()
            await asyncio.sleep(11)
            told = storage.writes
            assert told == 2 + 61, "the last ones too"
            await asyncio.sleep(3_600)
            assert storage.writes == told + 60

    in_simulated_time(main())


def test_a_change_is_told_within_a_second_and_a_write_that_failed_is_tried_again_in_ten(
    lives: Lives,
):
    async def main() -> None:
        life = lives.life("one")
        async with at_work(life) as storage:
            await asyncio.sleep(5)
            for _ in range(3):
                before = storage.writes
                life.changed()
                await asyncio.sleep(module.SETTLE_SECONDS + 0.1)
                assert storage.writes == before + 1
            storage.away = True
            life.changed()
            await asyncio.sleep(60)
            assert life.trouble is not None
            assert life.trouble.consecutive >= 5
            storage.away = False
            await asyncio.sleep(module.MOVED_SECONDS)
            assert life.trouble is None

    in_simulated_time(main())


def test_a_place_is_the_locks_own(tmp_path):
    lock, copy, boot = tmp_path / "lock", tmp_path / "copy", tmp_path / "boot_id"
    for each in (lock, copy):
        each.write_text("")
    boot.write_text("b1\n")
    here = place_of(str(lock), str(boot))
    assert here == place_of(str(lock), str(boot))
    assert here != place_of(str(copy), str(boot))
    boot.write_text("b2\n")
    assert here != place_of(str(lock), str(boot))
    assert place_of(str(lock), str(tmp_path / "none")) == place_of(str(tmp_path / "no")) == ""
