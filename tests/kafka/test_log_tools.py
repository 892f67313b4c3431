"""`rlmm log copy` between an embedded log and the topic, and `rlmm log restore` from snapshots."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from rlmm_daemon import config as configuration
from rlmm_daemon.cli import main
from rlmm_daemon.core.readiness.states import FailureReason
from rlmm_daemon.daemon.operator.methods import Operator
from rlmm_daemon.domain.errors import ConfigError, HistoryLost, InvalidArgument
from rlmm_daemon.domain.segment import SegmentState
from rlmm_daemon.offline.log_copying import run as copy
from rlmm_daemon.offline.log_restoring import known_to
from rlmm_daemon.offline.log_restoring import run as restore
from tests.kafka.rig import BROKER, COUNT, P0, KafkaRig, Writer, segments, serving, tp_in, until
from tests.support.log_moving import STEPS, copied
from tests.unit.daemon import events


def written(rig: KafkaRig, count: int) -> list[bytes]:
    """Write the events of some segments, one deleted again, into the topic; return them."""
    tp = tp_in(0)
    values = []
    for number in range(count):
        start = number * 10
        values += [events.started(number, start, start + 9, tp), events.updated(number, tp=tp)]
    values.append(events.updated(0, SegmentState.DELETE_SEGMENT_STARTED, tp))
    rig.probe.produce(rig.topic, 0, list(values))
    return values


async def test_events_go_to_an_embedded_log_and_back_and_twice_is_once(rig, tmp_path):
    rig.create()
    values = written(rig, 5)
    rig.probe.produce(rig.topic, 0, [None, b"\x01\x63\x00"])
    config, directory = rig.config(), str(tmp_path / "embedded")
    done = await asyncio.to_thread(copy, config, "kafka", directory)
    assert (done[0].events, done[0].appended, done[0].passed_over) == (11, 11, 2)
    again = await asyncio.to_thread(copy, config, "kafka", directory)
    assert [row.appended for row in again] == [0] * COUNT

    rig.topic += ".back"
    back = rig.config()
    done = await asyncio.to_thread(copy, back, directory, "kafka")
    assert sum(row.appended for row in done) == 11
    assert [value for _, _, value in rig.probe.dump(rig.topic)] == values

    rig.probe.produce(rig.topic, 0, [events.started(77, 770, 779, tp_in(0))])
    assert not any(row.appended for row in await asyncio.to_thread(copy, back, directory, "kafka"))
    rig.topic += ".other"
    rig.create()
    rig.probe.produce(rig.topic, 0, [events.started(77, 770, 779, tp_in(0))])
    with pytest.raises(InvalidArgument, match="differs"):
        await asyncio.to_thread(copy, rig.config(), directory, "kafka")
    assert len(rig.probe.dump(rig.topic)) == 1, "and nothing was written"


@pytest.mark.timeout(240)  # a dozen processes, one after another
async def test_a_copy_that_is_killed_at_each_step_and_asked_again_has_each_event_once(
    rig, tmp_path
):
    rig.create()
    values = written(rig, 5)
    directory = str(tmp_path / "embedded")
    embedded = configuration.parse(
        f'[daemon]\nbroker_id = 1\nstate_dir = "{rig.home}/state"\n'
        f'cluster_id = "{rig.cluster.cluster_id}"\n'
        f'[event_log]\nkind = "embedded"\nsingle_broker = true\ndirectory = "{directory}"\n'
    )
    files = {"kafka": rig.config(), "embedded": embedded}
    rig.topic += ".back"
    files["back"] = rig.config()
    for name, config in files.items():
        (tmp_path / f"{name}.toml").write_text(configuration.effective_toml(config))
    there = ("--config", "embedded.toml", "--from-config", "kafka.toml", "--from", "kafka")
    back = ("--config", "back.toml", "--from", directory, "--to", "kafka")
    for words in ((*there, "--to", directory), back):
        rows = await asyncio.to_thread(copied, tmp_path, *words, kills=STEPS)
        assert [row["target_end"] for row in rows] == [len(values), 0, 0, 0]
    assert [value for _, _, value in rig.probe.dump(rig.topic)] == values


async def test_a_daemon_goes_on_with_the_log_that_its_own_was_copied_to(rig, tmp_path):
    rig.create()
    tp = tp_in(0)
    async with rig.manager("state") as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(3):
            await writer.copy(number)
        await manager.drain()
        with pytest.raises(ConfigError, match="stop the daemon first"):
            await asyncio.to_thread(copy, rig.config(), "kafka", str(tmp_path / "embedded"))
    await asyncio.to_thread(copy, rig.config(), "kafka", str(tmp_path / "embedded"))
    async with rig.manager("state") as manager:
        await serving(manager, tp)  # its own log is none of what was written to
    rig.topic += ".back"
    for _ in range(2):
        await asyncio.to_thread(copy, rig.config(), str(tmp_path / "embedded"), "kafka")
    async with rig.manager("state") as manager:
        await serving(manager, tp)
        writer.manager = manager
        await writer.copy(3)
        await asyncio.to_thread(writer.check, rig)


async def test_a_topic_that_is_gone_is_made_anew_of_what_snapshots_know(rig):
    rig.create()
    tp = tp_in(0)
    async with rig.manager("state") as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(3):
            await writer.copy(number)
        await manager.drain()
        before = segments(manager, tp)
    rig.topic += ".gone"  # as good as deleted, and every broker knows
    async with rig.manager("state") as manager:
        await until(lambda: manager.fleet.whole_failure is not None)
        assert manager.fleet.whole_failure.reason is FailureReason.LOG_MISSING
    known = known_to([str(rig.home / "state" / "snapshots")])
    with pytest.raises(InvalidArgument, match="does not exist"):
        await asyncio.to_thread(restore, rig.config(), known, "kafka", execute=False)
    settings = {"event_log.kafka.admin.partition_count": "7"}  # the log's own count counts
    config = rig.config(settings=settings)
    await asyncio.to_thread(restore, config, known, "kafka", execute=True)
    async with rig.manager("state") as manager:
        await serving(manager, tp)
        assert segments(manager, tp) == before
        assert manager.fleet.identity is not None
        assert manager.fleet.identity.partition_count == COUNT
        writer.manager = manager
        await writer.copy(3)


async def test_what_snapshots_know_comes_back_after_the_topic_was_lost(rig):
    rig.create()
    tp = tp_in(0)
    async with rig.manager() as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(4):
            await writer.copy(number)
        await manager.drain()
        before = segments(manager, tp)
    rig.topic += ".anew"
    rig.create()
    rig.probe.produce(
        rig.topic, 0, [events.started(0, 0, 9, tp), events.updated(0, tp=tp), writer_started(tp)]
    )
    config = rig.config()
    known = known_to([str(rig.home / "a" / "snapshots")])
    assert (len(known.segments), known.partition_count) == (4, COUNT)
    dry = await asyncio.to_thread(restore, config, known, "kafka", execute=False)
    assert [(row.missing, row.appended) for row in dry] == [(3, 0)]
    assert len(rig.probe.dump(rig.topic)) == 3
    done = await asyncio.to_thread(restore, config, known, "kafka", execute=True)
    assert [(row.missing, row.appended) for row in done] == [(3, 3)]
    assert len(rig.probe.dump(rig.topic)) == 3 + 2 + 2 + 1, "one had begun already"
    again = await asyncio.to_thread(restore, config, known, "kafka", execute=True)
    assert [(row.missing, row.appended) for row in again] == [(0, 0)]
    async with rig.manager("b") as manager:
        await serving(manager, tp)
        assert segments(manager, tp) == before


def told_by(rig: KafkaRig, *arguments: str, code: int = 0) -> str:
    """Return what `rlmm log restore` says, as an operator calls it."""
    file = rig.home / "rlmm.toml"
    file.write_text(configuration.effective_toml(rig.config()))
    said = CliRunner().invoke(main, ["log", "restore", "--config", str(file), *arguments])
    assert said.exit_code == code, said.output
    return " ".join(said.output.split())


@pytest.mark.parametrize("peers", [0, 1])
async def test_records_that_were_deleted_ahead_of_a_snapshot_come_back_by_the_named_commands(
    rig, peers
):
    """What no snapshot knows stays lost, what one knows of any daemon does not."""
    rig.topic += f".{peers}"
    rig.create()
    tp = tp_in(0)
    async with rig.manager("state") as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        for number in range(4):
            await writer.copy(number)
        await manager.drain()
    async with rig.manager("peer") as manager:
        await serving(manager, tp)
        writer.manager = manager
        for number in (4, 5):
            await writer.copy(number)
        await manager.drain()
    await asyncio.to_thread(
        rig.probe.ask, "delete_records", topic=rig.topic, partition=0, before=10
    )
    names = ["state", "peer"][: 1 + peers]
    from_each = [
        part for name in names for part in ("--from-snapshots", f"{rig.home}/{name}/snapshots")
    ]
    if not peers:  # what stood at 8 and 9 no snapshot has read
        refused = await asyncio.to_thread(told_by, rig, *from_each, "--execute", code=1)
        assert "lacks offsets 8 to 9, which no snapshot here had read" in refused
        from_each.append("--accept-loss")
    known = 4 + 2 * peers
    async with rig.manager("state") as manager:
        manager.replace_assignment([tp], [])
        await until(lambda: failure_of(manager) is FailureReason.HISTORY_LOST)
        with pytest.raises(HistoryLost):
            manager.lookups.list_remote_log_segments(tp, None, BROKER)
        missing = known - peers  # the last one's events are in the log
        dry = await asyncio.to_thread(told_by, rig, *from_each)
        assert f"{missing} segments missing; nothing was written" in dry
        done = await asyncio.to_thread(told_by, rig, *from_each, "--execute")
        assert f"{missing} segments restored" in done
        assert "accept-loss N" in done
        assert failure_of(manager) is FailureReason.HISTORY_LOST, "not before it is accepted"
        await Operator(manager).partition_accept_loss(P0, everything=False)
        rig.tell(
            "restored, accepted: ready after "
            f"{await until(lambda: manager.lookups.is_ready(tp)):.2f} s"
        )
        there = {*range(4), 5} | ({4} if peers else set())
        assert segments(manager, tp) == {
            events.segment_id(number): "COPY_SEGMENT_FINISHED" for number in there
        }
        again = Writer(manager, tp, base=100, first=6)
        await again.copy(6)


def failure_of(manager) -> FailureReason | None:
    failure = next((each.failure for each in manager.followed() if each.partition == P0), None)
    return failure.reason if failure else None


def writer_started(tp) -> bytes:
    return events.started(1, 10, 19, tp)


async def test_the_commands_say_what_they_did_and_what_is_next(rig, tmp_path):
    rig.create()
    written(rig, 2)
    file = tmp_path / "rlmm.toml"
    file.write_text(configuration.effective_toml(rig.config()))
    line = ["log", "copy", "--config", str(file), "--from", "kafka", "--to", str(tmp_path / "log")]
    dry = await asyncio.to_thread(CliRunner().invoke, main, line)
    assert dry.exit_code == 0, dry.output
    assert "nothing was done; --execute does it" in dry.output
    assert not (tmp_path / "log").exists()
    line.append("--execute")
    said = await asyncio.to_thread(CliRunner().invoke, main, line)
    assert said.exit_code == 0, said.output
    assert "byte for byte equal" in said.output
    told = await asyncio.to_thread(CliRunner().invoke, main, [*line, "--json"])
    assert json.loads(told.output)[0]["appended"] == 0
