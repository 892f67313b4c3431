"""A replay lets others have their turn, however large a batch is."""

from rlmm_daemon.adapters.event_log import memory
from rlmm_daemon.core.fold import Fold
from tests.unit.manager.events import TP, of, started, until, updated

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
        await until(lambda: manager.is_ready(TP))
        for number in range(COPIES):
            await manager.log.append(of(TP), started(number, 10 * number, 10 * number + 9))
            await manager.log.append(of(TP), updated(number))
    monkeypatch.setattr(Fold, "apply_run", noted)
    monkeypatch.setattr(memory, "BATCH_RECORDS_MAX", 2 * COPIES)  # as many writers leave behind
    async with rig.manager("with nothing to go by") as manager:
        manager.replace_assignment([TP], [])
        await until(lambda: manager.is_ready(TP))
        fold = manager.fleet.followers[of(TP)].fold
        assert len(fold.partitions[TP].list_epoch(0)) == COPIES
    assert max(batches) > ROWS_MAX, "the log gives large batches"
    assert max(looked) <= ROWS_MAX
