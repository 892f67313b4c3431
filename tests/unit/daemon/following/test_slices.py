"""A replay lets others have their turn, however large a batch is; so does what is written down."""

import gc

from rlmm_daemon.codec.state_files import (
    Announced,
    announced_json,
    announced_rows,
    from_json,
)
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.daemon.base.fair_scheduler import FairScheduler
from rlmm_daemon.daemon.following import batches
from rlmm_daemon.daemon.metadata.assignment import Assignment, from_file
from rlmm_daemon.domain.ids import TopicIdPartition
from tests.support import memory_log
from tests.unit.daemon.events import TP, of, started, until, updated

COPIES = 2_000
ROWS_MAX = 512


async def test_a_large_batch_is_looked_through_in_slices(rig, monkeypatch):
    batches: list[int] = []
    looked: list[int] = []
    apply_run = Fold.apply_run

    def noted(self, rows, begin, end, turn=None):
        batches.append(len(rows))
        looked.append(end - begin)
        return apply_run(self, rows, begin, end, turn)

    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        for number in range(COPIES):
            await manager.log.append(of(TP), started(number, 10 * number, 10 * number + 9))
            await manager.log.append(of(TP), updated(number))
    monkeypatch.setattr(Fold, "apply_run", noted)
    monkeypatch.setattr(memory_log, "BATCH_RECORDS_MAX", 2 * COPIES)  # as many writers leave behind
    async with rig.manager("with nothing to go by") as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        fold = manager.fleet.followers[of(TP)].fold
        assert len(fold.partitions[TP].list_epoch(0)) == COPIES
    assert max(batches) > ROWS_MAX, "the log gives large batches"
    assert max(looked) <= ROWS_MAX


async def test_what_was_replayed_is_not_walked_by_the_collector(rig):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        await manager.log.append(of(TP), started(1, 10, 19))
        await manager.log.append(of(TP), updated(1))
    gc.unfreeze()
    async with rig.manager("with nothing to go by") as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        replayed = manager.fleet.followers[of(TP)].fold.partitions[TP].epochs[0].cover.own.ids
        assert len(replayed) == 1
        assert not any(each is replayed for each in gc.get_objects())


async def test_a_long_replay_leaves_the_collector_less_and_less_to_walk(rig, monkeypatch):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        for number in range(COPIES // 2):
            await manager.log.append(of(TP), started(number, 10 * number, 10 * number + 9))
            await manager.log.append(of(TP), updated(number))
    frozen: list[int] = []
    monkeypatch.setattr(memory_log, "BATCH_RECORDS_MAX", 100)
    monkeypatch.setattr(batches, "_FREEZE_EVENTS", COPIES // 8)
    async with rig.manager("with nothing to go by") as manager:
        monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
    assert len(frozen) == 8 + 1, "and once when it was ready"


def test_what_was_announced_is_written_down_in_steps_as_of_one_moment():
    many = [TopicIdPartition(TP.topic_id, "many", number) for number in range(600)]
    assignment = Assignment(lambda _: None)
    assignment.replace(many, [])
    before = written(assignment.rows())
    steps = assignment.rows()
    encoded = [announced_rows(some := next(steps))]
    assert len(some) < 300
    assignment.remove(many[300:])
    for some in steps:
        assert len(some) < 300
        encoded.append(announced_rows(some))
    assert from_file(from_json(b"".join(announced_json(encoded)), Announced, "")) == before == many
    assert written(assignment.rows()) == many[:300]
    assignment.remove(many)
    assert written(assignment.rows()) == []


def written(rows) -> list[TopicIdPartition]:
    """Return what a later daemon reads of rows that were written down."""
    pieces = announced_json(map(announced_rows, rows))
    return from_file(from_json(b"".join(pieces), Announced, ""))


async def test_one_event_that_takes_a_slice_is_the_last_before_others_have_their_turn(
    rig, monkeypatch
):
    async with rig.manager() as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
        for number in range(50):
            await manager.log.append(of(TP), updated(number))  # none of them goes in a run
    between = [0]
    apply, wait = Fold.apply, FairScheduler.wait

    def noted(self, offset, value):
        between[-1] += 1
        return apply(self, offset, value)

    async def waited(self):
        between.append(0)
        await wait(self)

    monkeypatch.setattr(batches, "SLICE_SECONDS", 0.0)  # so each event takes one
    monkeypatch.setattr(Fold, "apply", noted)
    monkeypatch.setattr(FairScheduler, "wait", waited)
    async with rig.manager("with nothing to go by") as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.lookups.is_ready(TP))
    assert sum(between) == 50
    assert max(between) == 1
