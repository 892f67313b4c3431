"""Every way in, and the rights that suffice."""

import asyncio
import json
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import Any

import pytest

from rlmm_daemon import config as configuration
from rlmm_daemon.domain.errors import ConfigError, UnavailableError
from rlmm_daemon.domain.ids import BrokerId, TopicId
from rlmm_daemon.offline import checkup
from rlmm_daemon.wiring import adapters
from tests.kafka.cleaner_rig import OneDaemon
from tests.kafka.cleaner_rig import until as patiently
from tests.kafka.rig import Writer, serving, tp_in, until
from tests.unit.daemon import events

WAYS = [
    ("TLS", "PLAIN"),
    ("MTLS", "PLAIN"),
    ("SASL", "PLAIN"),
    ("SASL", "SCRAM-SHA-256"),
    ("SASL", "SCRAM-SHA-512"),
    ("SASLTLS", "PLAIN"),
    ("SASLTLS", "SCRAM-SHA-256"),
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
TO_OBSERVE = ("cluster", "kafka-cluster", "describe")
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
        cluster = adapters.cluster_of(rig.config(**way), manager.log)
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
            cluster = adapters.cluster_of(rig.config(**way), log)
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


async def test_the_documented_right_to_observe_is_needed_and_suffices(rig, probe):
    rig.create()
    grant(rig, "User:rlmm", RIGHTS)
    way = {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "user": "rlmm"}
    nobodys = TopicId(b"no topic has it.")
    async with rig.log(**way) as log:
        await log.open(create=False)
        cluster = adapters.cluster_of(rig.config(**way), log)
        with pytest.raises(UnavailableError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await cluster.look(frozenset({nobodys}))
        grant(rig, "User:rlmm", [TO_OBSERVE])
        try:
            look = None
            async with asyncio.timeout(60):
                while look is None:  # brokers learn of a right in turn
                    with suppress(UnavailableError):
                        look = await cluster.look(frozenset({nobodys}))
            assert (look.live, look.unknown) == (rig.cluster.count, frozenset({nobodys}))
        finally:
            resource, name, operation = TO_OBSERVE
            right = {"resource": resource, "name": name, "operation": operation}
            probe.ask("forbid", principal="User:rlmm", **right)


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
        await until(lambda: not manager.lookups.is_ready(tp), what="nobody is trusted any more")
        shutil.copy(rig.cluster.key_directory / "ca.pem", keys / "ca.pem")
        await log.reload()
        await until(lambda: manager.lookups.is_ready(tp))
        await Writer(manager, tp, base=20).copy(0)


def encrypted(rig, phrase: str) -> dict[str, str]:
    """The settings of a client whose private key needs a passphrase."""
    keys = rig.cluster.key_directory
    key, file = rig.home / "encrypted.key", rig.home / "phrase"
    file.write_text(phrase)
    file.chmod(0o600)
    openssl = shutil.which("openssl")
    assert openssl is not None
    command = [openssl, "pkcs8", "-topk8", "-v2", "aes-256-cbc", "-in", f"{keys}/client.key"]
    subprocess.run(
        [*command, "-out", key, "-passout", "pass:right"], check=True, capture_output=True
    )
    security = "event_log.kafka.security"
    return {f"{security}.key_file": str(key), f"{security}.key_password_file": str(file)}


async def test_a_key_that_is_encrypted_needs_its_passphrase(rig):
    rig.create()
    grant(rig, "User:CN=rlmm", RIGHTS)
    tp = tp_in(0)
    async with rig.manager(listener="MTLS", settings=encrypted(rig, "right")) as manager:
        await serving(manager, tp)
        await Writer(manager, tp).copy(0)
    async with rig.log(listener="MTLS", settings=encrypted(rig, "amiss")) as log:
        with pytest.raises(ConfigError, match=r"encrypted\.key.*passphrase") as refused:
            await log.open(create=False)
    assert "amiss" not in str(refused.value)


def as_rotating(rig, password: str) -> dict[str, Any]:
    """How a user of this test's own comes in, whose password may change."""
    file = rig.home / "rotating.password"
    file.write_text(password)
    file.chmod(0o600)
    security = "event_log.kafka.security"
    settings = {f"{security}.username": "rotating", f"{security}.password_file": str(file)}
    return {"listener": "SASL", "mechanism": "SCRAM-SHA-256", "user": "rlmm", "settings": settings}


async def test_a_password_that_was_changed_is_taken_up_by_a_reload(rig, probe):
    rig.create()
    probe.ask("password", user="rotating", password="old-one")
    grant(rig, "User:rotating", RIGHTS)
    tp = tp_in(0)
    async with rig.manager(**as_rotating(rig, "old-one")) as manager:
        await serving(manager, tp)
        await Writer(manager, tp).copy(0)
        await asyncio.to_thread(probe.ask, "password", user="rotating", password="new-one")
        await Writer(manager, tp, base=5).copy(0)  # over the connections that are open
        hang_up(manager.log)
        await until(lambda: not manager.lookups.is_ready(tp), what="the old password opens nothing")
        await until(lambda: "uthentication" in last_error(manager.log), what="it says why")
        assert "one" not in last_error(manager.log)
        as_rotating(rig, "new-one")
        await manager.log.reload()
        await until(lambda: manager.lookups.is_ready(tp))
        await Writer(manager, tp, base=10).copy(0)


def last_error(log) -> str:
    return str(log.facts()["partitions"][0]["last_error"])


def test_sighup_lets_a_daemon_in_that_had_the_wrong_password(rig, probe, tmp_path):
    rig.create()
    probe.ask("password", user="rotating", password="the-right-one")
    grant(rig, "User:rotating", RIGHTS)
    home = tmp_path / "daemon"
    way = as_rotating(rig, "a-wrong-one")
    way["settings"] |= {
        "daemon.log_dirs": f'["{home}/var/kafka-logs"]',
        "daemon.state_dir": f"{home}/state",
        "socket.path": f"{home}/var/rlmm.sock",
        "admin.listen": "127.0.0.1:0",
    }
    text = configuration.effective_toml(rig.config(**way))
    with OneDaemon(home, 1, text) as daemon, daemon.client() as client:
        tp = tp_in(0)
        patiently(lambda: "uthentication" in json.dumps(client.status()), "it says why")
        told = json.dumps(client.status()) + daemon.output.read_text()
        assert "a-wrong-one" not in told
        as_rotating(rig, "the-right-one")
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)

        def let_in() -> bool:
            client.replace_assignment([tp], [])
            return client.is_ready(tp)

        patiently(let_in, "ready")
        assert "the-right-one" not in json.dumps(client.status()) + daemon.output.read_text()


async def another_connection(client, opened: int) -> None:
    await until(lambda: client.opened_count > opened, what="another connection")


async def test_sessions_that_brokers_end_cost_a_connection_and_nothing_else(rig):
    """Who does not authenticate again is cut off where `connections.max.reauth.ms` is set."""
    rig.create()
    tp = tp_in(0)
    async with rig.manager(listener="SASLTLS", mechanism="SCRAM-SHA-256") as manager:
        await serving(manager, tp)
        client, writer, copies = manager.log.client, Writer(manager, tp), 6
        for number in range(copies):
            opened = client.opened_count
            await writer.copy(number)
            await another_connection(client, opened)
        await asyncio.to_thread(writer.check, rig)
        await until(lambda: manager.lookups.is_ready(tp))
        errors = manager.log.facts()["errors"]
        rig.tell(f"sessions of 2 s: {copies} copies, each over other connections, {errors}")


@pytest.mark.parametrize(("spoken", "at"), [("PLAINTEXT", "TLS"), ("TLS", "PLAINTEXT")])
async def test_another_protocol_than_the_listeners_is_an_error_that_names_broker_and_cause(
    rig, spoken, at
):
    config = rig.config(
        listener=spoken,
        settings={"event_log.kafka.bootstrap": json.dumps(rig.cluster.bootstrap(at).split(","))},
    )
    found = await asyncio.to_thread(checkup.examine, config, seconds=15)
    assert [each.check for each in found] == ["connection"]
    assert found[0].verdict == "failed"
    assert any(address in found[0].found for address in rig.cluster.bootstrap(at).split(","))
    assert ".security" in found[0].advice


def hang_up(log) -> None:
    for connection in list(log.client._open):
        connection.close()
