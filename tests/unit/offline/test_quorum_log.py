"""A quorum's log and commands that work without a daemon: what they check, and what they refuse."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlmm_daemon.adapters.quorum.client import Description, ReplicaState
from rlmm_daemon.adapters.quorum.files.formatted import note_abandoned
from rlmm_daemon.config import Config, parse
from rlmm_daemon.core.raft.voters import Endpoint, ReplicaKey
from rlmm_daemon.domain.errors import ConfigError, InvalidArgument, StorageUnavailable
from rlmm_daemon.domain.ids import TopicId
from rlmm_daemon.offline import (
    answers,
    checkup,
    log_adoption,
    log_contents,
    log_naming,
    log_restoring,
)
from rlmm_daemon.offline.finding import CheckResult
from rlmm_daemon.offline.quorum import checkup as checkup_quorum
from rlmm_daemon.ports.event_log import LogIdentity
from rlmm_daemon.wiring.log_alone import log_alone
from tests.support.memory_log import MemoryEventLog, MemoryLogStore
from tests.support.quorum import CALM, CLUSTER_ID, Quorum, quorum_of_ours

SECONDS = 5.0
TEXT = """
[daemon]
broker_id = 1
cluster_id = "{cluster}"
state_dir = "{home}/state"
[event_log]
kind = "quorum"
[event_log.quorum]
directory = "{directory}"
listen = "127.0.0.1:{port}"
"""


def config_of(home: Path, directory: Path, port: int, more: str = "") -> Config:
    text = TEXT.format(home=home, directory=directory, port=port, cluster=CLUSTER_ID)
    return parse(text + more)


async def rows(config: Config) -> dict[str, CheckResult]:
    return {each.check: each for each in await checkup_quorum.checks(config, 1.0)}


async def test_the_doctor_asks_the_replica_and_the_quorum(tmp_path: Path) -> None:
    async with quorum_of_ours(tmp_path, voters=3, timing=CALM) as quorum:
        leader = await quorum.until_led()
        config = config_of(tmp_path, quorum.directory(1), quorum.ports[1])
        found = await rows(config)
        assert (found["quorum replica"].verdict, found["quorum"].verdict) == ("ok", "ok")
        said = found["quorum"].found
        assert said.startswith(f"replica {leader} leads in epoch ")
        assert said.endswith("voters 1, 2, 3: 2 decide, 1 may be lost")
        assert (await checkup._of_log(config, 1.0))[0] == found["quorum replica"]


async def test_a_directory_that_does_not_fit_is_told_with_what_to_do(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, 2, 0, CALM)
    await quorum.format(2)
    config = config_of(tmp_path, tmp_path / "absent", quorum.ports[1])
    found = await rows(config)
    assert found["quorum replica"].verdict == "failed"
    assert f"rlmm quorum format {tmp_path}/absent" in found["quorum replica"].advice
    assert f"--cluster-id {CLUSTER_ID} --node-id 1" in found["quorum replica"].advice
    assert found["quorum"].verdict == "warning"
    config = config_of(tmp_path, quorum.directory(2), quorum.ports[1])
    assert "is replica 2, daemon.broker_id is 1" in (await rows(config))["quorum replica"].found
    await quorum.format(1)
    config = config_of(tmp_path, quorum.directory(1), quorum.ports[1])
    other = msgspec.structs.replace(config.daemon, cluster_id="another")
    foreign = msgspec.structs.replace(config, daemon=other)
    assert f"is of cluster {CLUSTER_ID}" in (await rows(foreign))["quorum replica"].found
    await note_abandoned(quorum.disk, str(quorum.directory(1)), 9)
    assert "voters were forced" in (await rows(config))["quorum replica"].found
    (quorum.directory(1) / "meta.properties").write_text("nonsense")
    assert (await rows(config))["quorum replica"].verdict == "failed"
    await quorum.close()


async def test_files_that_prove_nothing_are_told(tmp_path: Path) -> None:
    files = "".join(
        f"{key} = '{tmp_path}/none'\n" for key in ("ca_file", "certificate_file", "key_file")
    )
    more = f"[event_log.quorum.security]\n{files}"
    found = await rows(config_of(tmp_path, tmp_path / "absent", 1, more))
    assert found["quorum"].verdict == "failed"
    assert f"{tmp_path}/none" in found["quorum"].found


async def test_brokers_that_are_away_are_told(tmp_path: Path) -> None:
    more = "[event_log.quorum.brokers]\nbootstrap = ['127.0.0.1:1']"
    found = await rows(config_of(tmp_path, tmp_path / "absent", 1, more))
    assert found["brokers"].verdict == "failed"
    assert "nothing is removed" in found["brokers"].advice


def state(number: int, fetched_at_ms: int) -> ReplicaState:
    return ReplicaState(ReplicaKey(number, bytes([number]) * 16), 7, fetched_at_ms, fetched_at_ms)


def seen(*voters: ReplicaState, hosts: tuple[str, ...] = ("a", "b", "c")) -> Description:
    return Description(
        leader=1,
        epoch=3,
        high_watermark=7,
        voters=voters,
        observers=(),
        endpoints={
            each.key.id: (Endpoint("QUORUM", host, 9393),)
            for each, host in zip(voters, hosts, strict=True)
        },
    )


def test_a_voter_that_does_not_fetch_is_told() -> None:
    away = checkup_quorum._health(seen(state(1, 20_000), state(2, 10_001), state(3, 10_000)))
    assert away.verdict == "warning"
    assert away.found.endswith("3 did not fetch for 10 s")
    never = checkup_quorum._health(seen(state(1, 20_000), state(2, -1), state(3, 20_000)))
    assert never.found.endswith("2 did not fetch for 10 s")


def test_two_voters_on_one_host_are_told_but_not_on_loopback() -> None:
    voters = (state(1, 1), state(2, 1), state(3, 1))
    (told,) = checkup_quorum._hosts(seen(*voters, hosts=("a", "b", "a")))
    assert told.found == "several voters listen on a"
    assert checkup_quorum._hosts(seen(*voters)) == []
    assert checkup_quorum._hosts(seen(*voters, hosts=("127.0.0.1",) * 3)) == []
    assert checkup_quorum._hosts(seen(*voters, hosts=("localhost",) * 3)) == []


async def _alone(config: Config) -> None:
    async with log_alone(config):
        pass


@pytest.mark.parametrize("command", [_alone])
async def test_a_command_that_would_read_it_says_what_does(
    tmp_path: Path, command: Callable[[Config], Coroutine[Any, Any, None]]
) -> None:
    config = config_of(tmp_path, tmp_path / "absent", 1)
    with pytest.raises(ConfigError, match="does not read a quorum's log yet"):
        await command(config)
    assert not (tmp_path / "absent").exists()


async def test_a_large_log_is_opened_as_long_as_its_replica_reads_on() -> None:
    """A daemon asks again for as long as it takes; a command gave up after ten seconds."""
    reads = list[int]()

    class Large(MemoryEventLog):
        async def open(self, *, create: bool) -> LogIdentity:
            if len(reads) > 1:
                reads.pop(0)
                raise StorageUnavailable("this replica has not all yet")
            return await super().open(create=create)

    log = Large(MemoryLogStore(topic_id=TopicId(bytes(16)), partition_count=3))
    for stuck in ([5, 5, 9], [5, 9, 9, 9]):
        reads[:] = stuck
        with pytest.raises(StorageUnavailable):
            await log_contents._open(log, create=False, applied=lambda: reads[0])
        assert log.identity is None
    reads[:] = [5, 9, 11]
    await log_contents._open(log, create=False, applied=lambda: reads[0])
    assert log.identity is not None


def test_it_is_not_restored_from_snapshots(tmp_path: Path) -> None:
    config = config_of(tmp_path, tmp_path / "absent", 1)
    known = log_restoring.Known(segments={}, partition_count=3)
    with pytest.raises(InvalidArgument, match="not restored from snapshots"):
        log_restoring.run(config, known, log_contents.QUORUM, execute=True)


def test_its_directory_is_not_sealed_as_an_embedded_log(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, 1, 0, CALM)
    asyncio.run(quorum.format(1))
    with pytest.raises(InvalidArgument, match="is a replica of a quorum's log"):
        answers.seal_log(str(quorum.directory(1)))
    with pytest.raises(ConfigError, match="no daemon has begun this log"):
        answers.verify_log(str(quorum.directory(1)))
    quorum.disk.close()


def test_it_is_neither_kafkas_topic_nor_an_embedded_log(tmp_path: Path) -> None:
    config = config_of(tmp_path, tmp_path / "absent", 1)
    assert not log_adoption.is_configured(config, log_contents.KAFKA)
    assert not log_adoption.is_configured(config, str(tmp_path / "absent"))
    with pytest.raises(InvalidArgument, match="not of kind kafka"):
        log_contents._config_of(config, log_contents.KAFKA, None)
    assert log_adoption.is_configured(config, log_contents.QUORUM)
    daemon = TEXT.partition("[event_log]")[0].format(home=tmp_path, cluster=CLUSTER_ID)
    embedded = parse(f"{daemon}[event_log]\nkind = 'embedded'\nsingle_broker = true\n")
    assert not log_adoption.is_configured(embedded, log_contents.QUORUM)
    with pytest.raises(InvalidArgument, match="not of kind quorum"):
        log_contents._config_of(embedded, log_contents.QUORUM, None)
    with pytest.raises(InvalidArgument, match="names no embedded log"):
        asyncio.run(log_naming._named(config, execute=False))
