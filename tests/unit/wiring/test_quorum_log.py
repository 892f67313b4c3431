"""A quorum's log as the configuration puts it together: its addresses, times and certificates."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.quorum.event_log import QuorumLog
from rlmm_daemon.config import Config, parse
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.wiring import adapters
from rlmm_daemon.wiring.quorum_log import endpoint_of
from tests.support.quorum import CALM, CLUSTER_ID, TOPIC_ID, Quorum
from tests.unit.adapters.quorum.certificates import Authority

SECONDS = 30.0
TEXT = """
[daemon]
broker_id = {number}
cluster_id = "{cluster}"
[event_log]
kind = "quorum"
[event_log.quorum]
directory = "{directory}"
listen = "127.0.0.1:{port}"
bootstrap = ["127.0.0.1:{other}"]
partition_count = 3
fetch_timeout_ms = 20000
[event_log.quorum.security]
ca_file = "{ca}"
certificate_file = "{certificate}"
key_file = "{key}"
"""


def config_of(quorum: Quorum, number: int, authority: Authority, *, proves: int) -> Config:
    certificate, key = authority.sign(str(proves), cluster=CLUSTER_ID)
    return parse(
        TEXT.format(
            number=number,
            cluster=CLUSTER_ID,
            directory=quorum.directory(number),
            port=quorum.ports[number],
            other=quorum.ports[3 - number],
            ca=authority.ca,
            certificate=certificate,
            key=key,
        )
    )


@asynccontextmanager
async def log_of(quorum: Quorum, config: Config) -> AsyncIterator[QuorumLog]:
    async with asyncio.TaskGroup() as tasks:
        log = adapters.event_log_of(
            config,
            quorum.disk,
            SystemClock(),
            random.Random(),
            spawn=lambda work, name: tasks.create_task(work, name=name),
        )
        try:
            assert isinstance(log, QuorumLog)
            assert adapters.as_quorum_log(config, log) is log
            yield log
        finally:
            await log.close()


async def test_replicas_that_prove_who_they_are_keep_one_log(tmp_path: Path) -> None:
    quorum, authority = Quorum(tmp_path, 2, 0, CALM), Authority(tmp_path / "keys")
    for number in (1, 2):
        await quorum.format(number)
    first, second = (config_of(quorum, number, authority, proves=number) for number in (1, 2))
    async with (
        asyncio.timeout(SECONDS),
        log_of(quorum, first) as one,
        log_of(quorum, second) as two,
    ):
        async with asyncio.TaskGroup() as tasks:
            opening = [tasks.create_task(each.open(create=True)) for each in (one, two)]
        identity = opening[0].result()
        assert identity == opening[1].result()
        assert (identity.cluster_id, identity.topic_id) == (CLUSTER_ID, TOPIC_ID)
        assert identity.partition_count == 3
        assert await one.append(MetadataPartition(2), b"first") == 0
        assert await two.append(MetadataPartition(2), b"second") == 1
        assert set(one.facts()["heard"]) == set(two.facts()["heard"]) == {1, 2}
        assert one.facts()["checkpoint"] is None, "a log's beginning is none"
    await quorum.close()


async def test_another_members_certificate_ends_the_start(tmp_path: Path) -> None:
    quorum, authority = Quorum(tmp_path, 2, 0, CALM), Authority(tmp_path / "keys")
    config = config_of(quorum, 1, authority, proves=2)
    with pytest.raises(ConfigError, match="is of 2, not of 1"):
        adapters.event_log_of(
            config,
            quorum.disk,
            SystemClock(),
            random.Random(),
            spawn=lambda _work, _name: pytest.fail("nothing is begun"),
        )
    await quorum.close()


@pytest.mark.parametrize(
    ("text", "host", "port"), [("10.0.0.1:9393", "10.0.0.1", 9393), ("[::1]:1", "::1", 1)]
)
def test_an_address_is_taken_apart(text: str, host: str, port: int) -> None:
    at = endpoint_of(text)
    assert (at.name, at.host, at.port) == ("QUORUM", host, port)
