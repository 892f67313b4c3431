"""Finding the topic, making it, and what is refused about it."""

import asyncio
import logging
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.errors import KafkaConnectionError

from rlmm_daemon.adapters.kafka.connection import errors
from rlmm_daemon.adapters.kafka.connection.errors import Reaction, name_of, reaction_to
from rlmm_daemon.adapters.kafka.connection.security import load_security
from rlmm_daemon.adapters.kafka.event_log import KafkaLog, asking
from rlmm_daemon.adapters.kafka.event_log import log as kafka_log
from rlmm_daemon.adapters.kafka.event_log.provisioning import topic_settings
from rlmm_daemon.config import KafkaAdmin, KafkaSecurity
from rlmm_daemon.core import phrases
from rlmm_daemon.core.readiness.states import FAILURES, FailureReason
from rlmm_daemon.daemon.operator.gauges import Gauges
from rlmm_daemon.domain.backoff import Backoff, full
from rlmm_daemon.domain.errors import (
    ConfigError,
    InvalidArgument,
    StorageUnavailable,
    UnavailableError,
)
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.ports.event_log import NO_EPOCH, LogForeign, LogMissing, NoTopicId
from tests.unit.adapters.kafka.broker import FakeBroker, connected, opened

P0, P1 = MetadataPartition(0), MetadataPartition(1)


async def test_no_question_about_a_topic_creates_it():
    broker = FakeBroker()
    broker.exists = False
    async with connected(broker) as log:
        with pytest.raises(LogMissing):
            await log.open(create=False)
    assert broker.requests("Metadata")
    assert all(request.create is False for request in broker.requests("Metadata"))
    assert not broker.requests("CreateTopics")


async def test_a_topic_is_made_as_kafka_makes_it():
    broker = FakeBroker()
    broker.exists = False
    async with connected(broker) as log:
        identity = await log.open(create=True)
    assert (identity.topic_id, identity.partition_count) == (broker.topic_id, 2)
    (request,) = broker.requests("CreateTopics")
    name, partitions, replicas, assignments, settings, _ = request.topics[0]
    assert (name, partitions, replicas, assignments) == ("meta", 2, 1, [])
    assert {(key, value) for key, value, _ in settings} == {
        ("cleanup.policy", "delete"),
        ("retention.ms", "-1"),
        ("retention.bytes", "-1"),
        ("min.insync.replicas", "1"),
        ("remote.storage.enable", "false"),
    }


def test_the_replication_factor_bounds_the_replicas_in_sync():
    assert topic_settings(KafkaAdmin())["min.insync.replicas"] == "2"
    assert topic_settings(KafkaAdmin(replication_factor=1))["min.insync.replicas"] == "1"
    assert topic_settings(KafkaAdmin(min_insync_replicas=3))["min.insync.replicas"] == "3"
    more = {"segment.bytes": "1048576", "remote.storage.enable": "true"}
    assert more.items() <= topic_settings(KafkaAdmin(topic_settings=more)).items()


async def test_an_existing_topics_count_wins():
    async with opened(FakeBroker(count=7)) as log:
        assert log.identity is not None
        assert log.identity.partition_count == 7


async def test_the_topic_of_another_cluster_is_not_taken_for_ours():
    broker = FakeBroker()
    async with opened(broker) as log:
        assert log.identity is not None
        theirs = log.identity.cluster_id
    async with connected(broker, cluster_id="ours") as log:
        with pytest.raises(LogForeign, match=f"{theirs}.*ours"):
            await log.open(create=True)
        assert log.identity is None
    async with connected(broker, cluster_id=theirs) as log:
        await log.open(create=False)


async def test_a_topic_without_an_id_is_refused_and_the_failure_names_a_command():
    broker = FakeBroker()
    broker.topic_id = bytes(16)
    async with connected(broker) as log:
        with pytest.raises(NoTopicId, match=r"upgrade the cluster's metadata.version"):
            await log.open(create=True)
        assert log.identity is None
    assert FAILURES[FailureReason.NO_TOPIC_ID].command == "rlmm doctor"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cleanup.policy": "compact"}, "compaction"),
        ({"cleanup.policy": "compact,delete"}, "compaction"),
        ({"retention.ms": "604800000"}, "retention.ms is 604800000"),
        ({"retention.bytes": "1000"}, "retention.bytes is 1000"),
    ],
)
async def test_a_topic_that_may_lose_events_is_a_warning_or_refused(settings, words):
    broker = FakeBroker()
    broker.settings = settings
    async with opened(broker) as log:
        (warning,) = log.facts()["warnings"]
        assert words in warning
    strict = KafkaAdmin(require_infinite_retention=True)
    async with connected(broker, admin=strict) as log:
        with pytest.raises(UnavailableError, match="require_infinite_retention"):
            await log.open(create=True)
        broker.settings = {}
        await log.open(create=True)


async def test_settings_that_may_not_be_read_are_a_warning():
    broker = FakeBroker()
    broker.faults["DescribeConfigs"].append(
        lambda request: request.RESPONSE_TYPE(0, [(29, None, 2, "meta", [], {})], {})
    )
    async with opened(broker) as log:
        (warning,) = log.facts()["warnings"]
        assert "TOPIC_AUTHORIZATION_FAILED" in warning


async def test_a_daemon_that_starts_before_its_broker_is_told_to_come_again():
    broker = FakeBroker()
    broker.refusing = {1, 2}
    async with connected(broker) as log:
        with pytest.raises(StorageUnavailable, match="refused"):
            await log.open(create=True)
        broker.refusing = set()
        await log.open(create=True)


async def test_an_end_offset_that_is_not_known_is_missing_and_never_zero():
    broker = FakeBroker()
    broker.put(0, b"a")
    broker.partitions[1].leader = 2
    broker.refusing = {2}
    async with opened(broker) as log:
        ranges = await log.end_offsets([P0, P1])
        assert ranges.keys() == {P0}
        assert ranges[P0].end == 1


async def test_end_offsets_are_one_request_for_all_partitions_of_a_leader():
    broker = FakeBroker(count=50)
    async with opened(broker) as log:
        await log.end_offsets([MetadataPartition(n) for n in range(50)])
    assert len(broker.requests("ListOffsets")) == 2, "starts, then ends"


async def test_end_offsets_cost_one_round_trip_and_the_topics_id_is_asked_for_last():
    broker = FakeBroker()
    async with opened(broker) as log:
        broker.asked.clear()
        broker.arrived["Metadata"].clear()

        async def after_the_last(request: Any) -> Any:
            async with asyncio.timeout(30):
                await broker.arrived["Metadata"].wait()
            return await broker.on_listoffsets(1, request)

        broker.faults["ListOffsets"].append(after_the_last)
        assert (await log.end_offsets([P0])).keys() == {P0}
        assert [kind for _, kind, _ in broker.asked] == ["ListOffsets", "ListOffsets", "Metadata"]


async def test_end_offsets_of_a_topic_that_was_recreated_meanwhile_are_not_known():
    broker = FakeBroker()
    async with opened(broker) as log:
        broker.topic_id = b"j" * 16
        assert await log.end_offsets([P0]) == {}


async def test_an_epoch_end_without_a_leader_is_not_now():
    broker = FakeBroker()
    async with opened(broker) as log:
        broker.partitions[0].leader = -1
        broker.partitions[0].epoch += 1
        with pytest.raises(StorageUnavailable, match="no leader"):
            await log.epoch_end(P0, 0)
        with pytest.raises(InvalidArgument):
            await log.epoch_end(MetadataPartition(9), 0)


def led_by_another(broker: FakeBroker) -> None:
    """Let broker 2 lead partition 0 with all that was written; who asked before knows nothing."""
    broker.partitions[0].leader = 2
    broker.partitions[0].epoch += 1


async def test_an_epoch_end_is_asked_of_the_new_leader_when_the_known_one_died():
    broker = FakeBroker()
    broker.put(0, b"a", b"b")
    async with opened(broker, bootstrap=("fake:9001", "fake:9002")) as log:
        led_by_another(broker)
        broker.refusing = {1}
        for vendor in broker.connections:
            vendor.close()
        found = await log.epoch_end(P0, 0)
        assert (found.epoch, found.end_offset) == (0, 2)


async def test_a_leader_that_has_not_heard_of_a_later_one_does_not_say_how_that_ones_epoch_ended():
    """A broker that lost its controllers takes itself for the leader while others elected anew."""
    broker = FakeBroker()
    broker.put(0, b"a", b"b")
    async with opened(broker) as log:
        with pytest.raises(StorageUnavailable, match="epoch 1"):
            await log.epoch_end(P0, 1)  # another daemon had read a batch of it elsewhere
        assert (await log.epoch_end(P0, 0)).end_offset == 2
        led_by_another(broker)
        broker.put(0, b"c")
        found = await log.epoch_end(P0, 1)
        assert (found.epoch, found.end_offset) == (1, 3)


async def test_an_epoch_before_the_logs_start_is_not_confirmed_though_kafka_repeats_it():
    """What it had written may have been cut off, and overwritten, before the head was deleted."""
    broker = FakeBroker()
    broker.put(0, b"a", b"b")
    led_by_another(broker)
    broker.put(0, b"c", b"d")
    broker.partitions[0].start = 3
    del broker.partitions[0].epoch_ends[0]
    async with opened(broker) as log:
        found = await log.epoch_end(P0, 0)
        assert (found.epoch, found.end_offset) == (-1, -1)
        found = await log.epoch_end(P0, 1)
        assert (found.epoch, found.end_offset) == (1, 4)
        led_by_another(broker)
        broker.put(0, b"e")
        await log.directory.refresh()
        found = await log.epoch_end(P0, 1)
        assert (found.epoch, found.end_offset) == (1, 4), "one that reaches beyond the start is"


@pytest.mark.parametrize("question", ["OffsetForLeaderEpoch", "ListOffsets"])
async def test_after_a_leader_that_is_silent_who_leads_is_asked_for_first(monkeypatch, question):
    monkeypatch.setattr(asking, "_ANSWER_SECONDS", 0.02)
    monkeypatch.setattr(asking, "_ATTEMPT_SECONDS", 0.0)
    broker = FakeBroker()
    broker.put(0, b"a", b"b")
    never = asyncio.Event()

    async def hang(_: Any) -> None:
        await never.wait()

    async def ask(log: KafkaLog) -> int | None:
        if question == "ListOffsets":
            ranges = await log.end_offsets([P0])
            return ranges[P0].end if P0 in ranges else None
        try:
            return (await log.epoch_end(P0, 0)).end_offset
        except UnavailableError:
            return None

    async with opened(broker) as log:
        led_by_another(broker)
        broker.faults[question].extend([hang] * 2)
        assert await ask(log) is None
        broker.faults[question].clear()
        broker.asked.clear()
        assert await ask(log) == 2
        assert [kind for _, kind, _ in broker.asked][:2] == ["Metadata", question]
        assert broker.asked[1][0] == 2


async def test_facts_hold_no_secret_and_count_connections():
    broker = FakeBroker()
    async with opened(broker) as log:
        await log.append(P0, b"x")
        facts = log.facts()
        assert facts["connections"] == len([c for c in broker.connections if c.connected()])
    assert log.facts()["connections"] == 0


async def test_a_followers_connection_is_put_in_words():
    broker = FakeBroker()
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        await anext(batches)
        known = log.facts()["partitions"][0]
        assert phrases.connection(known).startswith("fetching from broker ")
        waiting = known | {"state": "backing_off", "pause_seconds": 0.41, "last_error": "cut"}
        assert phrases.connection(waiting) == (
            "its connection backs off for 0.41 s; last error: cut"
        )
        finding = known | {"state": "finding_leader", "leader": None}
        assert phrases.connection(finding) == "its connection is finding leader"


async def test_many_who_ask_at_once_share_one_metadata_question():
    broker = FakeBroker()
    async with opened(broker) as log:
        before = len(broker.requests("Metadata"))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(50):
                tasks.create_task(log.directory.refresh())
        assert len(broker.requests("Metadata")) - before <= 2


def test_a_back_off_grows_is_capped_jittered_and_reset():
    backoff = Backoff(0.05, 2.0, full)
    waits = [backoff.next() for _ in range(10)]
    assert waits[:4] == [0.05, 0.1, 0.2, 0.4]
    assert waits[-1] == 2.0
    backoff.reset()
    assert backoff.next() == 0.05


def test_codes_that_the_vendor_does_not_know_are_told_apart():
    assert {name_of(code) for code in (74, 75, 100, 103)} == {
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
    }
    assert reaction_to(100) is Reaction.TOPIC
    assert reaction_to(12345) is Reaction.RETRY
    assert name_of(12345) == "error 12345"


def test_the_vendors_logger_never_prints_answers():
    assert not logging.getLogger("aiokafka").isEnabledFor(logging.DEBUG)


def test_a_transport_error_shows_its_cause_and_no_secret():
    broken = KafkaConnectionError("closed")
    broken.__cause__ = EOFError("0 bytes read")
    assert "0 bytes read" in errors.transport_error(broken, "asking").message


@pytest.mark.parametrize("key", ["ca_file", "certificate_file"])
def test_a_file_that_is_no_pem_is_named(tmp_path, key):
    file = tmp_path / "x.pem"
    file.write_text("no certificate")
    for given in (str(file), str(tmp_path / "absent")):
        settings = KafkaSecurity(protocol="SSL", key_file=given)
        with pytest.raises(ConfigError, match=key):
            load_security(msgspec.structs.replace(settings, **{key: given}))


def test_a_password_is_read_anew_and_never_shown(tmp_path):
    file = tmp_path / "password"
    file.write_text("hunter1\n")
    settings = KafkaSecurity(
        protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="u", password_file=str(file)
    )
    security = load_security(settings)
    assert security.arguments()["sasl_plain_password"] == "hunter1"
    assert "hunter1" not in repr(security)
    file.write_text("hunter2\n")
    assert load_security(settings).arguments()["sasl_plain_password"] == "hunter2"


async def test_connections_errors_and_warnings_become_metrics():
    broker = FakeBroker()
    broker.settings = {"retention.ms": "1"}
    metrics = Metrics()
    hooks = SimpleNamespace(applied=[], copies=[], snapshot_written=[])
    parts: list[Any] = [SimpleNamespace(hooks=hooks), None, None]
    gauges = Gauges(metrics, *parts)
    value = metrics.registry.get_sample_value
    async with opened(broker) as log, aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
        broker.faults["Fetch"].append(OSError("cut"))
        await anext(batches)
        for _ in range(2):  # a counter is not counted twice
            gauges._log(log.facts())
        assert value("rlmm_log_connections", {"purpose": "follow"}) == 1
        assert (
            value("rlmm_log_connections", {"purpose": "other"}) == log.client.connection_count - 1
        )
        assert value("rlmm_log_errors_total", {"task": "fetch"}) == 1
        assert value("rlmm_log_setting_warnings") == 1
        assert value("rlmm_log_followers", {"state": "fetching"}) == 1
    gauges._log(log.facts())
    assert value("rlmm_log_connections", {"purpose": "follow"}) == 0
    assert value("rlmm_log_followers", {"state": "fetching"}) is None
    assert value("rlmm_log_errors_total", {"task": "fetch"}) == 1


async def test_settings_that_are_changed_or_cured_later_are_noticed(monkeypatch):
    monkeypatch.setattr(kafka_log, "SETTINGS_SECONDS", 0.01)
    broker = FakeBroker()
    async with opened(broker) as log, asyncio.TaskGroup() as group:
        assert log.warnings == []
        watching = group.create_task(log.watch_settings())
        broker.settings["retention.ms"] = "604800000"
        while not log.warnings:  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)
        assert "retention.ms is 604800000" in log.warnings[0]
        broker.settings["retention.ms"] = "-1"
        while log.warnings:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        watching.cancel()


async def test_settings_that_were_right_are_not_called_wrong_while_no_broker_answers(monkeypatch):
    """Else the alert on a topic that compacts woke somebody whenever a broker was gone."""
    monkeypatch.setattr(kafka_log, "SETTINGS_SECONDS", 0.01)
    monkeypatch.setattr(kafka_log, "SETTINGS_UNSEEN_SECONDS", 0.01)
    broker = FakeBroker()
    async with opened(broker) as log, asyncio.TaskGroup() as group:
        watching = group.create_task(log.watch_settings())
        faults = broker.faults["DescribeConfigs"]
        faults.extend([OSError("cut")] * 20)
        while faults:
            assert log.warnings == []
            await asyncio.sleep(0.001)
        watching.cancel()
