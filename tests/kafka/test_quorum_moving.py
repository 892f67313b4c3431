"""`rlmm log copy` between Kafka's topic and a quorum, there and back: whole, or killed midway."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlmm_daemon import config as configuration
from rlmm_daemon.config import Config
from tests.kafka.rig import KafkaRig, Writer, segments, serving, tp_in
from tests.support.log_moving import COMMITTED, STEPS, copied, planned
from tests.support.quorum_processes import QuorumProcesses

pytestmark = pytest.mark.timeout(240)  # a dozen processes, one after another
#: State directory of each broker's daemon.
STATES = {1: "state", 2: "second"}


class QuorumRig(KafkaRig):
    """Builds managers over a quorum of one, with the state directories of another rig."""

    def __init__(self, rig: KafkaRig, directory: Path) -> None:
        super().__init__(rig.cluster, rig.probe, rig.home, rig.topic)
        directory.mkdir()
        self.quorum = QuorumProcesses(directory)
        self.quorum.format(1)

    def config(self, *, broker_id: int = 1, **_: object) -> Config:
        replica = self.quorum[broker_id]
        bootstrap = [] if broker_id == 1 else [self.quorum[1].address]
        return configuration.parse(f"""
[daemon]
broker_id = {broker_id}
cluster_id = "{self.cluster.cluster_id}"
state_dir = "{self.home}/{STATES[broker_id]}"
[event_log]
kind = "quorum"
single_broker = true
[event_log.quorum]
directory = "{replica.directory}"
listen = "{replica.address}"
bootstrap = {bootstrap}
""")


@pytest.mark.parametrize("kills", [(), STEPS], ids=["whole", "killed at each step"])
async def test_the_topics_events_go_into_a_quorum_and_back(
    rig: KafkaRig, tmp_path: Path, kills: Sequence[str]
) -> None:
    rig.create()
    tps = [tp_in(number) for number in range(2)]
    async with rig.manager("state") as manager:
        await serving(manager, *tps)
        writers = [Writer(manager, tp, base=100 * n) for n, tp in enumerate(tps)]
        for number in range(3):
            for writer in writers:
                await writer.copy(number)
        before = [segments(manager, tp) for tp in tps]
        await manager.drain()
    rig.probe.produce(rig.topic, 0, [None, b"\x01\x63\x00"])
    on = await asyncio.to_thread(QuorumRig, rig, tmp_path / "quorum")
    kafka, quorum = _file(tmp_path, "kafka", rig.config()), _file(tmp_path, "quorum", on.config())

    words = ("--config", quorum, "--from-config", kafka, "--from", "kafka", "--to", "quorum")
    dry = await asyncio.to_thread(planned, tmp_path, *words)
    assert [row["missing"] for row in dry] == [6, 6, 0, 0]
    assert dry[0]["passed_over"] == 2
    killed = [COMMITTED, *kills] if kills else ()
    rows = await asyncio.to_thread(copied, tmp_path, *words, kills=killed)
    assert [row["target_end"] for row in rows] == [6, 6, 0, 0], "each once"
    async with on.manager("state") as manager:
        await serving(manager, *tps)
        assert [segments(manager, tp) for tp in tps] == before
        writers[1].manager = manager
        await writers[1].copy(5)
        after = [segments(manager, tp) for tp in tps]
        await manager.drain()

    rig.topic += ".back"
    back = _file(tmp_path, "back", rig.config())
    words = ("--config", back, "--from-config", quorum, "--from", "quorum", "--to", "kafka")
    rows = await asyncio.to_thread(copied, tmp_path, *words, kills=kills)
    assert [row["target_end"] for row in rows] == [6, 8, 0, 0], "each once"
    assert len(rig.probe.dump(rig.topic)) == 14
    async with rig.manager("state") as manager:
        await serving(manager, *tps)
        assert [segments(manager, tp) for tp in tps] == after
        writers[0].manager = manager
        await writers[0].copy(7)
        await asyncio.to_thread(writers[0].check, rig)
    on.close()


async def test_a_second_brokers_daemon_is_taken_along_while_the_first_one_writes(
    rig: KafkaRig, tmp_path: Path
) -> None:
    rig.create()
    tp = tp_in(0)
    async with rig.manager("state") as one, rig.manager("second") as two:
        for manager in (one, two):
            await serving(manager, tp)
        writer = Writer(one, tp)
        for number in range(3):
            await writer.copy(number)
        for manager in (one, two):
            await manager.drain()
    on = await asyncio.to_thread(QuorumRig, rig, tmp_path / "quorum")
    there = ("--from", "kafka", "--to", "quorum")
    former = _file(tmp_path, "former", rig.config())
    first = ("--config", _file(tmp_path, "first", on.config()), "--from-config", former)
    await asyncio.to_thread(copied, tmp_path, *first, *there)
    await asyncio.to_thread(on.quorum.join, 2)
    settings = {"daemon.broker_id": "2", "daemon.state_dir": f"{tmp_path}/{STATES[2]}"}
    former = _file(tmp_path, "former-2", rig.config(settings=settings))
    config = _file(tmp_path, "second", on.config(broker_id=2))
    second = ("--config", config, "--from-config", former)
    async with on.manager("state") as one:
        await serving(one, tp)
        writer.manager = one
        await writer.copy(3)
        rows = await asyncio.to_thread(copied, tmp_path, *second, *there)
        assert not any(row["missing"] for row in rows)
        async with on.manager("second", broker_id=2) as two:
            await serving(two, tp)
            assert segments(two, tp) == segments(one, tp)
            writer.manager = two
            await writer.copy(4)
    on.close()


def _file(home: Path, name: str, config: Config) -> str:
    path = home / f"{name}.toml"
    path.write_text(configuration.effective_toml(config))
    return str(path)
