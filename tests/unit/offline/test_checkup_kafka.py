"""What `rlmm doctor` says of brokers that real ones can't easily be made to be."""

from rlmm_daemon.adapters.kafka.event_log.provisioning import lone_replicas
from rlmm_daemon.offline import checkup_kafka
from tests.unit.adapters.kafka.broker import FakeBroker, connected, opened


async def test_a_topic_without_an_id_is_told_how_to_get_one() -> None:
    broker = FakeBroker()
    broker.topic_id = bytes(16)
    async with connected(broker) as log:
        found = await checkup_kafka.connection(log, 10)
    assert found.verdict == "failed"
    assert "metadata.version" in found.advice


async def test_brokers_that_do_not_answer_are_told_apart_from_a_topic_that_is_not_there() -> None:
    broker = FakeBroker()
    broker.refusing = {1, 2}
    async with connected(broker) as log:
        silent = await checkup_kafka.connection(log, 10)
    assert (silent.verdict, "bootstrap" in silent.advice) == ("failed", True)
    broker.refusing, broker.exists = set(), False
    async with connected(broker) as log:
        absent = await checkup_kafka.connection(log, 10)
    assert (absent.verdict, "restore" in absent.advice) == ("warning", True)


async def test_settings_that_may_not_be_read_skip_what_needs_them() -> None:
    broker = FakeBroker()
    async with opened(broker) as log:
        broker.faults["DescribeConfigs"].append(
            lambda request: request.RESPONSE_TYPE(0, [(29, None, 2, "meta", [], {})], {})
        )
        found = await checkup_kafka.durability(log, "meta", 10)
    assert (found.verdict, "TOPIC_AUTHORIZATION_FAILED" in found.found) == ("skipped", True)


def test_one_disk_with_an_acknowledged_event_is_too_few() -> None:
    assert lone_replicas({"min.insync.replicas": "2"}, 3) is None
    alone = lone_replicas({"min.insync.replicas": "1"}, 3)
    assert alone is not None
    assert "set it to 2" in alone
    single = lone_replicas({"min.insync.replicas": "2"}, 1)
    assert single is not None
    assert "1 replica" in single
