"""What follows from a broker's files: settings, lines, rights, drop-ins. No disk."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.config import Config, QuorumLog, QuorumSecurity, parse
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.offline.setup import beside
from rlmm_daemon.offline.setup.broker import Account, Broker, Directory, broker_of, parsed
from rlmm_daemon.offline.setup.properties import lines, with_lines
from rlmm_daemon.offline.setup.quorum import Replica
from rlmm_daemon.offline.setup.settings import Choices, merged, settings

ROOT = Path(__file__).parents[4]
KAFKA = Account(user="kafka", group="kafka")
#: As the newest Kafka ships it, without its comments.
SHIPPED = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
log.dirs=/srv/kafka
offsets.topic.replication.factor=1
"""
SECURE = """\
node.id=7
process.roles=broker
controller.listener.names=CONTROLLER
listeners=INSIDE://0.0.0.0:9094,OUTSIDE://:9095
advertised.listeners=INSIDE://b7.example:9094,OUTSIDE://b7.example.org:9095
listener.security.protocol.map=INSIDE:SASL_SSL,OUTSIDE:SSL,CONTROLLER:SSL
inter.broker.listener.name=INSIDE
sasl.enabled.mechanisms=GSSAPI,PLAIN,SCRAM-SHA-256
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
log.dirs=/srv/a, /srv/b
"""


def directory(path: str = "/srv/kafka", **meta: str) -> Directory:
    return Directory(path=path, meta=meta or None, owner=KAFKA, group_reads=True)


def broker(text: str = SHIPPED, *directories: Directory, cluster: str = "MkU3") -> Broker:
    return broker_of(
        parsed(text), directories or [directory(**{"cluster.id": cluster}, version="1")]
    )


def configured(of: Broker, text: str = "", **choices: Any) -> tuple[str, Config]:
    storage = choices.pop("storage", {"kind": "none"})
    written = merged(text, settings(of, Choices(storage=storage, **choices)))
    return written, parse(written)


def test_the_shipped_file_gives_a_configuration_that_holds():
    text, config = configured(broker())
    assert tomllib.loads(text) == {
        "daemon": {"broker_id": 1, "cluster_id": "MkU3", "log_dirs": ["/srv/kafka"]},
        "event_log": {
            "kind": "kafka",
            "kafka": {
                "bootstrap": ["localhost:9092"],
                "security": {"protocol": "PLAINTEXT"},
                "admin": {"replication_factor": 1},
            },
        },
        "storage": {"kind": "none"},
        "socket": {"rights": {"write": {"users": ["kafka"]}}},
    }
    assert config.daemon.broker_id == 1


def test_the_labs_own_broker_is_read_too():
    template = (ROOT / "deploy/dev/stack/kafka/server.properties.in").read_text()
    filled = {"ID": "2", "LISTENERS": "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2",
              "ADVERTISED": "PLAINTEXT://127.0.0.1:1", "DIR": "/srv", "REPLICAS": "3"}  # fmt: skip
    for key, value in filled.items():
        template = template.replace(f"@{key}@", value)
    found = broker(template)
    assert (found.node_id, found.address, found.protocol) == (2, "127.0.0.1:1", "PLAINTEXT")
    assert found.authorizes


def test_a_secured_listener_is_taken_with_the_best_that_both_know():
    secure = broker(SECURE, directory("/srv/a", **{"node.id": "7"}), directory("/srv/b"))
    text, config = configured(secure, bootstrap=("b8.example:9094",))
    security = tomllib.loads(text)["event_log"]["kafka"]["security"]
    assert security == {
        "protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-256", "username": "rlmm",
        "password_file": "/etc/rlmm/password", "ca_file": "/etc/rlmm/ca.pem",
    }  # fmt: skip
    assert config.event_log.kafka.bootstrap == ("b7.example:9094", "b8.example:9094")  # type: ignore[union-attr]  # it is Kafka's
    assert config.daemon.log_dirs == ("/srv/a", "/srv/b")


def test_mutual_tls_names_its_certificate():
    _, config = configured(broker(SECURE + "remote.log.metadata.manager.listener.name=OUTSIDE\n"))
    security = config.event_log.kafka.security  # type: ignore[union-attr]  # it is Kafka's
    assert (security.protocol, security.key_file) == ("SSL", "/etc/rlmm/client.key")


def test_what_the_broker_says_of_its_own_manager_goes_first():
    said = "rlmm.config.remote.log.metadata.common.client."
    text = (
        f"{SHIPPED}{said}bootstrap.servers=a:1,b:2\n{said}security.protocol=SASL_PLAINTEXT\n"
        f'{said}sasl.mechanism=PLAIN\n{said}sasl.jaas.config=X username="u" password="p4ss";\n'
    )
    written, config = configured(broker(text))
    log = config.event_log.kafka  # type: ignore[union-attr]  # it is Kafka's
    assert (log.bootstrap, log.security.username) == (("a:1", "b:2"), "u")
    assert "p4ss" not in written


@pytest.mark.parametrize(
    ("text", "directories", "said"),
    [
        (SHIPPED, [directory(**{"node.id": "2"})], "its log.dirs are of broker 2"),
        (SHIPPED, [directory("/a", **{"cluster.id": "x"}), directory("/b", **{"cluster.id": "y"})],
         "not of one broker"),
        ("process.roles=controller\nnode.id=1\n", [directory()], "a controller alone"),
        ("listeners=A://:1\nnode.id=1\ninter.broker.listener.name=B\n", [directory()], "has no B"),
        ("broker.id=-1\n", [directory()], "node.id is missing"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(text: str, directories: list[Directory], said: str):
    with pytest.raises(ConfigError, match=said):
        broker(text, *directories)


def test_an_id_that_the_broker_made_up_is_found_in_its_directory():
    assert broker("broker.id=-1\n", directory(**{"broker.id": "1003"})).node_id == 1003


def test_an_embedded_log_needs_to_know_its_cluster():
    unformatted = broker(SHIPPED, directory())
    with pytest.raises(ConfigError, match=r"needs cluster\.id"):
        settings(unformatted, Choices(event_log="embedded"))
    assert "cluster_id" not in tomllib.loads(configured(unformatted)[0])["daemon"]


MINE = """\
# mine
[daemon]
broker_id = 1  # of the broker
cluster_id = "MkU3"
log_dirs = [
  "/old",  # the old disk
]
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = ["other:9092"]
[event_log.kafka.security]
protocol = "SSL"
[socket.rights.write]
users = ["operator"]
[copy]
parallelism = 2  # the uplink is thin
"""


def test_an_existing_configuration_keeps_its_comments_and_what_is_nobody_elses():
    text, config = configured(broker(), MINE, storage={"kind": "s3", "bucket": "tier"})
    assert "# mine" in text
    assert "broker_id = 1  # of the broker" in text
    assert "parallelism = 2  # the uplink is thin" in text
    assert config.daemon.log_dirs == ("/srv/kafka",)
    assert config.socket.rights.write.users == ("operator", "kafka")
    log = config.event_log.kafka  # type: ignore[union-attr]  # it is Kafka's
    assert (log.bootstrap, log.security.protocol) == (("other:9092", "localhost:9092"), "SSL")


def test_security_that_is_there_stands_as_a_whole():
    """Half of what the listener wants, beside half of what an operator chose, is neither."""
    text, config = configured(broker(SECURE), MINE.replace('"SSL"', '"PLAINTEXT"'))
    assert config.event_log.kafka.security.username is None  # type: ignore[union-attr]  # it is Kafka's
    assert "ca_file" not in text


def test_said_again_nothing_changes():
    for text in ("", MINE):
        for kind in ("kafka", "embedded"):
            once, _ = configured(broker(), text, event_log=kind)
            assert configured(broker(), once, event_log=kind)[0] == once


def test_another_kind_begins_its_section_anew():
    kafka, _ = configured(broker(), storage={"kind": "s3", "bucket": "tier", "region": "eu-1"})
    text, _ = configured(
        broker(), kafka, event_log="embedded", storage={"kind": "local", "directory": "/srv/tier"}
    )
    found = tomllib.loads(text)
    assert found["event_log"] == {"kind": "embedded", "single_broker": True}
    assert found["storage"] == {"kind": "local", "directory": "/srv/tier"}


THEIRS = "a=1\n# remote.log.storage.system.enable=true\nremote.log.storage.system.enable : false\n"


def test_lines_are_changed_where_they_stand_and_added_at_the_end():
    wanted = lines(broker(), socket="/run/rlmm/rlmm.sock", jar="/j.jar", stores=True)
    text = with_lines(f"{THEIRS}rsm.config.socket.path=/a\\\n  /b\nlast=1", wanted)
    assert parsed(text).items() >= (wanted | {"a": "1", "last": "1"}).items()
    assert text.splitlines()[:5] == [
        "a=1", "# remote.log.storage.system.enable=true", "remote.log.storage.system.enable=true",
        "rsm.config.socket.path=/run/rlmm/rlmm.sock", "last=1",
    ]  # fmt: skip
    assert with_lines(text, wanted) == text


def test_a_repeated_key_is_left_once():
    assert with_lines("k=1\nk=2\n", {"k": "3"}) == "k=3\n"
    assert with_lines("k=1\nk=3\n", {"k": "3"}) == "k=1\nk=3\n"  # the last one holds


def test_without_a_storage_the_brokers_own_manager_stays():
    wanted = lines(broker(), socket="/s", jar="/j", stores=False)
    assert not [key for key in wanted if key.startswith(("rsm.", "remote.log.storage.manager"))]


def test_other_prefixes_are_the_brokers():
    named = broker(SHIPPED + "remote.log.metadata.manager.impl.prefix=mine.\n")
    assert "mine.socket.path" in lines(named, socket="/s", jar="/j", stores=True)


def test_rights_in_kafka_are_those_of_the_page():
    page = (ROOT / "docs" / "kafka.md").read_text()
    secure = broker(SECURE)
    _, config = configured(secure)
    script = beside.acls(config, secure, "User:rlmm")
    assert script is not None
    assert "b7.example:9094" in script
    for operation in ("Read", "Write", "Describe", "DescribeConfigs", "Create"):
        assert f"--operation {operation}" in script
        assert f"--operation {operation}" in page
    assert beside.acls(configured(broker())[1], broker(), "User:rlmm") is None


def test_policy_and_lifecycle_rule_are_those_of_the_page():
    page = (ROOT / "docs" / "s3.md").read_text()
    _, config = configured(broker(), storage={"kind": "s3", "bucket": "my-tiered-segments"})
    blocks = [json.loads(each.split("```")[0]) for each in page.split("```json\n")[1:]]
    policy = json.loads(beside.iam_policy(config.storage))  # type: ignore[arg-type]  # it is S3's
    assert policy in blocks
    assert json.loads(beside.lifecycle()) in blocks


def test_the_drop_in_says_only_what_the_unit_lacks():
    local = {"kind": "local", "directory": "/srv/tier 100%"}
    _, config = configured(broker(), storage=local)
    said = beside.daemon_drop_in(config, broker())
    assert said is not None
    assert said.splitlines()[1:] == ["[Service]", 'ReadWritePaths="/srv/tier 100%%"']
    assert beside.daemon_drop_in(configured(broker())[1], broker()) is None
    confluent = Account(user="cp-kafka", group="confluent")
    other = broker_of(
        parsed(SHIPPED), [Directory(path="/d", meta=None, owner=confluent, group_reads=True)]
    )
    assert "SupplementaryGroups=confluent" in str(beside.daemon_drop_in(config, other))


def test_directories_that_a_unit_cannot_see():
    assert beside.hidden(("/tmp/kraft-combined-logs", "/home/k", "/srv/k", "/tmpfs")) == [
        "/tmp/kraft-combined-logs", "/home/k",
    ]  # fmt: skip


def test_a_quorums_daemon_asks_the_brokers_as_it_would_their_topic_and_gets_the_rights_for_that():
    of = broker(SECURE)
    text, config = configured(of, event_log="quorum", replica=Replica(listen=at("10.0.0.7")))
    log = config.event_log
    assert isinstance(log, QuorumLog)
    assert log.quorum.security.certificate_file == "/etc/rlmm/quorum.pem"
    brokers = log.quorum.brokers
    assert brokers is not None
    assert brokers.bootstrap == ("b7.example:9094",)
    assert (brokers.security.protocol, brokers.security.mechanism) == ("SASL_SSL", "SCRAM-SHA-256")
    script = beside.acls(config, of, "User:rlmm")
    assert script is not None
    assert "--topic '*' --operation Describe\n" in script
    assert "--cluster --operation Describe" in script
    assert "Create" not in script
    again, _ = configured(of, text, event_log="quorum")
    assert again == text


def test_the_only_brokers_quorum_asks_nobody_and_what_is_said_of_proof_stands():
    text = """
[event_log]
kind = "quorum"
single_broker = true
[event_log.quorum]
listen = "10.0.0.1:9393"
[event_log.quorum.security]
insecure = true
"""
    _, config = configured(
        broker(), text, event_log="quorum", replica=Replica(listen=at("10.0.0.2"))
    )
    log = config.event_log
    assert isinstance(log, QuorumLog)
    assert log.quorum.listen == "10.0.0.2:9393"
    assert log.quorum.brokers is None
    assert log.quorum.security == QuorumSecurity(insecure=True)


def at(host: str) -> Endpoint:
    return Endpoint("QUORUM", host, 9393)
