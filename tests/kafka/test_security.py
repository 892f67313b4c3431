"""Every way in, and the rights that suffice."""

import asyncio
import shutil

import pytest

from rlmm_daemon import wiring
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.ids import BrokerId
from tests.kafka.rig import Writer, serving, tp_in, until
from tests.unit.manager import events

WAYS = [
    ("TLS", "PLAIN"),
    ("MTLS", "PLAIN"),
    ("SASL", "PLAIN"),
    ("SASL", "SCRAM-SHA-256"),
    ("SASL", "SCRAM-SHA-512"),
    ("SASLTLS", "PLAIN"),
    ("SASLTLS", "SCRAM-SHA-512"),
]
#: As docs/kafka.md lists them; {topic} is the metadata topic.
RIGHTS = [
    ("topic", "{topic}", "describe"),
    ("topic", "{topic}", "read"),
    ("topic", "{topic}", "write"),
    ("topic", "{topic}", "describe_configs"),
]
TO_DISCOVER = [("topic", "*", "describe"), ("topic", "*", "describe_configs")]
TO_CREATE = ("topic", "{topic}", "create")


def grant(rig, principal: str, rights: list[tuple[str, str, str]]) -> None:
    for resource, name, operation in rights:
        right = {"resource": resource, "name": name.format(topic=rig.topic)}
        rig.probe.ask("allow", principal=principal, operation=operation, **right)


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
async def test_a_copy_is_written_and_found_over_every_listener(rig, listener, mechanism):
    rig.topic += f".{listener}.{mechanism}"
    rig.create()
    if listener == "MTLS":
        grant(rig, "User:CN=rlmm", RIGHTS)
    tp = tp_in(0)
    async with rig.manager(listener=listener, mechanism=mechanism) as manager:
        await serving(manager, tp)
        writer = Writer(manager, tp)
        await writer.copy(0)
        assert writer.acknowledged == [0]


async def test_the_documented_rights_suffice(rig):
    rig.create()
    grant(rig, "User:rlmm", RIGHTS)
    tp = tp_in(0)
    way = {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "user": "rlmm"}
    async with rig.manager(**way) as manager:
        await serving(manager, tp)
        await Writer(manager, tp, base=10).copy(0)
        cluster = wiring.cluster_of(rig.config(**way), manager.log)
        assert await cluster.metadata_leaders()
        assert await cluster.brokers()


async def test_the_documented_rights_to_discover_suffice(rig, probe):
    rig.create()
    tiered = f"{rig.topic}.tiered"
    config = {"remote.storage.enable": "true"}
    probe.ask("create", topic=tiered, config=config, partitions=1, replicas=1)
    way = {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "user": "rlmm"}
    grant(rig, "User:rlmm", [*RIGHTS, *TO_DISCOVER])
    try:
        async with rig.log(**way) as log:
            await log.open(create=False)
            cluster = wiring.cluster_of(rig.config(**way), log)
            seen: set[str] = set()
            async with asyncio.timeout(60):
                while tiered not in seen:
                    cluster.refresh()
                    for broker in (1, 2, 3):
                        found = await cluster.tiered_topics(BrokerId(broker))
                        seen |= {each.topic for each in found.replicated}
    finally:
        for resource, name, operation in TO_DISCOVER:
            right = {"resource": resource, "name": name}
            probe.ask("forbid", principal="User:rlmm", operation=operation, **right)


async def test_with_the_right_to_create_the_topic_is_made_too(rig):
    grant(rig, "User:rlmm", [*RIGHTS, TO_CREATE])
    tp = tp_in(0)
    way = {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "user": "rlmm"}
    async with rig.manager(**way) as manager:
        await serving(manager, tp)
        await Writer(manager, tp).copy(0)


@pytest.mark.parametrize("missing", ["read", "write"])
async def test_without_a_right_nothing_is_ready_or_written_and_it_comes_with_the_right(
    rig, missing
):
    rig.topic += f".{missing}"
    rig.create()
    grant(rig, "User:rlmm", [right for right in RIGHTS if right[2] != missing])
    tp = tp_in(0)
    rig.probe.produce(rig.topic, 0, [events.started(7, 0, 9, tp)])
    way = {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "user": "rlmm"}
    async with rig.manager(**way) as manager:
        if missing == "read":
            with pytest.raises(AssertionError, match="not within"):
                await serving(manager, tp, seconds=2)
        else:
            await serving(manager, tp)
        grant(rig, "User:rlmm", RIGHTS)
        await serving(manager, tp)
        await Writer(manager, tp, base=10).copy(0)


async def test_certificates_are_read_again_on_a_reload_and_connections_to_come_use_them(rig):
    rig.create()
    grant(rig, "User:CN=rlmm", RIGHTS)
    keys = rig.home / "keys"
    shutil.copytree(rig.cluster.key_directory, keys)
    given = keys / "client.crt"
    good = given.read_text()
    settings = {
        f"event_log.kafka.security.{name}_file": f"{keys}/{file}"
        for name, file in (("certificate", given.name), ("key", "client.key"), ("ca", "ca.pem"))
    }
    tp = tp_in(0)
    async with rig.manager(listener="MTLS", settings=settings) as manager:
        await serving(manager, tp)
        log = manager.log
        await Writer(manager, tp).copy(0)
        given.write_text("no certificate")
        with pytest.raises(ConfigError, match=r"client\.crt"):
            await log.reload()
        hang_up(log)
        await Writer(manager, tp, base=5).copy(0)  # what was in force stays so
        (keys / "ca.pem").write_text(good)  # an authority that signed no broker's certificate
        given.write_text(good)
        await log.reload()
        await Writer(manager, tp, base=10).copy(0)  # over the connections that are open
        hang_up(log)
        await until(lambda: not manager.is_ready(tp), what="nobody is trusted any more")
        shutil.copy(rig.cluster.key_directory / "ca.pem", keys / "ca.pem")
        await log.reload()
        await until(lambda: manager.is_ready(tp))
        await Writer(manager, tp, base=20).copy(0)


def hang_up(log) -> None:
    for connection in list(log.client._open):
        connection.close()
