"""A quorum's log where leaders, voters and disks go: what the contract can't bring about."""

import asyncio
import errno
import random
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.quorum.event_log import QuorumLog, QuorumLogOptions
from rlmm_daemon.adapters.quorum.files.replica_files import ReplicaFiles
from rlmm_daemon.adapters.quorum.node import Node
from rlmm_daemon.adapters.quorum.replica import ReplicaOptions
from rlmm_daemon.codec.kraft.record_key import RecordKey, pack_key
from rlmm_daemon.domain.errors import (
    ConfigError,
    OutcomeUnknown,
    RlmmError,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.ports.event_log import NO_EPOCH, LogBatch, LogForeign, LogMissing
from tests.contract.event_log import P0, P1, first, read
from tests.support.quorum import CALM, LISTENER, QUICK, TOPIC, TOPIC_ID, Quorum, quorum_of_ours

SECONDS = 30
OPTIONS = QuorumLogOptions(
    heartbeat_seconds=0.01,
    retry_seconds=0.01,
    chunk_bytes=512,
    cache_bytes=1024,
    probe_seconds=0.01,
    open_seconds=SECONDS,
)


@asynccontextmanager
async def log_at(
    quorum: Quorum,
    number: int,
    options: QuorumLogOptions = OPTIONS,
    cluster_id: str | None = None,
) -> AsyncIterator[QuorumLog]:
    """Return a log of that replica, which was formatted and does not run; not open yet."""
    async with asyncio.timeout(4 * SECONDS), asyncio.TaskGroup() as tasks:
        log = QuorumLog(
            disk=quorum.disk,
            clock=SystemClock(),
            spawn=lambda work, name: tasks.create_task(work, name=name),
            luck=random.Random(),
            replica=ReplicaOptions(
                directory=str(quorum.directory(number)),
                topic=TOPIC,
                topic_id=TOPIC_ID,
                port=quorum.ports[number],
                listener=LISTENER,
                bootstrap=tuple(quorum.address(n) for n in range(1, quorum.count + 1)),
                timing=quorum.timing,
            ),
            partition_count=2,
            cluster_id=cluster_id,
            options=options,
        )
        try:
            yield log
        finally:
            await log.close()


async def appended(log: QuorumLog, values: list[bytes]) -> dict[bytes, int]:
    """Append them all at once, each again as long as it is certainly not there."""

    async def one(value: bytes) -> int:
        while True:
            try:
                return await log.append(P0, value)
            except OutcomeUnknown:
                raise
            except UnavailableError:
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        answers = {value: tasks.create_task(one(value)) for value in values}
    return {value: answer.result() for value, answer in answers.items()}


def numbered(count: int, begin: int = 0) -> list[bytes]:
    return [b"record %d" % number for number in range(begin, begin + count)]


async def beats(batches: AsyncGenerator[LogBatch, None], *, seconds: float) -> int:
    """Return how many came until none came any more for so long, of as many as there would be."""
    for count in range(100):
        try:
            async with asyncio.timeout(seconds):
                await anext(batches)
        except TimeoutError:
            return count
    return 100


async def until(holds: object) -> None:
    assert callable(holds)
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - whoever makes it true rings no bell
            await asyncio.sleep(0.005)


async def test_leaders_that_end_while_records_are_on_their_way_lose_and_repeat_none(
    tmp_path: Path,
) -> None:
    async with quorum_of_ours(tmp_path, voters=3, observers=1) as quorum:
        await quorum.stop(4)
        async with log_at(quorum, 4) as log:
            await log.open(create=True)
            offsets: dict[bytes, int] = {}
            for begin in range(0, 90, 30):
                writing = asyncio.create_task(appended(log, numbered(30, begin)))  # noqa: TID251 - awaited below
                leader = await quorum.until_led()
                await quorum.kill(leader)
                offsets |= await writing
                await quorum.start(leader)
            assert sorted(offsets.values()) == list(range(90))
            assert await read(log, P0, 0, 90) == sorted(
                (offset, value) for value, offset in offsets.items()
            )


async def test_a_replica_without_a_leader_reads_and_neither_beats_writes_nor_knows_the_end(
    tmp_path: Path,
) -> None:
    async with quorum_of_ours(tmp_path, voters=3, observers=0) as quorum:
        await quorum.stop(1)
        await quorum.until_led()  # another leads: who led before never follows, but resigns
        async with log_at(quorum, 1) as log:
            await log.open(create=True)
            await log.append(P0, b"there")
            async with aclosing(log.follow(P0, 1, epoch=NO_EPOCH)) as batches:
                await first(batches)
                for number in (2, 3):
                    await quorum.kill(number)
                await until(lambda: not log._replica.hears)
                assert await beats(batches, seconds=0.2) <= 1
            assert await read(log, P0, 0, 1) == [(0, b"there")]
            assert await log.end_offsets([P0]) == {}
            with pytest.raises(StorageUnavailable):
                await log.epoch_end(P0, 1)
            async with aclosing(log.follow(P0, 2, epoch=NO_EPOCH)) as batches:
                with pytest.raises(StorageUnavailable):
                    await first(batches)
            with pytest.raises(StorageUnavailable, match="no leader"):
                log.begin_append(P0, b"refused", lambda _outcome: pytest.fail("it was refused"))
            roles = set[str]()

            def met_all() -> bool:
                roles.add(log.facts()["role"])
                assert log.refusal, "whatever it is by now"
                return {"prospective", "follower"} <= roles

            await until(met_all)
            await until(lambda: log.facts()["role"] == "prospective")
            facts = log.facts()
            assert (facts["leader"], facts["voters"], facts["needed"]) == (None, [1, 2, 3], 2)
            assert facts["heard"] == [1]
            assert "hears of the voters 1, not 2, 3; 2 of 3 have to hear each other" in log.refusal
            for number in (2, 3):
                await quorum.start(number)
            assert await appended(log, [b"again"]) == {b"again": 1}
            assert not log.refusal
            assert log.leader == log.facts()["leader"] is not None
            assert set(log.facts()["heard"]) > {1}
            assert (await log.end_offsets([P0]))[P0].end == 2


async def test_what_nobody_can_commit_is_given_up_as_unknown_and_settled_by_the_next(
    tmp_path: Path,
) -> None:
    options = QuorumLogOptions(delivery_timeout_seconds=0.5, retry_seconds=0.01)
    async with quorum_of_ours(tmp_path, voters=3, timing=CALM) as quorum:
        leader = await quorum.until_led()
        await quorum.stop(leader)
        async with log_at(quorum, leader, options) as log:
            await log.open(create=True)
            await log.append(P0, b"first")
            for number in tuple(quorum.nodes):
                await quorum.kill(number)
            told: list[int | RlmmError] = []
            log.begin_append(P0, b"perhaps", told.append)
            await until(lambda: bool(told))
            assert isinstance(told[0], OutcomeUnknown)
            for number in {1, 2, 3} - {leader}:
                await quorum.start(number)
            after = (await appended(log, [b"after"]))[b"after"]
            records = await read(log, P0, 0, after + 1)
            assert [value for _, value in records if value != b"perhaps"] == [b"first", b"after"]
            assert [value for _, value in records].count(b"perhaps") <= 1
            assert len(told) == 1


async def test_close_tells_of_what_nobody_took(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=1, observers=0) as quorum:
        await quorum.stop(1)
        async with log_at(quorum, 1) as log:
            await log.open(create=True)
            log._attach(None)
            told: list[int | RlmmError] = []
            log.submitter.begin(P0, b"left", told.append)
            await log.close()
        assert [type(each) for each in told] == [StorageUnavailable]


async def test_close_waits_so_long_for_a_majority_and_no_longer(tmp_path: Path) -> None:
    options = QuorumLogOptions(close_seconds=0.1)
    async with quorum_of_ours(tmp_path, voters=3, timing=CALM) as quorum:
        leader = await quorum.until_led()
        await quorum.stop(leader)
        async with log_at(quorum, leader, options) as log:
            await log.open(create=True)
            await log.append(P0, b"first")
            for number in tuple(quorum.nodes):
                await quorum.kill(number)
            told: list[int | RlmmError] = []
            log.begin_append(P0, b"perhaps", told.append)
            async with asyncio.timeout(SECONDS):
                await log.close()
        assert [type(each) for each in told] == [OutcomeUnknown]


async def test_whoever_leads_is_told_to_those_that_ask(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=3, observers=1) as quorum:
        await quorum.stop(4)
        async with log_at(quorum, 4) as log:
            rung = asyncio.Event()
            log.on_leader.append(rung.set)
            with capture_logs() as lines:
                await log.open(create=True)
            said = [line for line in lines if line["event"] == "quorum_role"]
            assert (said[-1]["role"], said[-1]["voters"]) == ("observer", [1, 2, 3])
            former = await quorum.until_led()
            await until(lambda: log.leader == former)
            assert log.facts()["role"] == "observer"
            assert log.facts()["heard"] == [former]
            rung.clear()
            await quorum.kill(former)
            await until(lambda: log.leader not in {None, former})
            assert rung.is_set()


async def test_a_directory_that_is_restored_repeats_nothing(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=1, observers=1) as quorum:
        await quorum.stop(2)
        async with log_at(quorum, 2) as log:
            await log.open(create=True)
            await log.append(P0, b"before")
        backup = tmp_path / "backup"
        shutil.copytree(quorum.directory(2), backup)
        async with log_at(quorum, 2) as log:
            await log.open(create=False)
            await log.append(P0, b"meanwhile")
        shutil.rmtree(quorum.directory(2))
        shutil.copytree(backup, quorum.directory(2))
        async with log_at(quorum, 2) as log:
            await log.open(create=False)
            assert (await log.end_offsets([P0]))[P0].end == 2
            assert await log.append(P0, b"now") == 2
            assert [value for _, value in await read(log, P0, 0, 3)] == [
                b"before",
                b"meanwhile",
                b"now",
            ]


async def test_a_log_that_settles_takes_nothing_any_more_of_what_an_earlier_life_had_sent(
    tmp_path: Path,
) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        async with log_at(quorum, 1) as log:
            await log.open(create=True)
            assert await log.append(P0, b"before") == 0
            incarnation = log.folding.fold.submitters[1].incarnation
        async with log_at(quorum, 1) as log:
            await log.open(create=False)
            await log.settle()
            late = pack_key(RecordKey(0, 1, incarnation, 2)), b"late"
            await log._node.submit([late])
            assert (await log.end_offsets([P0]))[P0].end == 1
            assert await log.append(P0, b"after") == 1
            await log.settle()
            assert await read(log, P0, 0, 2) == [(0, b"before"), (1, b"after")]


async def test_two_logs_that_take_themselves_for_one_submitter_lose_nothing(
    tmp_path: Path,
) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        async with log_at(quorum, 1) as log:
            await log.open(create=True)
            assert await log.append(P0, b"mine") == 0
            known = log.folding.fold.submitters[1]
            taken = pack_key(RecordKey(-1, 1, known.incarnation + 1, 0)), b"somebody else's."
            await log._node.submit([taken])
            offsets = await appended(log, numbered(5))
            assert sorted(offsets.values()) == [1, 2, 3, 4, 5]
            assert log.folding.fold.submitters[1].incarnation == known.incarnation + 2


async def test_repeats_and_what_is_no_event_take_no_offset_also_when_it_is_read_again(
    tmp_path: Path,
) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        async with log_at(quorum, 1) as log:
            await log.open(create=True)
            for number in range(30):
                await log.append(P0, b"%d" % number * 20)
                await log.append(P1, b"other %d" % number)
                again = pack_key(RecordKey(0, 1, 1, 2 * number + 1)), b"%d" % number * 20
                await log._node.submit([again, (b"none", b"of ours"), (None, None)])
            expected = [(number, b"%d" % number * 20) for number in range(30)]
            for _ in range(2):
                assert await read(log, P0, 0, 30) == expected
            assert await read(log, P0, 17, 30) == expected[17:]
            assert len(await read(log, P1, 0, 30)) == 30
            kept = [each for each in log.folding._chunks._chunks if each.rows is not None]
            assert len(kept) < 6 < len(log.folding._chunks._chunks)
        async with log_at(quorum, 1) as log:
            await log.open(create=False)
            assert await read(log, P0, 0, 30) == expected


async def test_a_disk_that_fails_once_ends_the_replica_until_it_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        async with log_at(quorum, 1) as log:
            await log.open(create=True)
            await log.append(P0, b"before")
            sync, failed = ReplicaFiles.sync, list[bool]()

            async def fails(files: ReplicaFiles) -> None:
                if not failed:
                    failed.append(True)
                    raise OSError(errno.EIO, "the disk failed")
                await sync(files)

            monkeypatch.setattr(ReplicaFiles, "sync", fails)
            told: list[int | RlmmError] = []
            log.begin_append(P0, b"held", told.append)
            await until(lambda: bool(told))
            assert failed
            assert told == [1]
            assert await read(log, P0, 0, 2) == [(0, b"before"), (1, b"held")]


async def test_a_replica_that_must_not_go_on_is_not_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        runs: list[Node] = []
        run = Node.run

        async def counted(node: Node) -> None:
            runs.append(node)
            await run(node)

        async def must_not(*_: object) -> None:
            raise StorageUnavailable("it would lose what was acknowledged", retry=False)

        monkeypatch.setattr(Node, "run", counted)
        async with log_at(quorum, 1) as log:
            await log.open(create=True)
            await log.append(P0, b"before")
            monkeypatch.setattr(Node, "_write", must_not)
            told: list[int | RlmmError] = []
            log.begin_append(P0, b"never", told.append)
            await until(lambda: log._replica._failure is not None)
            assert len(runs) == 1
            with pytest.raises(StorageUnavailable, match="would lose"):
                log.begin_append(P0, b"refused", lambda _outcome: pytest.fail("it was refused"))
            await log.close()
            assert [type(each) for each in told] == [OutcomeUnknown]


async def test_a_directory_that_another_process_has_is_opened_once_it_is_free(
    tmp_path: Path,
) -> None:
    options = QuorumLogOptions(open_seconds=0.2, probe_seconds=0.01)
    async with quorum_of_ours(tmp_path, voters=1) as quorum, log_at(quorum, 1, options) as log:
        with pytest.raises(StorageUnavailable, match="another process has it"):
            await log.open(create=True)
        await quorum.stop(1)
        async with asyncio.timeout(SECONDS):
            while log.identity is None:
                with suppress(StorageUnavailable):
                    await log.open(create=True)


async def test_a_directory_that_is_not_formatted_is_no_log_and_is_not_made(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        quorum.ports[2] = quorum.ports[1]
        async with log_at(quorum, 2) as log:
            for create in (False, True):
                with pytest.raises(LogMissing, match="rlmm quorum format"):
                    await log.open(create=create)
        assert not quorum.directory(2).exists()


async def test_another_replicas_directory_is_refused(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        async with log_at(quorum, 1) as log:
            replica = log._replica
            replica._options = msgspec.structs.replace(replica._options, node_id=7, topic_id=None)
            with pytest.raises(ConfigError, match="formatted as replica 1, and this"):
                await log.open(create=True)
            replica._options = msgspec.structs.replace(replica._options, node_id=1)
            identity = await log.open(create=True)
            assert identity.topic_id == TOPIC_ID, "as it was formatted"


async def test_another_clusters_quorum_is_refused(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=1) as quorum:
        await quorum.stop(1)
        async with log_at(quorum, 1, cluster_id="another") as log:
            with pytest.raises(LogForeign):
                await log.open(create=True)


async def test_an_open_without_a_leader_is_not_now_and_goes_on_at_the_next(tmp_path: Path) -> None:
    options = QuorumLogOptions(open_seconds=0.3)
    async with quorum_of_ours(tmp_path, voters=3, timing=QUICK) as quorum:
        for number in (1, 2, 3):
            await quorum.stop(number)
        async with log_at(quorum, 1, options) as log:
            with pytest.raises(StorageUnavailable, match="does not answer"):
                await log.open(create=True)
            await quorum.start(2)
            async with asyncio.timeout(SECONDS):
                while log.identity is None:
                    with suppress(StorageUnavailable):
                        await log.open(create=True)
            assert await appended(log, [b"first"]) == {b"first": 0}
