"""A broker's properties become TOML that is in force as it stands, or comments that say why not."""

import tomllib
from typing import Any

import pytest
from click.testing import CliRunner

from rlmm_daemon.cli import main
from rlmm_daemon.config import KafkaLog, parse
from rlmm_daemon.config.from_properties import read, to_toml

MANAGER = "rlmm.config.remote.log.metadata."
COMMON = f"{MANAGER}common.client."
#: Every key that TopicBasedRemoteLogMetadataManagerConfig of Kafka 4.3 defines.
OWN_KEYS = [
    "topic.replication.factor",
    "topic.num.partitions",
    "topic.retention.ms",
    "topic.min.isr",
    "consume.wait.ms",
    "initialization.retry.max.timeout.ms",
    "initialization.retry.interval.ms",
]
FULL = f"""
# a broker
node.id = 7
log.dirs=/data/a, /data/b
listeners=PLAINTEXT://10.0.0.1:9092,SSL://10.0.0.1:9093
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SASL_SSL
remote.log.metadata.manager.listener.name=SSL
{MANAGER}topic.num.partitions=12
{MANAGER}topic.replication.factor=2
{MANAGER}topic.min.isr=1
{COMMON}sasl.mechanism=SCRAM-SHA-512
{COMMON}sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="svc" password="hush hush";
{COMMON}ssl.truststore.type=PEM
{COMMON}ssl.truststore.location=/etc/kafka/ca.pem
{COMMON}ssl.truststore.password=hush hush
{COMMON}ssl.keystore.type=PEM
{COMMON}ssl.keystore.location=/etc/kafka/me.pem
{COMMON}ssl.endpoint.identification.algorithm=
{COMMON}request.timeout.ms=20000
{MANAGER}producer.delivery.timeout.ms=60000
{MANAGER}producer.batch.size=65536
{MANAGER}consumer.fetch.max.wait.ms=700
{MANAGER}consumer.group.id=mine
{MANAGER}admin.request.timeout.ms=9000
"""


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_listener_that_is_named_after_its_protocol_needs_no_map(protocol):
    """So is Kafka's own default of `listener.security.protocol.map`."""
    text = f"""
    listeners={protocol}://10.0.0.1:9093
    remote.log.metadata.manager.listener.name={protocol}
    """
    assert f'protocol = "{protocol}"' in converted(text)


def test_a_clients_own_word_counts_before_the_common_one_and_the_other_is_remarked_on():
    common, own = f"{COMMON}delivery.timeout.ms", f"{MANAGER}producer.delivery.timeout.ms"
    toml = converted(f"{common}=1000\n{own}=2000\n")
    assert "delivery_timeout_ms = 2000" in toml
    assert f"# {common.removeprefix('rlmm.config.')}: " in toml


def test_the_common_client_id_counts_before_each_clients_own():
    toml = converted(f"{COMMON}client.id=all\n{MANAGER}admin.client.id=one\n")
    assert 'client_id = "all"' in toml
    assert "admin.client.id: " in toml


def converted(text: str) -> str:
    return to_toml(read(text))


def in_force(text: str) -> Any:
    config = parse(converted("node.id=1\n" + text))
    assert isinstance(config.event_log, KafkaLog)
    return config.event_log.kafka


def test_a_whole_file_is_in_force_as_it_stands():
    text = converted(FULL)
    assert "To be put right" not in text
    config = parse(text)
    assert (config.daemon.broker_id, config.daemon.log_dirs) == (7, ("/data/a", "/data/b"))
    kafka = in_force(FULL)
    assert kafka.bootstrap == ("10.0.0.1:9093",)
    assert (kafka.admin.partition_count, kafka.admin.replication_factor) == (12, 2)
    assert (kafka.admin.min_insync_replicas, kafka.admin.request_timeout_ms) == (1, 9000)
    assert kafka.request_timeout_ms == 20_000
    assert kafka.producer.delivery_timeout_ms == 60_000
    assert kafka.producer.batch_bytes_max == 65_536
    assert kafka.fetch.max_wait_ms == 700
    security = kafka.security
    assert (security.protocol, security.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (security.username, security.ca_file) == ("svc", "/etc/kafka/ca.pem")
    assert security.certificate_file == security.key_file == "/etc/kafka/me.pem"
    assert not security.verify_host_name


def test_no_secret_is_taken_over():
    text = converted(FULL)
    assert "hush" not in text
    assert "password_file" in text


@pytest.mark.parametrize(
    "key",
    [
        *OWN_KEYS,
        "producer.acks",
        "producer.linger.ms",
        "producer.sasl.mechanism",
        "consumer.group.id",
        "consumer.client.id",
        "consumer.interceptor.classes",
        "common.client.metadata.max.age.ms",
        "common.client.delivery.timeout.ms",
        "common.client.sasl.kerberos.service.name",
        "something.else",
    ],
)
def test_every_key_is_taken_over_or_told_why_not(key):
    text = converted(f"{MANAGER}{key}=5")
    (told,) = [line for line in text.splitlines() if f"remote.log.metadata.{key}" in line]
    taken = not told.startswith("#")
    assert taken or told.partition(f"metadata.{key}: ")[2], told


def test_what_the_daemon_would_refuse_is_said_first():
    text = converted(f"node.id=1\n{MANAGER}consumer.fetch.max.wait.ms=90000")
    assert text.startswith(
        "# To be put right first:\n#   event_log.kafka.fetch.max_wait_ms = 90000"
    )
    tomllib.loads(text)


def test_a_keystore_of_javas_own_is_told_how_to_become_pem():
    text = converted(f"{COMMON}ssl.truststore.location=/etc/kafka/ts.jks")
    assert "keytool -exportcert -rfc -keystore /etc/kafka/ts.jks" in text
    assert 'ca_file = "/etc/rlmm/ca.pem"' in text


def test_another_prefix_is_followed_and_other_managers_keys_are_not():
    text = "remote.log.metadata.manager.impl.prefix=mine.\n"
    text += "mine.remote.log.metadata.topic.num.partitions=3\n"
    assert in_force(f"{text}{MANAGER}topic.num.partitions=4").admin.partition_count == 3


def test_a_setting_of_one_client_that_the_connection_shares_is_said_once_for_all():
    same = f"{COMMON}security.protocol=SSL\n{MANAGER}producer.security.protocol=SSL"
    assert "producer" not in converted(same)
    other = f"{COMMON}security.protocol=SSL\n{MANAGER}producer.security.protocol=PLAINTEXT"
    assert "one connection for all" in converted(other)


def test_properties_are_read_as_java_does():
    assert read("a : b\n! no\n c=d\\\n   e\nf\\ g=\\u0041\\=\nlone\nh=i\\\\\n") == {
        "a": "b",
        "c": "de",
        "f g": "A=",
        "lone": "",
        "h": "i\\",
    }


def test_the_command_prints_it_and_names_a_file_that_is_not_there(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(FULL)
    line = ["config", "from-properties", str(file)]
    said = CliRunner().invoke(main, line)
    assert (said.exit_code, said.output) == (0, converted(FULL))
    file.unlink()
    said = CliRunner().invoke(main, line)
    assert said.exit_code == 78
    assert "No such file" in said.output
