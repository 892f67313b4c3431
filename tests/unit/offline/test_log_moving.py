"""`rlmm log copy` and `restore`: what a log is given, and what is refused first."""

import asyncio
import fcntl
import json
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlmm_daemon import config as configuration
from rlmm_daemon.adapters.storage.local import LocalStorage
from rlmm_daemon.cli import main
from rlmm_daemon.codec import marker
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.codec.marker import BucketMarker, Presence, PresencePartition
from rlmm_daemon.codec.state_files import (
    Position,
    Positions,
    from_json,
    marker_from,
    marker_json,
    to_json,
)
from rlmm_daemon.config import Config
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.snapshots import sealing
from rlmm_daemon.core.storage.layout import Layout, object_key
from rlmm_daemon.daemon.bucket.bucket import Bucket
from rlmm_daemon.daemon.bucket.live_marker import BucketIdentity
from rlmm_daemon.domain.errors import ConfigError, InvalidArgument, RlmmError
from rlmm_daemon.domain.ids import BrokerId, Offset, TopicId, uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.offline import log_contents, log_copying, log_restoring
from rlmm_daemon.offline.log_adoption import adopt
from rlmm_daemon.offline.log_contents import append_all, contents
from rlmm_daemon.offline.log_restoring import CHUNK, LOCK_NAME, Restored, known_to
from rlmm_daemon.ports.event_log import LogIdentity
from tests.support.memory_log import MemoryEventLog, MemoryLogStore
from tests.unit.daemon.events import COUNT, TP, marked, of, segment_id, started, updated

S, P = SegmentState, PartitionDeleteState
N = of(TP)
TOPIC_ID = TopicId(bytes(range(16)))
CLUSTER = "c"


def life(number: int) -> list[bytes]:
    return [started(number, 10 * number, 10 * number + 9), updated(number)]


def end(number: int) -> list[bytes]:
    return [updated(number, S.DELETE_SEGMENT_STARTED), updated(number, S.DELETE_SEGMENT_FINISHED)]


def config_of(home: Path, *, cluster: str | None = CLUSTER, storage: str = "") -> Config:
    (home / "state").mkdir(exist_ok=True)
    named = "" if cluster is None else f'cluster_id = "{cluster}"\n'
    return configuration.parse(
        f'[daemon]\nbroker_id = 1\n{named}state_dir = "{home}/state"\nlog_dirs = ["{home}/logs"]\n'
        '[event_log]\nkind = "kafka"\n[event_log.kafka]\nbootstrap = ["127.0.0.1:9"]\n'
        f"{storage}"
    )


@pytest.fixture
def config(tmp_path):
    return config_of(tmp_path)


def store(values: Iterable[bytes | None] = (), cluster: str | None = CLUSTER) -> MemoryLogStore:
    made = MemoryLogStore(topic_id=TOPIC_ID, partition_count=COUNT, cluster_id=cluster)
    for value in values:
        made.put(N, value)
    return made


def use(
    monkeypatch: pytest.MonkeyPatch, logs: dict[str, MemoryLogStore]
) -> list[dict[str, object]]:
    """Let names of logs mean these, and let nothing be adopted; return with what it would be."""

    @asynccontextmanager
    async def opened(_config: Config, name: str, count: int | None) -> AsyncIterator[Any]:
        log = MemoryEventLog(logs[name])
        await log.open(create=count is not None)
        yield log
        await log.close()

    async def adopt(*_: object, **told: object) -> bool:
        adopted.append(told)
        return True

    adopted = list[dict[str, object]]()

    for module in (log_contents, log_copying, log_restoring):
        monkeypatch.setattr(module, "opened", opened)
    for module in (log_copying, log_restoring):
        monkeypatch.setattr(module, "adopt", adopt)
    return adopted


def snapshot(
    directory: Path, values: Iterable[bytes], generation: int = 1, *, epoch: int = -1, **header: Any
) -> Path:
    """Write the snapshot of a log that holds these events."""
    fold = Fold(N, COUNT)
    for offset, value in enumerate(values):
        fold.apply(offset, value)
    fold.advance(fold.position, epoch)
    of_log: dict[str, Any] = {"cluster_id": CLUSTER, "topic_id": TOPIC_ID, "created_at_ms": 1}
    of_log |= header
    written = sealing.header_of(fold, **of_log)
    directory.mkdir(exist_ok=True)
    path = directory / f"{N}-{generation:010}.snapshot"
    path.write_bytes(b"".join(sealing.write_chunks(fold, written)))
    return path


def ids(known: log_restoring.Known) -> set[int]:
    return {int.from_bytes(key[1], "big") for key in known.segments}


def row(**changes: int) -> Restored:
    plain = {"known": 1, "missing": 0, "deleted": 0, "objects_gone": 0, "appended": 0}
    return Restored(metadata_partition=N, **(plain | changes))


# What snapshots know.


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_brokers_snapshots_the_one_that_read_on_furthest_counts(tmp_path, order):
    both = life(1) + life(2)
    snapshot(tmp_path / "a", both, generation=9)
    snapshot(tmp_path / "b", both + end(1), generation=1)
    names = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert ids(known_to(names[::order])) == {2}


@pytest.mark.parametrize("how", ["damaged", "rejected by the daemon"])
def test_a_newest_snapshot_that_cant_be_read_is_named_and_has_to_be_accepted(tmp_path, how):
    snapshot(tmp_path / "a", life(1) + life(2), generation=1)
    newest = snapshot(tmp_path / "a", life(1) + life(2) + end(1), generation=2)
    newest.write_bytes(newest.read_bytes()[:-1])
    if how != "damaged":
        newest = newest.rename(f"{newest}.rejected")
    with pytest.raises(InvalidArgument, match="--accept-damaged") as refused:
        known_to([str(tmp_path / "a")])
    assert str(newest) in refused.value.message
    known = known_to([str(tmp_path / "a")], accept_damaged=True)
    assert (ids(known), known.damaged) == ({1, 2}, (str(newest),))


def test_an_older_snapshot_that_cant_be_read_says_nothing(tmp_path):
    older = snapshot(tmp_path / "a", life(1), generation=1)
    older.write_bytes(b"damaged")
    older.rename(f"{older}.rejected")
    snapshot(tmp_path / "a", life(1) + life(2), generation=2)
    assert ids(known_to([str(tmp_path / "a")])) == {1, 2}


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match="nowhere: there is no such directory"):
        known_to([str(tmp_path / "nowhere")])


# What a log is given back.


@pytest.mark.parametrize("execute", [True, False])
@pytest.mark.parametrize(
    "gone",
    [
        end(1),
        end(1)[:1],
        [marked(P.DELETE_PARTITION_MARKED)],
        [marked(P.DELETE_PARTITION_STARTED)],
        [marked(P.DELETE_PARTITION_FINISHED)],
    ],
)
def test_what_was_deleted_stays_so_though_the_log_lost_its_begin(
    tmp_path, config, monkeypatch, gone, execute
):
    snapshot(tmp_path / "a", life(1))
    log = store([*life(1), *gone])
    log.trim(N, 2)
    use(monkeypatch, {"kafka": log})
    known = known_to([str(tmp_path / "a")])
    assert log_restoring.run(config, known, "kafka", execute=execute) == [row(deleted=1)]
    assert log.partition(N).end == 2 + len(gone)


@pytest.mark.parametrize("execute", [False, True])
@pytest.mark.parametrize("damage", ["head", "middle"])
def test_what_may_have_been_deleted_in_lost_offsets_comes_back_only_where_that_is_accepted(
    tmp_path, config, monkeypatch, damage, execute
):
    """The snapshot was made before the delete that the log lost."""
    snapshot(tmp_path / "a", life(1))
    log = store([*life(1), *end(1), *life(2)])
    if damage == "head":
        log.trim(N, 4)
    else:
        log.lose(N, 0, 4)
    use(monkeypatch, {"kafka": log})
    known, before = known_to([str(tmp_path / "a")]), log.partition(N).end
    with pytest.raises(InvalidArgument, match="lacks offsets 2 to 3, which no snapshot") as refused:
        log_restoring.run(config, known, "kafka", execute=execute)
    assert "--accept-loss" in str(refused.value)
    assert log.partition(N).end == before
    done = log_restoring.run(config, known, "kafka", execute=execute, accept_loss=True)
    assert done == [row(missing=1, appended=int(execute))]


def test_a_snapshot_that_had_read_what_the_log_lost_is_proof_enough(tmp_path, config, monkeypatch):
    snapshot(tmp_path / "a", [*life(1), *life(2)])
    log = store([*life(1), *life(2)])
    log.lose(N, 0, 2)
    use(monkeypatch, {"kafka": log})
    known = known_to([str(tmp_path / "a")])
    done = log_restoring.run(config, known, "kafka", execute=False)
    assert done == [row(known=2, missing=1)]


def test_what_was_held_when_the_snapshot_was_made_is_restored(tmp_path, config, monkeypatch):
    """It was finished, and then marked for deletion as if its copy were stuck."""
    stuck = updated(1, S.DELETE_SEGMENT_STARTED, custom=ONLY_IF_STARTED)
    snapshot(tmp_path / "a", [*life(1), stuck])
    log = store()
    use(monkeypatch, {"kafka": log})
    known = known_to([str(tmp_path / "a")])
    assert log_restoring.run(config, known, "kafka", execute=True) == [row(missing=1, appended=1)]
    assert log.partition(N).end == 2


@pytest.mark.parametrize(
    ("lost", "since"),
    [((4, 6), []), ((5, 6), []), ((3, 6), []), ((4, 6), end(1)), ((4, 6), "removed")],
)
def test_a_later_copy_under_one_id_comes_back_though_the_log_has_the_earlier_ones_end(
    tmp_path, config, monkeypatch, lost, since
):
    """Unless the log ended that one too, since the snapshot had read it."""
    both = [*life(1), *end(1), *life(1)]
    snapshot(tmp_path / "a", both, epoch=0)
    gone = [*map(marked, P), *life(2)] if since == "removed" else since
    log = store([*both, *gone])
    log.lose(N, *lost)
    use(monkeypatch, {"kafka": log})
    known = known_to([str(tmp_path / "a")])
    missing = int(not gone)
    for executed in (False, True):
        done = log_restoring.run(config, known, "kafka", execute=executed)
        assert done == [row(missing=missing, appended=missing * executed)]
    assert log_restoring.run(config, known, "kafka", execute=True) == [row()]
    there = asyncio.run(read_of(log))
    assert (there.state(segment_id(1)) is S.COPY_SEGMENT_FINISHED) == bool(missing)


async def read_of(log: MemoryLogStore) -> PartitionCache:
    opened = MemoryEventLog(log)
    await opened.open(create=False)
    cache = (await contents(opened, N)).fold.cache(TP)
    assert cache is not None
    return cache


def test_a_partition_that_came_back_to_life_is_restored(tmp_path, config, monkeypatch):
    marks = [marked(state) for state in P]
    snapshot(tmp_path / "a", life(2))
    log = store([*life(1), *end(1), *marks, *life(3)])
    use(monkeypatch, {"kafka": log})
    known = known_to([str(tmp_path / "a")])
    assert log_restoring.run(config, known, "kafka", execute=True) == [row(missing=1, appended=1)]


def test_what_is_missing_is_appended_once_however_often_it_is_asked(tmp_path, config, monkeypatch):
    numbers = range(1, 2 * CHUNK + 3)
    snapshot(tmp_path / "a", [value for number in numbers for value in life(number)])
    log = store([started(5, 50, 59)])
    adopted = use(monkeypatch, {"kafka": log})
    known, count = known_to([str(tmp_path / "a")]), len(numbers)
    dry = log_restoring.run(config, known, "kafka", execute=False)
    assert dry == [row(known=count, missing=count)]
    done = log_restoring.run(config, known, "kafka", execute=True)
    assert done == [row(known=count, missing=count, appended=count)]
    assert log.partition(N).end == 2 * count
    assert adopted[-1]["ends"] == {N: Position(2 * count, 0)}, "what goes of it is missed"
    assert log_restoring.run(config, known, "kafka", execute=True) == [row(known=count)]
    assert log.partition(N).end == 2 * count


async def test_two_restores_at_once_do_not_append_everything_twice(tmp_path, config, monkeypatch):
    count = 10 * CHUNK
    snapshot(tmp_path / "a", [value for number in range(count) for value in life(number)])
    log = store()
    use(monkeypatch, {"kafka": log})
    known = known_to([str(tmp_path / "a")])

    async def restore() -> RlmmError | None:
        try:
            await log_restoring._run(config, known, "kafka", execute=True)
        except RlmmError as error:
            return error
        return None

    both_read, waiting = asyncio.Barrier(2), [2]

    async def once_both_have_read(*asked: Any) -> Any:
        if waiting[0]:
            waiting[0] -= 1
            await both_read.wait()
        return await append_all(*asked)

    monkeypatch.setattr(log_restoring, "append_all", once_both_have_read)
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(restore()) for _ in range(2)]
    errors = [task.result() for task in both if task.result() is not None]
    assert errors
    assert all("somebody else restores" in str(error) for error in errors)
    assert log.partition(N).end <= 2 * count + 2 * CHUNK
    assert await restore() is None
    assert log.partition(N).end <= 2 * count + 4 * CHUNK


def test_a_second_restore_beside_the_same_state_directory_is_refused(tmp_path, config, monkeypatch):
    snapshot(tmp_path / "a", life(1))
    use(monkeypatch, {"kafka": store()})
    known = known_to([str(tmp_path / "a")])
    with (tmp_path / "state" / LOCK_NAME).open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another rlmm log restore"):
            log_restoring.run(config, known, "kafka", execute=True)
        assert log_restoring.run(config, known, "kafka", execute=False) == [row(missing=1)]


async def stored(home: Path, cluster: str = CLUSTER) -> str:
    """Make a storage that holds the `.log` of segment 1 alone; return its configuration."""
    (home / "remote").mkdir()
    storage = LocalStorage(str(home / "remote"), owner="1")
    bucket = Bucket(storage, layout=Layout(), rng=random.Random(1))
    await bucket.open(
        BucketIdentity(
            cluster_id=cluster, partition_count=COUNT, metadata_topic_id=uuid_text(TOPIC_ID)
        )
    )
    key = object_key(Layout(), TP, Offset(10), segment_id(1), suffix=".log")
    (home / "remote" / key).parent.mkdir()
    (home / "remote" / key).write_bytes(bytes(100))
    await storage.close()
    return f'[storage]\nkind = "local"\ndirectory = "{home}/remote"\n'


def test_what_a_restore_logs_is_no_part_of_its_answer(tmp_path):
    """It makes the log that is gone, which is logged."""
    file = tmp_path / "rlmm.toml"
    file.write_text(
        f'[daemon]\nbroker_id = 1\ncluster_id = "{CLUSTER}"\nstate_dir = "{tmp_path}/state"\n'
        f'log_dirs = ["{tmp_path}/logs"]\n[event_log]\nkind = "embedded"\nsingle_broker = true\n'
        '[storage]\nkind = "none"\n'
    )
    (tmp_path / "state").mkdir()
    snapshot(tmp_path / "a", life(1))
    words = ["log", "restore", "--config", str(file), "--from-snapshots", str(tmp_path / "a")]
    words += ["--to", str(tmp_path / "state" / "log"), "--execute", "--json"]
    run = CliRunner().invoke(main, [*words, "--accept-loss"])
    assert run.exit_code == 0, run.output
    assert "log_created" in run.stderr
    assert [row["appended"] for row in json.loads(run.stdout)] == [1]


def restoring(tmp_path: Path, read: dict[int, Position]) -> list[str]:
    """Return the words that restore a log which is gone, and of which so much had been read."""
    file = tmp_path / "rlmm.toml"
    file.write_text(
        f'[daemon]\nbroker_id = 1\ncluster_id = "{CLUSTER}"\nstate_dir = "{tmp_path}/state"\n'
        f'log_dirs = ["{tmp_path}/logs"]\n[event_log]\nkind = "embedded"\nsingle_broker = true\n'
        + asyncio.run(stored(tmp_path))
    )
    (tmp_path / "state").mkdir()
    partitions = {str(number): at for number, at in read.items()}
    positions = Positions(topic_id=uuid_text(TOPIC_ID), partitions=partitions)
    (tmp_path / "state" / "positions.json").write_bytes(to_json(positions))
    snapshot(tmp_path / "a", life(1))
    words = ["log", "restore", "--config", str(file), "--from-snapshots", str(tmp_path / "a")]
    return [*words, "--to", str(tmp_path / "state" / "log"), "--execute"]


def test_a_log_whose_end_was_written_down_is_restored_from_a_snapshot_that_had_read_to_it(tmp_path):
    read = {N: Position(2, 0, exact=True), (N + 1) % COUNT: Position(0, -1)}
    run = CliRunner().invoke(main, restoring(tmp_path, read))
    assert run.exit_code == 0, run.output


@pytest.mark.parametrize(
    ("read", "told"),
    [
        ({N: Position(4, 0, exact=True)}, f"{N} of the log that is gone up to offset 4, the snap"),
        ({N: Position(4, 0)}, f"{N} of the log that is gone up to offset 4, the snapshots up to 2"),
        ({N: Position(2, 0)}, f"{N} of the log that is gone up to offset 2 when it last noted"),
        ({}, f"{N} of the log that is gone up to offset 2 when it last noted"),
    ],
)
def test_what_was_acknowledged_after_the_snapshots_is_given_up_by_no_restore_unasked(
    tmp_path, read, told
):
    """The log is gone; nothing but the positions says that there was more, or may have been."""
    words = restoring(tmp_path, read)
    run = CliRunner().invoke(main, words)
    assert run.exit_code != 0, run.output
    assert told in run.output
    assert not (tmp_path / "state" / "log").exists()
    run = CliRunner().invoke(main, [*words, "--accept-loss"])
    assert run.exit_code == 0, run.output
    present = marker.decode_marker((tmp_path / "remote" / marker.MARKER_KEY).read_bytes())
    assert [hold.metadata_partition for hold in present.held] == [None], "all that is there stays"
    again = CliRunner().invoke(main, [*words, "--accept-loss"])
    assert again.exit_code == 0, again.output
    after = marker.decode_marker((tmp_path / "remote" / marker.MARKER_KEY).read_bytes())
    assert after == present


def test_nor_is_what_another_brokers_daemon_had_read_of_it(tmp_path):
    """It was acknowledged by that one alone, in a log of brokers that is gone."""
    words = restoring(tmp_path, {N: Position(2, 0, exact=True)})
    at = PresencePartition(
        state="ready", topic_id=uuid_text(TOPIC_ID), leader_epoch=0, next_offset=4
    )
    said = Presence(
        cluster_id=CLUSTER,
        broker_id=2,
        incarnation=None,
        started_at_ms=0,
        written_at_ms=0,
        copy_deadline_seconds=1.0,
        lease_end_ms=None,
        metadata_manager="rlmm",
        partitions={N: at},
    )
    file = tmp_path / "remote" / marker.presence_key(BrokerId(2))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(marker.encode(said))
    run = CliRunner().invoke(main, words)
    assert run.exit_code != 0, run.output
    assert f"{N} of the log that is gone up to offset 4" in run.output
    assert not (tmp_path / "state" / "log").exists()


@pytest.mark.parametrize("storage", [True, False])
def test_a_log_that_nothing_tells_the_end_of_is_restored_by_no_restore_unasked(tmp_path, storage):
    words = restoring(tmp_path, {})
    (tmp_path / "state" / "positions.json").unlink()
    shutil.rmtree(tmp_path / "remote" / "_rlmm")  # the disk of both was lost
    if not storage:
        file = tmp_path / "rlmm.toml"
        text = file.read_text()
        file.write_text(text[: text.index("[storage")] + '[storage]\nkind = "none"\n')
    looked = CliRunner().invoke(main, words[:-1])
    run = CliRunner().invoke(main, words)
    for each in (looked, run):
        assert each.exit_code != 0, each.output
        assert not (tmp_path / "state" / "log").exists()
    assert "all that says how far the daemon had read it" in run.output
    if not storage:
        run = CliRunner().invoke(main, [*words, "--accept-loss"])
        assert run.exit_code == 0, run.output


def test_a_segment_whose_objects_are_gone_does_not_come_back(tmp_path, monkeypatch):
    config = config_of(tmp_path, storage=asyncio.run(stored(tmp_path)))
    snapshot(tmp_path / "a", life(1) + life(2))
    log = store()
    use(monkeypatch, {"kafka": log})
    known = known_to([str(tmp_path / "a")])
    done = log_restoring.run(config, known, "kafka", execute=True)
    assert done == [row(known=2, missing=1, objects_gone=1, appended=1)]
    assert log.partition(N).values[1:] == life(1)[1:]


@pytest.mark.parametrize("whose", ["the snapshots", "the log", "the storage"])
def test_what_is_another_clusters_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, whose
):
    theirs = {name: "another" if name == whose else CLUSTER for name in ("the log", "the storage")}
    storage = asyncio.run(stored(tmp_path, theirs["the storage"]))
    config = config_of(tmp_path, cluster=None, storage=storage)
    cluster = "another" if whose == "the snapshots" else CLUSTER
    snapshot(tmp_path / "a", life(1), cluster_id=cluster)
    log = store(cluster=theirs["the log"])
    use(monkeypatch, {"kafka": log})
    with pytest.raises(InvalidArgument, match="different clusters") as refused:
        log_restoring.run(config, known_to([str(tmp_path / "a")]), "kafka", execute=True)
    assert f"{whose}: 'another'" in refused.value.message
    assert log.partition(N).end == 0


# Copies of logs.


def head_gone(log: MemoryLogStore) -> None:
    log.trim(N, 2)


def middle_gone(log: MemoryLogStore) -> None:
    log.lose(N, 2, 4)


@pytest.mark.parametrize("damage", [head_gone, middle_gone])
def test_a_log_that_lost_events_is_copied_only_where_that_is_accepted_and_said(
    tmp_path, config, monkeypatch, damage: Callable[[MemoryLogStore], None]
):
    source, target = store([*life(1), *life(2), *life(3)]), store()
    damage(source)
    made: list[bool] = []
    use(monkeypatch, {"kafka": source, str(tmp_path / "log"): target})
    monkeypatch.setattr(MemoryEventLog, "open", _noting(MemoryEventLog.open, made))
    file = tmp_path / "rlmm.toml"
    file.write_text(configuration.effective_toml(config))
    words = ["log", "copy", "--config", str(file), "--from", "kafka", "--to", str(tmp_path / "log")]
    words.append("--execute")
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 1
    lost = "0 to 1" if source.partition(N).start else "2 to 3"
    told = " ".join(refused.output.split())
    assert f"metadata partition {N} lacks offsets {lost}" in told
    assert made == [False], "no target was made"
    said = CliRunner().invoke(main, [*words, "--accept-loss"])
    assert said.exit_code == 0, said.output
    assert "byte for byte" not in said.output
    assert "nothing is lost" not in said.output
    assert "2 offsets of the source" in said.output
    assert target.partition(N).values == source.partition(N).values


def _noting(real: Any, made: list[bool]) -> Any:
    async def open_log(log: MemoryEventLog, *, create: bool) -> Any:
        made.append(create)
        return await real(log, create=create)

    return open_log


def test_offsets_that_the_log_vouches_for_are_no_loss(tmp_path, config, monkeypatch):
    source, target = store(life(1)), store()
    source.skip(N, 3)
    source.put(N, life(2)[0])
    use(monkeypatch, {"kafka": source, str(tmp_path): target})
    assert [each.lost_offsets for each in log_copying.run(config, "kafka", str(tmp_path))] == [
        0
    ] * COUNT


def test_another_clusters_log_is_not_copied(tmp_path, monkeypatch):
    config = config_of(tmp_path, cluster=None)
    target = store(cluster="another")
    use(monkeypatch, {str(tmp_path): store(life(1)), "kafka": target})
    with pytest.raises(InvalidArgument, match="different clusters"):
        log_copying.run(config, str(tmp_path), "kafka")
    assert target.partition(N).end == 0


@pytest.mark.parametrize("words", [("copy", "--from"), ("restore", "--to")])
def test_an_absent_directory_is_named_and_not_made(tmp_path, config, words):
    command, option = words
    file, absent = tmp_path / "rlmm.toml", tmp_path / "absent"
    file.write_text(configuration.effective_toml(config))
    snapshot(tmp_path / "a", life(1))
    more = ["--to", "kafka"] if command == "copy" else ["--from-snapshots", str(tmp_path / "a")]
    said = CliRunner().invoke(
        main, ["log", command, "--config", str(file), option, str(absent), *more]
    )
    assert said.exit_code == 1
    assert f"{option} {absent}: there is no such directory" in " ".join(said.output.split())
    assert not absent.exists()


def test_a_source_that_lost_what_the_daemon_had_read_of_it_is_copied_by_no_copy_unasked(
    tmp_path, monkeypatch
):
    """A lost tail leaves no gap: the copy looked whole, and the daemon began anew with it."""
    config = config_of(tmp_path)
    read = Positions(topic_id=uuid_text(TOPIC_ID), partitions={str(N): Position(4, 0)})
    (tmp_path / "state" / "positions.json").write_bytes(to_json(read))
    source, target = str(tmp_path), store()
    adopted = use(monkeypatch, {source: store(life(1)), "kafka": target})
    with pytest.raises(InvalidArgument, match=f"metadata partitions {N}"):
        log_copying.run(config, source, "kafka")
    assert not target.partition(N).values
    assert not adopted
    log_copying.run(config, source, "kafka", accept_loss=True)
    assert target.partition(N).values == life(1)
    (told,) = adopted
    assert told["hold_before_ms"], "what may belong to lost events is held"
    use(monkeypatch, {source: store(life(1) + life(2)), "kafka": (whole := store())})
    log_copying.run(config, source, "kafka")
    assert whole.partition(N).values == life(1) + life(2)


def test_a_copy_of_what_is_left_holds_what_may_belong_to_the_rest(tmp_path, monkeypatch):
    source = store(life(1) + life(2))
    source.trim(N, 2)
    adopted = use(monkeypatch, {str(tmp_path): source, "kafka": store()})
    log_copying.run(config_of(tmp_path), str(tmp_path), "kafka", accept_loss=True)
    assert adopted[0]["hold_before_ms"]


def test_what_a_copy_holds_counts_as_read_before_any_daemon_read_it(tmp_path, monkeypatch):
    """What goes of it in between left no trace: the daemon served what was left as all there is."""
    source = store(life(1) + life(2))
    adopted = use(monkeypatch, {str(tmp_path): source, "kafka": store()})
    log_copying.run(config_of(tmp_path), str(tmp_path), "kafka")
    (told,) = adopted
    ends = told["ends"]
    assert isinstance(ends, dict)
    assert ends[N] == Position(4, 0)


async def test_positions_of_the_very_log_that_is_adopted_stay(tmp_path):
    """They may tell of what it lost."""
    config, path = config_of(tmp_path), tmp_path / "state" / "positions.json"
    other = Positions(topic_id=uuid_text(bytes(16)), partitions={str(N): Position(9, 9)})
    path.write_bytes(to_json(other))
    identity = LogIdentity(cluster_id=CLUSTER, topic_id=TOPIC_ID, partition_count=COUNT)
    for end in (4, 2):
        await adopt(config, "kafka", identity, ends={N: Position(end, 0)})
        noted = from_json(path.read_bytes(), Positions, str(path))
        assert (noted.topic_id, noted.numbered()) == (uuid_text(TOPIC_ID), {N: Position(4, 0)})


async def test_what_a_restored_log_may_lack_is_held_by_the_storage_that_was_there_before(tmp_path):
    """`storage.kind` is "none" for a while: the copy of the marker is all there is of it."""
    directory = tmp_path / "state"
    directory.mkdir()
    former = BucketMarker(
        cluster_id=CLUSTER, partition_count=COUNT, metadata_topic_id=uuid_text(bytes(16))
    )
    (directory / "marker.json").write_bytes(marker_json(marker.encode(former)))
    config = config_of(tmp_path)
    identity = LogIdentity(cluster_id=CLUSTER, topic_id=TOPIC_ID, partition_count=COUNT)
    await adopt(config, "kafka", identity, hold_before_ms=5)
    kept = marker.decode_marker(marker_from((directory / "marker.json").read_bytes(), "it"))
    assert [(hold.metadata_partition, hold.before_ms) for hold in kept.held] == [(None, 5)]
    assert kept.metadata_topic_id == uuid_text(TOPIC_ID)
    await adopt(config, "kafka", identity, hold_before_ms=9)
    again = marker.decode_marker(marker_from((directory / "marker.json").read_bytes(), "it"))
    assert again == kept, "it is the same log"


async def test_what_a_restored_log_may_lack_is_held_by_the_marker_that_is_made_next(tmp_path):
    """The bucket has none just now, and whoever rebuilds it goes by the copy: it held nothing."""
    config = config_of(tmp_path, storage=await stored(tmp_path))
    (tmp_path / "remote" / marker.MARKER_KEY).unlink()
    identity = LogIdentity(cluster_id=CLUSTER, topic_id=TOPIC_ID, partition_count=COUNT)
    await adopt(config, "kafka", identity, hold_before_ms=5)
    for name in ("marker.json", "owed-marker.json"):
        kept = marker.decode_marker(marker_from((tmp_path / "state" / name).read_bytes(), name))
        assert [hold.metadata_partition for hold in kept.held] == [None], name


async def test_what_a_restored_log_may_lack_is_held_by_the_copy_of_the_marker_as_well(tmp_path):
    """The marker may be lost before a daemon has read it, and is rebuilt by the copy then."""
    config = config_of(tmp_path, storage=await stored(tmp_path))
    path = tmp_path / "remote" / marker.MARKER_KEY
    former = marker.decode_marker(path.read_bytes())
    (tmp_path / "state" / "marker.json").write_bytes(marker_json(marker.encode(former)))
    identity = LogIdentity(cluster_id=CLUSTER, topic_id=TopicId(bytes(16)), partition_count=COUNT)
    await adopt(config, "kafka", identity, hold_before_ms=5)
    kept = marker.decode_marker(
        marker_from((tmp_path / "state" / "marker.json").read_bytes(), "it")
    )
    present = marker.decode_marker(path.read_bytes())
    for each in (kept, present):
        assert [hold.metadata_partition for hold in each.held] == [None]
        assert each.metadata_topic_id == uuid_text(bytes(16))
    assert not (tmp_path / "state" / "owed-marker.json").exists()
    assert kept.layouts == present.layouts
    (tmp_path / "state" / "marker.json").unlink()
    await adopt(config, "kafka", identity, hold_before_ms=5)
    assert not (tmp_path / "state" / "marker.json").exists(), "it would know of no earlier hold"
