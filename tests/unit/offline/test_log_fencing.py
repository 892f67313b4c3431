"""`rlmm log copy`: what is fenced first, and what is held against each other at the end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rlmm_daemon.codec import marker
from rlmm_daemon.codec.marker import Presence, PresencePartition
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.daemon.bucket import presence_files
from rlmm_daemon.daemon.bucket.bucket import PresenceFiles
from rlmm_daemon.domain.errors import InvalidArgument, StorageUnavailable
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.offline import log_copying
from rlmm_daemon.offline.copying.comparing import first_difference
from rlmm_daemon.offline.log_contents import append_all
from tests.unit.daemon.events import COUNT, TP, marked, updated
from tests.unit.offline.test_log_moving import (
    CLUSTER,
    TOPIC_ID,
    N,
    config_of,
    end,
    life,
    store,
    stored,
    use,
)

HOUR_MS = 3_600_000


def presence(broker_id: int) -> Presence:
    """What a daemon that lives says of itself, following the source's log."""
    now_ms = time.time_ns() // 1_000_000
    at = PresencePartition(
        state="ready", topic_id=uuid_text(TOPIC_ID), leader_epoch=0, next_offset=2
    )
    return Presence(
        cluster_id=CLUSTER,
        broker_id=broker_id,
        incarnation=None,
        started_at_ms=0,
        written_at_ms=now_ms,
        copy_deadline_seconds=1.0,
        lease_end_ms=now_ms + HOUR_MS,
        metadata_manager="rlmm",
        partitions={N: at},
    )


def ended(said: Presence) -> Presence:
    return replace(said, ended=True)


def gone(said: Presence) -> Presence:
    return replace(said, lease_end_ms=said.written_at_ms - HOUR_MS)


def of_another_log(said: Presence) -> Presence:
    at = replace(said.partitions[N], topic_id=uuid_text(bytes(16)))
    return replace(said, partitions={N: at})


def put(home: Path, said: Presence, data: bytes | None = None) -> None:
    file = home / "remote" / marker.presence_key(said.broker_id)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(marker.encode(said) if data is None else data)


@pytest.mark.parametrize("execute", [True, False])
async def test_a_log_that_another_brokers_daemon_uses_is_not_copied_away(
    tmp_path, monkeypatch, execute
):
    config = config_of(tmp_path, storage=await stored(tmp_path))
    put(tmp_path, presence(2))
    put(tmp_path, presence(3))
    target = store()
    adopted = use(monkeypatch, {str(tmp_path): store(life(1)), "kafka": target})
    copying = {"accept_loss": False, "execute": execute}
    with pytest.raises(InvalidArgument, match=r"daemons of other brokers use .*: 2, 3\."):
        await log_copying._run(config, str(tmp_path), "kafka", **copying)
    put(tmp_path, presence(2), b"{")
    with pytest.raises(InvalidArgument, match=r"_rlmm/daemons/2\.json can't be read"):
        await log_copying._run(config, str(tmp_path), "kafka", **copying)
    assert (target.partition(N).values, adopted) == ([], [])


async def test_one_that_was_killed_while_its_clock_was_ahead_is_said_to_be_waited_for_in_vain(
    tmp_path, monkeypatch
):
    """It would count as gone when that clock's time has come: in a year, say."""
    config = config_of(tmp_path, storage=await stored(tmp_path))
    put(tmp_path, presence(2))
    put(tmp_path, ordinary := replace(presence(3), lease_end_ms=presence(3).written_at_ms + 1))
    use(monkeypatch, {str(tmp_path): store(life(1)), "kafka": store()})
    with pytest.raises(InvalidArgument, match=r"remove _rlmm/daemons/2\.json$"):
        await log_copying._run(config, str(tmp_path), "kafka", accept_loss=False)
    put(tmp_path, gone(presence(2)))
    put(tmp_path, replace(ordinary, lease_end_ms=presence(3).written_at_ms + 180_000))
    with pytest.raises(InvalidArgument, match=r": 3\. .* s at most$"):
        await log_copying._run(config, str(tmp_path), "kafka", accept_loss=False)


@pytest.mark.parametrize("source", ["kafka", "a directory"])
async def test_a_shared_log_is_not_copied_away_where_presence_files_cant_be_listed(
    tmp_path, monkeypatch, source
):
    config = config_of(tmp_path, storage=await stored(tmp_path))
    logs = {source: store(life(1)), str(tmp_path): (target := store())}
    use(monkeypatch, logs)

    async def denied(*_: object) -> PresenceFiles:
        raise StorageUnavailable("AccessDenied", retry=False)

    monkeypatch.setattr(presence_files, "present", denied)
    copying = log_copying._run(config, source, str(tmp_path), accept_loss=False)
    if source == "kafka":
        with pytest.raises(InvalidArgument, match=r"nobody knows .*AccessDenied"):
            await copying
    else:
        await copying
    assert bool(target.partition(N).values) == (source != "kafka")


@pytest.mark.parametrize("how", [ended, gone, of_another_log])
async def test_a_daemon_that_stopped_or_went_on_with_another_log_is_no_hindrance(
    tmp_path, monkeypatch, how: Callable[[Presence], Presence]
):
    config = config_of(tmp_path, storage=await stored(tmp_path))
    put(tmp_path, how(presence(2)))
    put(tmp_path, presence(1))  # its own: the state directory is in nobody's use
    target = store()
    use(monkeypatch, {str(tmp_path): store(life(1)), "kafka": target})
    await log_copying._run(config, str(tmp_path), "kafka", accept_loss=False)
    assert target.partition(N).values == life(1)


def test_a_source_that_went_on_is_taken_up_only_once_it_does_no_more(tmp_path, monkeypatch):
    """Whatever was acknowledged behind the copy's back would be lost with the switch."""
    source, target = store(life(1)), store()
    adopted = use(monkeypatch, {str(tmp_path): source, "kafka": target})

    async def beside(*given: Any) -> set[int]:
        for value in life(2):
            source.put(N, value)
        monkeypatch.setattr(log_copying, "append_all", append_all)
        return await append_all(*given)

    monkeypatch.setattr(log_copying, "append_all", beside)
    config = config_of(tmp_path)
    with pytest.raises(InvalidArgument, match="went on while it was copied, from offset 2 to 4"):
        log_copying.run(config, str(tmp_path), "kafka")
    assert not adopted
    log_copying.run(config, str(tmp_path), "kafka")
    assert (target.partition(N).values, len(adopted)) == (life(1) + life(2), 1)


async def test_a_daemon_that_was_started_meanwhile_is_noticed_before_it_writes(
    tmp_path, monkeypatch
):
    """What it acknowledges on the source after the switch would be lost."""
    config = config_of(tmp_path, storage=await stored(tmp_path))
    adopted = use(monkeypatch, {str(tmp_path): store(life(1)), "kafka": store()})

    async def beside(*given: Any) -> set[int]:
        put(tmp_path, presence(2))
        return await append_all(*given)

    monkeypatch.setattr(log_copying, "append_all", beside)
    with pytest.raises(InvalidArgument, match=r"daemons of other brokers use .*: 2\."):
        await log_copying._run(config, str(tmp_path), "kafka", accept_loss=False)
    assert not adopted


def test_a_copy_ends_as_soon_as_somebody_else_writes_to_the_target(tmp_path, monkeypatch):
    source, target = store([v for n in range(5) for v in life(n)]), store()
    adopted = use(monkeypatch, {str(tmp_path): source, "kafka": target})
    monkeypatch.setattr(log_copying, "_CHUNK", 2)

    async def beside(*given: Any) -> set[int]:
        if target.partition(N).end == 2:
            target.put(N, life(9)[0])
        return await append_all(*given)

    monkeypatch.setattr(log_copying, "append_all", beside)
    with pytest.raises(InvalidArgument, match="somebody else writes"):
        log_copying.run(config_of(tmp_path), str(tmp_path), "kafka")
    assert (target.partition(N).end, adopted) == (5, [])


def test_a_dry_run_counts_and_writes_nothing(tmp_path, monkeypatch):
    source, target = store([*life(1), None, *life(2)]), store(life(1))
    adopted = use(monkeypatch, {str(tmp_path): source, "kafka": target})
    rows = log_copying.run(config_of(tmp_path), str(tmp_path), "kafka", execute=False)
    row = rows[N]
    assert (row.events, row.missing, row.appended, row.passed_over) == (4, 2, 0, 1)
    assert (row.source_end, row.target_end) == (5, 2)
    assert (target.partition(N).values, adopted) == (life(1), [])
    use(monkeypatch, {str(tmp_path): source, "kafka": store(life(9))})
    with pytest.raises(InvalidArgument, match="of the target differs from its event 0 on"):
        log_copying.run(config_of(tmp_path), str(tmp_path), "kafka", execute=False)


@pytest.mark.parametrize(
    "more",
    [
        end(1),
        life(2),
        [updated(1, SegmentState.DELETE_SEGMENT_STARTED)],
        [marked(PartitionDeleteState.DELETE_PARTITION_MARKED)],
    ],
)
def test_folds_that_answer_differently_are_told_apart(more: list[bytes]):
    def folded(values: list[bytes | None]) -> Fold:
        fold = Fold(N, COUNT)
        for offset, value in enumerate(values):
            fold.apply(offset, value)
        return fold

    one, other = folded([*life(1)]), folded([*life(1), *more])
    assert first_difference(one, folded([None, *life(1), None])) is None
    assert first_difference(one, other) == TP
    assert first_difference(other, one) == TP
    assert first_difference(folded([]), folded([])) is None
