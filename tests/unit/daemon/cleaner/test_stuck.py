"""Copies and deletes that nobody ends: which are ended, which are only told of, which are live."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import custom_metadata, records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED, StoredFacts
from rlmm_daemon.codec.marker import MARKER_KEY, AcceptedLoss
from rlmm_daemon.core.disposal.steps import CopyStep, DeleteStep
from rlmm_daemon.daemon.base.caller import Caller
from rlmm_daemon.daemon.bucket import acceptance
from rlmm_daemon.daemon.cleaner import stuck
from rlmm_daemon.domain.errors import RlmmError, SegmentNotFound, TimedOut
from rlmm_daemon.domain.ids import BrokerId, Offset
from rlmm_daemon.domain.segment import CustomMetadata
from rlmm_daemon.domain.segment import SegmentState as S
from rlmm_daemon.ports.storage import ControlObject, UploadInfo
from tests.simulation.cleaning import (
    CUSTOM,
    OPTIONS,
    CleanWorld,
    number_of,
    partition_of,
    run,
    segment,
)
from tests.support.memory_storage import MemoryStorage

AT = partition_of(2)
#: Copy deadline and delivery timeout together.
PATIENCE = OPTIONS.copy_deadline_seconds + OPTIONS.delivery_timeout_seconds
HOUR = 3600.0


def copies(world: CleanWorld, broker_id: int = 1) -> dict[CopyStep, int]:
    note = world.daemons[broker_id].cleaner.notes.stuck.get(AT)
    return {} if note is None else {step: each.count for step, each in note.copies.items()}


def deletes(world: CleanWorld, broker_id: int = 1) -> dict[DeleteStep, int]:
    note = world.daemons[broker_id].cleaner.notes.stuck.get(AT)
    return {} if note is None else {step: each.count for step, each in note.deletes.items()}


def is_gone(world: CleanWorld, number: int = 1) -> bool:
    return world.state(number, AT) is None


async def begun(world: CleanWorld, broker_id: int = 1, **of_daemon) -> None:
    """A daemon whose broker said hello, and a copy of `broker_id` that was cut off."""
    daemon = world.daemon(**of_daemon)
    await asyncio.sleep(3)
    daemon.manager.hello_from_broker(world.clock.now_ms())
    await asyncio.sleep(1)
    world.put(world.started(1, AT, broker_id=broker_id))
    world.place(1, AT)


# Our own broker's copies.


def test_a_copy_is_stuck_once_its_broker_was_started_anew_and_the_time_is_over():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        await asyncio.sleep(5)
        world.daemons[1].manager.hello_from_broker(world.clock.now_ms())
        await asyncio.sleep(PATIENCE - 20)
        assert world.state(1, AT) is S.COPY_SEGMENT_STARTED
        await world.until(lambda: is_gone(world), 60)
        assert world.stored(AT) == []

    run(scenario)


def test_the_same_broker_may_still_be_at_it_however_long_that_takes():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        await asyncio.sleep(HOUR)
        assert world.state(1, AT) is S.COPY_SEGMENT_STARTED
        assert copies(world) == {CopyStep.UNPROVEN: 1}
        assert len(world.stored(AT)) == 3

    run(scenario)


def test_a_later_copy_of_the_same_broker_proves_that_it_gave_this_one_up():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        await asyncio.sleep(1)
        world.put(world.started(2, AT))  # the same offsets under another id
        world.place(2, AT)
        world.put(world.updated(2, AT, S.COPY_SEGMENT_FINISHED, CUSTOM))
        await world.until(lambda: is_gone(world), 2 * PATIENCE)
        assert sorted(world.stored(AT)) == sorted(world.keys(2, AT))

    run(scenario)


def test_a_later_copy_of_another_broker_proves_nothing():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        await asyncio.sleep(1)
        world.put(world.started(2, AT, broker_id=2))
        await asyncio.sleep(3 * PATIENCE)
        assert world.state(1, AT) is S.COPY_SEGMENT_STARTED

    run(scenario)


def test_a_copy_that_runs_here_is_live_whatever_its_age():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        world.daemons[1].manager.hello_from_broker(world.clock.now_ms() + 1)
        running = world.group.create_task(asyncio.sleep(HOUR))
        world.daemons[1].copies.begin(AT, segment(1), running)
        await asyncio.sleep(HOUR - 60)
        assert world.state(1, AT) is S.COPY_SEGMENT_STARTED
        await world.until(lambda: is_gone(world), 300)

    run(scenario)


def test_where_the_metadata_manager_is_not_ours_stuck_copies_are_only_told_of():
    async def scenario(world: CleanWorld) -> None:
        world.daemon()
        world.put(world.started(1, AT))
        world.place(1, AT)
        await asyncio.sleep(3 * PATIENCE)
        assert copies(world) == {CopyStep.REPORT: 1}
        assert len(world.stored(AT)) == 3

    run(scenario)


def test_a_follower_ends_its_own_brokers_copies_too():
    async def scenario(world: CleanWorld) -> None:
        world.facts.owners.clear()
        await begun(world)
        world.daemons[1].manager.replace_assignment([AT], [])
        world.daemons[1].manager.hello_from_broker(world.clock.now_ms() + 1)
        await world.until(lambda: is_gone(world), 2 * PATIENCE)
        assert world.stored(AT) == []

    run(scenario)


def test_where_it_follows_nothing_it_looks_as_soon_as_a_new_broker_makes_copies_old():
    """Its replicas moved while it was down: what it was copying is in nobody's sight."""

    async def scenario(world: CleanWorld) -> None:
        world.facts.owners.clear()
        await begun(world)
        await asyncio.sleep(5)
        daemon = world.daemons[1]
        daemon.manager.hello_from_broker(world.clock.now_ms())
        assert OPTIONS.round_seconds > 2 * PATIENCE
        await asyncio.sleep(PATIENCE - 20)
        assert daemon.manager.fleet.followers == {}
        await world.until(lambda: is_gone(world), 90)
        assert world.stored(AT) == []
        await world.until(lambda: not daemon.manager.fleet.followers, 120)

    run(scenario)


def test_a_round_stays_where_a_copy_could_not_be_ended_until_it_can():
    async def scenario(world: CleanWorld) -> None:
        world.facts.owners.clear()
        await begun(world)
        manager = world.daemons[1].manager
        update_if, refusals = manager.events.update_if, iter(range(2))

        async def refused(record: bytes, *args: Any, **named: Any) -> Any:
            if next(refusals, None) is not None:
                raise TimedOut("not now")
            return await update_if(record, *args, **named)

        manager.events.update_if = refused  # type: ignore[method-assign] # fails twice
        manager.hello_from_broker(world.clock.now_ms() + 1)
        await world.until(lambda: is_gone(world), PATIENCE + 300)
        assert next(refusals, None) is None
        assert world.stored(AT) == []

    run(scenario)


def test_a_failed_metadata_partition_does_not_hold_a_round_up():
    """Where it follows nothing, a daemon looks now and then: at one after another."""
    held = next(p for n in range(99) if number_of(p := partition_of(2, n)) == 0)
    own = next(p for n in range(99) if number_of(p := partition_of(2, n)) == 1)

    async def scenario(world: CleanWorld) -> None:
        world.facts.owners.clear()
        world.finished(1, held)
        world.put(world.updated(1, held, S.DELETE_SEGMENT_STARTED, ONLY_IF_STARTED))
        world.put(world.started(2, own))
        daemon = world.daemon()
        await asyncio.sleep(3)
        daemon.manager.hello_from_broker(world.clock.now_ms())
        await world.until(lambda: world.state(2, own) is None, 1.5 * HOUR)

    run(scenario)


def test_a_finish_that_slips_in_holds_the_segment_and_no_object_is_touched():
    """The broker's own FINISHED lands, through another log client, just before our append."""

    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        manager = world.daemons[1].manager
        manager.hello_from_broker(world.clock.now_ms() + 1)
        update_if = manager.events.update_if

        async def slip(record: bytes, holds: Any, *args: Any, **named: Any) -> Any:
            def judged(cache: Any) -> bool:
                fine = bool(holds(cache))
                world.put(world.updated(1, AT, S.COPY_SEGMENT_FINISHED, CUSTOM))
                return fine

            return await update_if(record, judged, *args, **named)

        manager.events.update_if = slip  # type: ignore[method-assign] # something happens in between
        await world.until(lambda: world.state(1, AT) is S.DELETE_SEGMENT_STARTED, 2 * PATIENCE)
        await asyncio.sleep(1.2 * HOUR)
        assert len(world.stored(AT)) == 3
        assert manager.events.is_held(AT, segment(1))
        failure = manager.fleet.followers[number_of(AT)].failure
        assert failure is not None
        assert failure.reason.value == "history_lost"

    run(scenario)


def test_nobody_ends_a_stuck_copy_beside_the_cleaner_while_its_objects_go():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        daemon = world.daemons[1]
        storage, slow = daemon.bucket.storage, asyncio.Event()
        delete = storage.delete

        async def waiting(keys: Any) -> Any:
            await slow.wait()
            return await delete(keys)

        storage.delete = waiting  # type: ignore[method-assign] # a delete that takes its time
        daemon.manager.hello_from_broker(world.clock.now_ms() + 1)
        await world.until(lambda: world.state(1, AT) is S.DELETE_SEGMENT_STARTED, 2 * PATIENCE)
        ended = records.encode(world.updated(1, AT, S.DELETE_SEGMENT_FINISHED))
        with pytest.raises(RlmmError):
            await daemon.manager.events.update(ended, Caller.OPERATOR, 5.0)
        assert world.state(1, AT) is S.DELETE_SEGMENT_STARTED
        slow.set()
        await world.until(lambda: is_gone(world), 60)
        assert world.stored(AT) == []

    run(scenario)


@pytest.mark.parametrize("finish_first", [True, False])
def test_clocks_alone_never_take_what_was_acknowledged(finish_first):
    """A clock that was ahead when the broker started, and is so again, makes every copy old.

    The finish of one that runs is refused then, and its broker copies it again; what was finished
    is none of the cleaner's. A copy that runs in this daemon is live whatever its age.
    """

    async def scenario(world: CleanWorld) -> None:
        daemon = world.daemon()
        await asyncio.sleep(3)
        daemon.manager.hello_from_broker(world.clock.now_ms())
        old = world.clock.now_ms() - round(1000 * 24 * HOUR)
        world.place(1, AT)
        world.put(replace(world.started(1, AT), event_timestamp_ms=old))
        if not finish_first:
            finish = records.encode(world.updated(1, AT, S.COPY_SEGMENT_FINISHED, CUSTOM))
            await world.until(lambda: is_gone(world), 120)
            with pytest.raises(SegmentNotFound):
                await daemon.manager.events.update(finish, Caller.BROKER, 5.0)
            return
        world.put(world.updated(1, AT, S.COPY_SEGMENT_FINISHED, CUSTOM))
        await asyncio.sleep(2 * PATIENCE)
        assert world.state(1, AT) is S.COPY_SEGMENT_FINISHED
        assert len(world.stored(AT)) > 0

    run(scenario)


def test_an_upload_that_was_cut_off_is_aborted():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        for name, number in (("mine", 1), ("other", 9)):
            upload = UploadInfo(key=world.keys(number, AT)[2], upload_id=name, initiated_ms=0)
            world.objects.uploads[f"{name}/{upload.key}"] = upload
        world.daemons[1].manager.hello_from_broker(world.clock.now_ms() + 1)
        await world.until(lambda: is_gone(world), 2 * PATIENCE)
        assert [upload.upload_id for upload in world.objects.uploads.values()] == ["other"]

    run(scenario)


def test_a_storage_that_fails_leaves_the_delete_begun_and_the_owner_ends_it():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        world.daemons[1].manager.hello_from_broker(world.clock.now_ms() + 1)
        await asyncio.sleep(PATIENCE - 10)
        world.objects.available = False
        await world.until(lambda: world.state(1, AT) is S.DELETE_SEGMENT_STARTED, 60)
        await asyncio.sleep(60)
        world.objects.available = True
        await world.until(lambda: is_gone(world), 2 * HOUR)
        assert world.stored(AT) == []

    run(scenario)


def test_a_copy_that_goes_while_it_is_looked_at_ends_nothing():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        await asyncio.sleep(PATIENCE - 10)

        class Slow:
            async def of(self, *_: object) -> frozenset[object]:
                world.put(world.updated(1, AT, S.DELETE_SEGMENT_STARTED))
                world.put(world.updated(1, AT, S.DELETE_SEGMENT_FINISHED))
                await asyncio.sleep(1)
                return frozenset()

        msgspec.structs.force_setattr(world.daemons[1].cleaner.tools, "superseded", Slow())
        await world.until(lambda: is_gone(world))
        await asyncio.sleep(20)
        task = world.daemons[1].task
        assert task is not None
        assert not task.done()

    run(scenario)


def test_what_cannot_be_ended_is_counted_and_told_of_until_it_can():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        cleaner, report = world.daemons[1].cleaner, world.daemons[1].report
        world.daemons[1].manager.hello_from_broker(world.clock.now_ms() + 1)
        await asyncio.sleep(PATIENCE - 10)
        world.objects.available = False
        await world.until(lambda: report.told(AT).trouble == "the bucket does not answer")
        assert report.rows()["errors"] == [
            {"partition": str(AT), "error": "the bucket does not answer"}
        ]
        assert cleaner.notes.failures > 0
        world.objects.available = True
        await world.until(lambda: is_gone(world), 2 * HOUR)
        await asyncio.sleep(2 * OPTIONS.interval_seconds)
        assert (report.told(AT).trouble, report.rows()["errors"]) == (None, [])

    run(scenario)


def test_copies_that_cannot_be_ended_hold_no_other_one_up(monkeypatch):
    monkeypatch.setattr(stuck, "COPIES_MAX", 1)

    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        world.put(world.started(2, AT, 100))
        world.place(2, AT, 100)
        manager = world.daemons[1].manager
        update_if = manager.events.update_if

        async def refused(record: bytes, *args: Any, **named: Any) -> Any:
            if bytes(segment(1)) in record:
                raise TimedOut("not this one")
            return await update_if(record, *args, **named)

        manager.events.update_if = refused  # type: ignore[method-assign] # but for one segment
        manager.hello_from_broker(world.clock.now_ms() + 1)
        await world.until(lambda: is_gone(world, 2), 2 * PATIENCE)
        assert world.state(1, AT) is S.COPY_SEGMENT_STARTED

    run(scenario)


# Another broker's copies.


async def orphaned(world: CleanWorld) -> None:
    """Broker 2 is gone for good, its copy is not finished."""
    world.present(2, lease_seconds=60.0)
    await begun(world, broker_id=2)


def test_another_brokers_copy_is_ended_once_it_is_unregistered_and_its_lease_is_over():
    async def scenario(world: CleanWorld) -> None:
        await orphaned(world)
        await world.until(lambda: is_gone(world), 3 * PATIENCE)
        assert world.stored(AT) == []

    run(scenario)


def test_a_registered_broker_may_come_back():
    async def scenario(world: CleanWorld) -> None:
        await orphaned(world)
        world.facts.registered.add(BrokerId(2))
        await asyncio.sleep(3 * PATIENCE)
        assert world.state(1, AT) is S.COPY_SEGMENT_STARTED
        assert copies(world) == {CopyStep.NOT_OURS: 1}

    run(scenario)


def test_a_lease_that_runs_is_a_daemon_that_may_be_copying():
    async def scenario(world: CleanWorld) -> None:
        await orphaned(world)
        world.present(2, lease_seconds=1e6)
        await asyncio.sleep(3 * PATIENCE)
        assert copies(world) == {CopyStep.UNPROVEN: 1}

    run(scenario)


def test_a_broker_without_a_presence_file_is_not_proven_gone():
    async def scenario(world: CleanWorld) -> None:
        await begun(world, broker_id=2)
        await asyncio.sleep(3 * PATIENCE)
        assert copies(world) == {CopyStep.UNPROVEN: 1}

    run(scenario)


def test_the_largest_recorded_deadline_is_waited_for():
    async def scenario(world: CleanWorld) -> None:
        await orphaned(world)
        world.present(3, copy_deadline_seconds=HOUR)
        await asyncio.sleep(HOUR - 30)
        assert world.state(1, AT) is S.COPY_SEGMENT_STARTED
        await world.until(lambda: is_gone(world), 2 * PATIENCE)

    run(scenario)


def losing(world: CleanWorld, change: Callable[[], None]) -> None:
    """Let something change while the first stuck copy is ended."""
    manager = world.daemons[1].manager
    update_if = manager.events.update_if

    async def changed(*args: Any, **named: Any) -> Any:
        change()
        return await update_if(*args, **named)

    manager.events.update_if = changed  # type: ignore[method-assign] # with a change before it


async def two_orphaned(world: CleanWorld) -> None:
    await orphaned(world)
    world.put(world.started(2, AT, 100, broker_id=2))
    world.place(2, AT, 100)
    world.daemons[1].manager.replace_assignment([AT], [])  # it follows the partition in any case


def left(world: CleanWorld) -> list[S]:
    states = (world.state(number, AT) for number in (1, 2))
    return [state for state in states if state is not None]


def test_a_former_owner_ends_no_further_copy_of_another_broker():
    async def scenario(world: CleanWorld) -> None:
        await two_orphaned(world)
        losing(world, world.facts.owners.clear)
        await asyncio.sleep(4 * PATIENCE)
        assert left(world) == [S.COPY_SEGMENT_STARTED]

    run(scenario)


def test_a_broker_that_is_registered_again_is_noticed_between_two_of_its_copies():
    async def scenario(world: CleanWorld) -> None:
        await two_orphaned(world)

        def back() -> None:
            world.facts.registered.add(BrokerId(2))

        losing(world, back)
        await asyncio.sleep(4 * PATIENCE)
        assert left(world) == [S.COPY_SEGMENT_STARTED]

    run(scenario)


# Deletes.


async def deleting(world: CleanWorld, custom: CustomMetadata | None = None, **of_daemon) -> None:
    world.finished(1, AT)
    world.daemon(**of_daemon)
    await asyncio.sleep(3)
    echo = CUSTOM if custom is None else custom
    world.put(world.updated(1, AT, S.DELETE_SEGMENT_STARTED, echo))


def test_a_delete_is_left_to_its_broker_for_an_hour():
    async def scenario(world: CleanWorld) -> None:
        await deleting(world)
        await asyncio.sleep(HOUR - 30)
        assert world.state(1, AT) is S.DELETE_SEGMENT_STARTED
        assert len(world.stored(AT)) == 3
        await world.until(lambda: is_gone(world), 120)
        assert world.stored(AT) == []

    run(scenario)


def test_a_delete_of_a_copy_that_never_finished_aborts_its_upload():
    """Its broker gave it up in the middle of a large `.log`, and died before it had cleaned up."""

    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        upload = UploadInfo(key=world.keys(1, AT)[2], upload_id="cut off", initiated_ms=0)
        world.objects.uploads[f"cut off/{upload.key}"] = upload
        world.put(world.updated(1, AT, S.DELETE_SEGMENT_STARTED))
        await world.until(lambda: is_gone(world), 2 * HOUR)
        assert world.stored(AT) == []
        assert world.objects.uploads == {}

    run(scenario)


def test_no_delete_of_a_copy_ends_before_it_is_known_how_long_copies_live():
    """No presence file was read yet; another daemon may have a longer deadline than this one."""

    async def scenario(world: CleanWorld) -> None:
        world.facts.silent = True
        await begun(world, broker_id=2)
        world.put(world.updated(1, AT, S.DELETE_SEGMENT_STARTED, broker_id=2))
        await asyncio.sleep(1.2 * HOUR)
        assert world.state(1, AT) is S.DELETE_SEGMENT_STARTED
        assert world.stored(AT) == []
        world.facts.silent = False
        await world.until(lambda: is_gone(world), 200)

    run(scenario)


def test_a_delete_of_a_topic_that_is_gone_is_ended_at_once():
    async def scenario(world: CleanWorld) -> None:
        await deleting(world)
        world.facts.gone.add(AT.topic_id)
        await world.until(lambda: is_gone(world), 200)
        assert world.stored(AT) == []

    run(scenario)


def test_only_the_owner_ends_deletes():
    async def scenario(world: CleanWorld) -> None:
        world.facts.owners.clear()
        await deleting(world)
        world.daemons[1].manager.replace_assignment([AT], [])
        await asyncio.sleep(1.2 * HOUR)
        assert deletes(world) == {DeleteStep.NOT_OURS: 1}
        assert len(world.stored(AT)) == 3

    run(scenario)


def test_a_held_segment_is_never_ended_and_goes_on_once_it_was_put_back():
    async def scenario(world: CleanWorld) -> None:
        await deleting(world, ONLY_IF_STARTED)
        world.facts.gone.add(AT.topic_id)
        await asyncio.sleep(1.2 * HOUR)
        assert len(world.stored(AT)) == 3
        assert world.state(1, AT) is S.DELETE_SEGMENT_STARTED
        custom = CUSTOM
        world.put(
            world.updated(1, AT, S.DELETE_SEGMENT_FINISHED),
            world.started(1, AT),
            world.updated(1, AT, S.COPY_SEGMENT_FINISHED, custom),
        )
        await asyncio.sleep(60)
        assert len(world.stored(AT)) == 3
        assert world.state(1, AT) is S.COPY_SEGMENT_FINISHED

    run(scenario)


# What an accepted loss keeps.


async def accepted(world: CleanWorld, broker_id: int = 1) -> None:
    loss = AcceptedLoss(
        metadata_partition=number_of(AT),
        topic_id="the log",
        accepted_at_ms=world.clock.now_ms(),
        broker_id=broker_id,
    )
    await acceptance.accept_loss(world.daemons[broker_id].bucket, loss, cluster_id=None)


def test_a_copy_that_may_have_been_finished_in_what_was_lost_is_kept_until_the_hold_ends():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        daemon = world.daemons[1]
        await accepted(world)
        daemon.manager.hello_from_broker(world.clock.now_ms() + 1)
        await asyncio.sleep(3 * PATIENCE)
        assert world.state(1, AT) is S.COPY_SEGMENT_STARTED
        assert copies(world) == {CopyStep.HOLD: 1}
        assert len(world.stored(AT)) > 0
        await acceptance.end_holds(daemon.bucket, number_of(AT), cluster_id=None)
        await world.until(lambda: is_gone(world), 60)

    run(scenario)


def test_a_loss_that_is_accepted_while_a_pass_waits_its_turn_holds_for_that_pass_too(monkeypatch):
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        daemon = world.daemons[1]
        pace = daemon.cleaner.tools.pace
        take = pace.take

        async def accepted_meanwhile(count: int) -> None:
            monkeypatch.setattr(pace, "take", take)
            await accepted(world)
            await take(count)

        monkeypatch.setattr(pace, "take", accepted_meanwhile)
        daemon.manager.hello_from_broker(world.clock.now_ms() + 1)
        await asyncio.sleep(3 * PATIENCE)
        assert pace.take == take, "a copy was about to be ended"
        assert world.state(1, AT) is S.COPY_SEGMENT_STARTED
        assert len(world.stored(AT)) > 0

    run(scenario)


def test_a_delete_that_was_meant_for_a_stuck_copy_is_kept_and_a_callers_is_not():
    async def scenario(world: CleanWorld) -> None:
        await begun(world)
        world.put(world.updated(1, AT, S.DELETE_SEGMENT_STARTED, custom=ONLY_IF_STARTED))
        await accepted(world)
        world.put(world.started(2, AT))
        world.place(2, AT)
        world.put(world.updated(2, AT, S.DELETE_SEGMENT_STARTED))
        await asyncio.sleep(3 * HOUR)
        assert is_gone(world, 2)
        assert world.state(1, AT) is S.DELETE_SEGMENT_STARTED
        assert deletes(world) == {DeleteStep.HOLD: 1}

    run(scenario)


@pytest.mark.parametrize("stored_before", [True, False])
def test_a_stuck_copys_delete_by_a_clock_that_was_ahead_is_kept_by_the_storages_time(stored_before):
    async def scenario(world: CleanWorld) -> None:
        await begun(world, options=replace(OPTIONS, stuck_delete_seconds=60.0))
        await accepted(world)
        await asyncio.sleep(1)
        if not stored_before:
            world.place(1, AT)
        ahead = world.clock.now_ms() + 60_000
        delete = world.updated(1, AT, S.DELETE_SEGMENT_STARTED, custom=ONLY_IF_STARTED)
        world.put(replace(delete, event_timestamp_ms=ahead))
        await asyncio.sleep(2 * PATIENCE)
        assert (world.state(1, AT) is S.DELETE_SEGMENT_STARTED) == stored_before
        assert is_gone(world) != stored_before
        if stored_before:
            note = world.daemons[1].cleaner.notes.stuck[AT]
            assert note.error is not None
            assert note.error.endswith(f"run: rlmm partition end-hold {number_of(AT)}")
            await acceptance.end_holds(world.daemons[1].bucket, number_of(AT), cluster_id=None)
            await world.until(lambda: is_gone(world), 2 * PATIENCE)

    run(scenario)


def test_of_a_hold_on_everything_the_command_is_named_that_ends_it():
    async def scenario(world: CleanWorld) -> None:
        await begun(world, options=replace(OPTIONS, stuck_delete_seconds=60.0))
        await acceptance.hold_all(world.daemons[1].bucket, world.clock.now_ms(), 1)
        await asyncio.sleep(1)
        ahead = world.clock.now_ms() + 60_000
        delete = world.updated(1, AT, S.DELETE_SEGMENT_STARTED, custom=ONLY_IF_STARTED)
        world.put(replace(delete, event_timestamp_ms=ahead))
        await asyncio.sleep(2 * PATIENCE)
        error = world.daemons[1].cleaner.notes.stuck[AT].error
        assert error is not None
        assert error.endswith("run: rlmm partition end-hold --all")

    run(scenario)


class Hung(MemoryStorage):
    """A directory whose marker hangs when told to."""

    hangs = False

    async def get_control(self, key: str) -> ControlObject | None:
        if self.hangs and key == MARKER_KEY:
            await asyncio.Event().wait()
        return await super().get_control(key)


class HungWorld(CleanWorld):
    def storage_of(self, _broker_id: BrokerId) -> Hung:
        return Hung(self.objects, clock=self.clock)


@pytest.mark.parametrize("holds", [True, False])
def test_a_marker_that_hangs_ends_no_pass_for_good(holds):
    """It is read anew where it held something, and for a layout that somebody else has added.

    S3 always answers in the end, with an error at least.
    """

    async def scenario(world: CleanWorld) -> None:
        await begun(world, options=replace(OPTIONS, stuck_delete_seconds=60.0))
        if holds:
            await accepted(world)
            world.put(world.updated(1, AT, S.DELETE_SEGMENT_STARTED, custom=ONLY_IF_STARTED))
        else:
            facts = StoredFacts(layout_number=2, log_crc32c=0, sizes={})
            for state in (S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED):
                world.put(world.updated(1, AT, state, custom_metadata.encode(facts)))
        daemon = world.daemons[1]
        assert isinstance(daemon.bucket.storage, Hung)
        daemon.bucket.storage.hangs = True
        passes = daemon.cleaner._passes[number_of(AT)]
        await world.until(lambda: daemon.cleaner._passes[number_of(AT)] > passes + 20, HOUR)
        assert world.state(1, AT) is S.DELETE_SEGMENT_STARTED

    run(scenario, HungWorld)


# What no listing shows: the third set.


def test_what_no_listing_shows_goes_once_listed_segments_hold_it():
    async def scenario(world: CleanWorld) -> None:
        world.daemon()
        for number, start, end in ((1, 10, 100), (2, 10, 90)):
            put(world, number, start, end)
        await asyncio.sleep(60)
        assert world.state(1, AT) is S.COPY_SEGMENT_FINISHED  # 91..100 are in it alone
        put(world, 3, 91, 200)
        await world.until(lambda: is_gone(world), 60)
        assert sorted(world.stored(AT)) == sorted([*world.keys(2, AT, 10), *world.keys(3, AT, 91)])

    run(scenario)


def test_it_stays_while_one_that_should_hold_its_offsets_is_not_stored():
    """Its objects were lost, or another storage manager has them: this may be the last copy."""

    async def scenario(world: CleanWorld) -> None:
        cleaner = world.daemon().cleaner
        for number, start, end in ((1, 10, 100), (2, 10, 90), (3, 91, 200)):
            put(world, number, start, end)
        (lost,) = [key for key in world.keys(3, AT, 91) if key.endswith(".log")]
        del world.objects.objects[lost]
        await asyncio.sleep(600)
        assert world.state(1, AT) is S.COPY_SEGMENT_FINISHED
        assert set(world.keys(1, AT, 10)) <= set(world.stored(AT))
        assert cleaner.segments.backoff.waits(segment(1)), "and it is told of all the same"
        assert "has no .log in the storage" in (cleaner.notes.stuck[AT].error or "")
        world.place(3, AT, 91)  # it was put back
        await world.until(lambda: is_gone(world), 7_200)

    run(scenario)


def test_it_stays_if_a_loss_is_accepted_within_the_pass(monkeypatch):
    """The event that deleted what seems to hold its offsets may be among what was lost."""

    async def scenario(world: CleanWorld) -> None:
        superseded = world.daemon().cleaner.tools.superseded
        known, asked = superseded.of, []

        async def accepted_meanwhile(*question: Any) -> Any:
            asked.append(question)
            monkeypatch.setattr(superseded, "of", known)
            await accepted(world)
            return await known(*question)

        monkeypatch.setattr(superseded, "of", accepted_meanwhile)
        for number, start, end in ((1, 10, 100), (2, 10, 90), (3, 91, 200)):
            put(world, number, start, end)
        await world.until(lambda: bool(asked), 60)
        await asyncio.sleep(100)
        assert world.state(1, AT) is S.COPY_SEGMENT_FINISHED
        assert set(world.keys(1, AT, 10)) <= set(world.stored(AT))

    run(scenario)


def test_it_is_judged_again_just_before_it_goes(monkeypatch):
    """What held its offsets is being deleted by then."""

    async def scenario(world: CleanWorld) -> None:
        manager = world.daemon().manager
        update_if, slipped = manager.events.update_if, []

        async def late(record: bytes, *args: Any, **named: Any) -> Any:
            slipped.append(record)
            world.put(world.updated(3, AT, S.DELETE_SEGMENT_STARTED))
            partitions = manager.fleet.followers[number_of(AT)].fold.partitions
            await world.until(
                lambda: partitions[AT].state(segment(3)) is S.DELETE_SEGMENT_STARTED, 60
            )
            return await update_if(record, *args, **named)

        for number, start, end in ((1, 10, 100), (2, 10, 90), (3, 91, 200)):
            put(world, number, start, end)
        monkeypatch.setattr(manager.events, "update_if", late)
        await world.until(lambda: bool(slipped), 60)
        await asyncio.sleep(100)
        assert world.state(1, AT) is S.COPY_SEGMENT_FINISHED
        assert set(world.keys(1, AT, 10)) <= set(world.stored(AT))

    run(scenario)


def put(world: CleanWorld, number: int, start: int, end: int) -> None:
    world.put(replace(world.started(number, AT, start), end_offset=Offset(end)))
    world.place(number, AT, start)
    world.put(world.updated(number, AT, S.COPY_SEGMENT_FINISHED, CUSTOM))


def test_one_at_a_time_never_takes_an_offset_away():
    async def scenario(world: CleanWorld) -> None:
        luck = random.Random(5)
        for number in range(1, 40):
            start = 10 * luck.randrange(6)
            put(world, number, start, start + luck.choice([9, 19, 29, 39]))
        before = answered(world)
        world.daemon()
        await asyncio.sleep(600)
        assert answered(world) == before
        assert world.daemons[1].cleaner.notes.deleted["unlisted"] > 3

    run(scenario)


def answered(world: CleanWorld) -> set[int]:
    cache = world.fold(number_of(AT)).partitions[AT]
    return {offset for offset in range(120) if cache.lookup(0, offset) is not None}
