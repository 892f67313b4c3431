"""A configuration is refused with every mistake named, or in force as printed."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from rlmm_daemon.config import (
    Config,
    EmbeddedLog,
    KafkaLog,
    LocalStorage,
    QuorumLog,
    differences,
    effective_toml,
    load,
    parse,
)
from rlmm_daemon.config.loading import _make_paths_absolute, load_reconcile
from rlmm_daemon.config.reconcile import Output, ReconcileConfig, Safety, Spark
from rlmm_daemon.domain.errors import ConfigError

#: Of a replica.
QUORUM_FILES = (
    "ca_file",
    "certificate_file",
    "key_file",
    "users_file",
    "password_file",
    "token_keys_file",
    "token_file",
)
DEMO = Path(__file__).parents[3] / "config" / "rlmm.toml"
NIGHTLY = DEMO.with_name("reconcile.toml")
SMALLEST = """
[daemon]
broker_id = 1
cluster_id = "c"
[event_log]
kind = "embedded"
single_broker = true
"""
KAFKA = """
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = ["127.0.0.1:9092", "[::1]:9093"]
"""
QUORUM = """
[daemon]
broker_id = 1
cluster_id = "c"
[event_log]
kind = "quorum"
[event_log.quorum]
listen = "127.0.0.1:9393"
"""
KINDS = '"embedded" or "kafka" or "quorum"'
LOCAL = """
[storage]
kind = "local"
directory = "/srv/remote"
"""


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        parse(text, overrides)
    found: list[str] = refusal.value.fields["problems"]
    return found


def test_the_smallest_configuration_takes_every_default():
    config = parse(SMALLEST)
    assert isinstance(config.event_log, EmbeddedLog)
    assert config.event_log.partition_count == 50
    assert config.event_log_directory == "/var/lib/rlmm/log"
    assert config.readiness.stale_after_seconds == 60
    assert config.admin.listen == "127.0.0.1:9405"


def test_the_nightly_jobs_file_names_every_key_with_its_default():
    assert load_reconcile(NIGHTLY) == ReconcileConfig()
    named = tomllib.loads(NIGHTLY.read_text().replace("# textfile", "textfile"))
    for section, kind in (("safety", Safety), ("spark", Spark), ("output", Output)):
        assert set(named[section]) == set(kind.__struct_fields__)
    assert set(named) == set(ReconcileConfig.__struct_fields__)


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ("spark.hadoop.fs.s3a.secret.key", True),
        ("spark.hadoop.fs.s3a.access.key", True),
        ("spark.ssl.keyPassword", True),
        ("spark.authenticate.secret", True),
        ("spark.authenticate.secret.file", False),
        ("spark.kubernetes.authenticate.oauthTokenFile", False),
        ("spark.security.credentials.hive.enabled", False),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", False),
        ("spark.executor.cores", False),
    ],
)
def test_a_secret_among_sparks_settings_is_refused(tmp_path: Path, setting: str, *, refused: bool):
    file = tmp_path / "reconcile.toml"
    file.write_text(f'[spark]\nsettings = {{ "{setting}" = "hunter2" }}\n')
    if not refused:
        assert load_reconcile(file).spark.settings == {setting: "hunter2"}
        return
    with pytest.raises(ConfigError, match="would show in Spark's pages") as refusal:
        load_reconcile(file)
    assert "hunter2" not in str(refusal.value)


def test_the_demo_configuration_is_in_force_as_printed():
    config = load(DEMO)
    assert isinstance(config.storage, LocalStorage)
    assert parse(effective_toml(config)) == config


def test_the_demo_file_explains_every_key_with_its_default():
    text = DEMO.read_text()
    commented = re.sub(r"^# (?=(\w+ = |\[))", "", text, flags=re.MULTILINE)
    told = tomllib.loads(commented)
    known = msgspec.to_builtins(load(DEMO))

    def shape(table):
        return {
            key: shape(value) if isinstance(value, dict) else None for key, value in table.items()
        }

    assert shape(told) == shape(known)
    active = tomllib.loads(text)
    defaults = tomllib.loads(effective_toml(parse(SMALLEST + LOCAL, ['daemon.log_dirs=["/k"]'])))
    for section, table in told.items():
        for key, value in table.items():
            if key not in active.get(section, {}) and not key.endswith("directory"):
                assert value == defaults[section][key], f"{section}.{key}"


def kafka_of_the_demo_file() -> str:
    lines = DEMO.read_text().splitlines()
    return "\n".join(line.removeprefix("## ") for line in lines if line.startswith("## "))


def shape_of(table):
    return {key: shape_of(value) if isinstance(value, dict) else 0 for key, value in table.items()}


def test_the_demo_file_explains_every_key_of_the_kafka_log_with_its_default():
    told = tomllib.loads(kafka_of_the_demo_file())
    controllers = "[event_log.kafka.controllers]\nbootstrap = ['c:1']"
    smallest = parse(f"{KAFKA}\n{controllers}\n[daemon]\nbroker_id = 1")
    known = msgspec.to_builtins(smallest)["event_log"]
    # Its keys stand at the brokers' listener already.
    security = known["kafka"]["controllers"].pop("security")
    assert security == known["kafka"]["security"]
    assert told["event_log"]["kafka"]["controllers"].pop("security") == {"protocol": "PLAINTEXT"}
    assert shape_of(told["event_log"]) == shape_of(known)
    for section, table in told["event_log"]["kafka"].items():
        for key, value in table.items() if isinstance(table, dict) else [(section, table)]:
            default = known["kafka"][section]
            default = default[key] if isinstance(table, dict) else default
            assert value == default or default is None or key == "bootstrap", f"{section}.{key}"


def test_the_demo_file_explains_every_key_of_a_quorums_log_with_its_default():
    lines = DEMO.read_text().splitlines()
    told = tomllib.loads(
        "\n".join(line.removeprefix("#### ") for line in lines if line.startswith("#### "))
    )["event_log"]
    brokers = "[event_log.quorum.brokers]\nbootstrap = ['b:1']"
    known = msgspec.to_builtins(parse(f"{QUORUM}\n{brokers}"))["event_log"]
    del known["quorum"]["brokers"]["security"]  # its keys stand at the Kafka log's
    assert told["quorum"]["brokers"].pop("security") == {"protocol": "PLAINTEXT"}
    assert shape_of(told) == shape_of(known)
    required, sections = {"listen", "bootstrap"}, [(told["quorum"], known["quorum"])]
    sections += [(told["quorum"][each], known["quorum"][each]) for each in ("security", "brokers")]
    for table, defaults in sections:
        for key, value in table.items():
            if not isinstance(value, dict) and defaults[key] is not None and key not in required:
                assert value == (list(defaults[key]) if isinstance(value, list) else defaults[key])


def test_a_quorums_log_takes_every_default_and_is_in_force_as_printed():
    config = parse(QUORUM)
    assert isinstance(config.event_log, QuorumLog)
    assert config.quorum_directory == "/var/lib/rlmm/quorum"
    assert config.shares_log
    assert not config.asks_brokers
    assert parse(effective_toml(config)) == config


def test_a_quorums_files_are_made_absolute():
    text = f"{QUORUM}directory = 'q'\n[event_log.quorum.security]\n"
    text += "".join(f"{key} = '{key}'\n" for key in QUORUM_FILES)
    raw = tomllib.loads(text)
    _make_paths_absolute(raw)
    quorum = raw["event_log"]["quorum"]
    assert quorum["directory"] == f"{Path.cwd()}/q"
    assert quorum["security"] == {key: f"{Path.cwd()}/{key}" for key in QUORUM_FILES}


SECURITY = "[event_log.quorum.security]\n"
CERTIFICATE = "ca_file = '/a'\ncertificate_file = '/b'\nkey_file = '/c'\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (QUORUM.replace('cluster_id = "c"', ""), "daemon.cluster_id is missing: the quorum"),
        (QUORUM.replace("9393", "0"), 'event_log.quorum.listen = "127.0.0.1:0": a port is'),
        (QUORUM.replace("9393", "70000"), 'event_log.quorum.listen = "127.0.0.1:70000": a port'),
        (QUORUM + "bootstrap = ['b:0']", 'event_log.quorum.bootstrap[0] = "b:0": a port is'),
        (QUORUM.replace("127.0.0.1", "0.0.0.0"), 'event_log.quorum.listen = "0.0.0.0:9393": the'),
        (QUORUM + "bootstrap = ['127.0.0.1:9393']", "event_log.quorum.bootstrap names this"),
        (QUORUM.replace("127.0.0.1", "10.0.0.1"), "is not on loopback, and nobody would prove"),
        (QUORUM.replace("127.0.0.1", "host.example"), "is not on loopback, and nobody would"),
        (QUORUM + "election_timeout_ms = 2000", "event_log.quorum.fetch_timeout_ms is below"),
        (QUORUM + LOCAL, "the table [event_log.quorum.brokers] is missing"),
        (
            QUORUM.replace("[event_log.quorum]", "single_broker = true\n[event_log.quorum]")
            + "[event_log.quorum.brokers]\nbootstrap = ['b:1']",
            "[event_log.quorum.brokers] is set, and event_log.single_broker = true",
        ),
        (
            QUORUM + "[event_log.quorum.brokers]\nbootstrap = ['b:1']\n"
            "[event_log.quorum.brokers.security]\nprotocol = 'SASL_SSL'",
            "event_log.quorum.brokers.security.mechanism is missing",
        ),
        (QUORUM + SECURITY + "key_file = '/k'", "certificate_file and key_file belong together"),
        (QUORUM + SECURITY + "password_file = '/p'", "event_log.quorum.security.ca_file is"),
        (QUORUM + SECURITY + "ca_file = '/a'", "event_log.quorum.security.certificate_file is"),
        (
            QUORUM + SECURITY + CERTIFICATE + "password_file = '/p'\ntoken_file = '/t'",
            "password_file and token_file are both set",
        ),
        (
            QUORUM + SECURITY + CERTIFICATE + "token_issuer = 'me'",
            "token_keys_file, token_issuer and token_audience belong together",
        ),
        (QUORUM + SECURITY + CERTIFICATE + "users_file = '/u'", "password_file or token_file is"),
        (QUORUM + SECURITY + CERTIFICATE + "insecure = true", "insecure = true and ca_file are"),
        (QUORUM + SECURITY + "password = 'x'", "security.password is not a key; did you mean"),
    ],
)
def test_what_a_quorum_needs_is_asked_for(text: str, problem: str):
    assert any(problem in each for each in problems(text)), problems(text)


def test_a_quorum_of_one_broker_needs_no_other_word_on_topics():
    alone = QUORUM.replace("[event_log.quorum]", "single_broker = true\n[event_log.quorum]")
    config = parse(alone + LOCAL, ['daemon.log_dirs=["/k"]'])
    assert not config.shares_log


def test_a_quorum_beyond_loopback_takes_a_certificate_or_the_word_insecure():
    beyond = QUORUM.replace("127.0.0.1", "10.0.0.1") + SECURITY
    assert parse(beyond + CERTIFICATE).shares_log
    assert parse(beyond + "insecure = true").shares_log


def test_a_kafka_log_needs_no_cluster_id_and_is_in_force_as_printed():
    config = parse(f"{KAFKA}\n[daemon]\nbroker_id = 1")
    assert isinstance(config.event_log, KafkaLog)
    assert config.event_log.kafka.topic == "__remote_log_metadata"
    assert parse(effective_toml(config)) == config


@pytest.mark.parametrize("at", ["", ".controllers"])
@pytest.mark.parametrize(
    ("security", "problem"),
    [
        ('protocol = "SSL"\nusername = "u"', 'username is set, but protocol = "SSL" uses no SASL'),
        ('ca_file = "/ca"', 'ca_file is set, but protocol = "PLAINTEXT" uses no TLS'),
        ('protocol = "SASL_SSL"', 'mechanism is missing: protocol = "SASL_SSL" needs it'),
        ('protocol = "SASL_SSL"', "password_file or password_env is missing"),
        ('password_file = "/p"\npassword_env = "P"', "password_file and password_env are both set"),
        ('protocol = "SSL"\nkey_file = "/k"', "certificate_file and key_file belong together"),
        ('mechanism = "GSSAPI"', 'mechanism = "GSSAPI": expected'),
    ],
)
def test_security_settings_that_would_be_ignored_or_are_missing_are_named(security, problem, at):
    where = f"event_log.kafka{at}.security"
    controllers = "[event_log.kafka.controllers]\nbootstrap = ['c:1']"
    text = f"{KAFKA}\n{controllers}\n[{where}]\n{security}\n[daemon]\nbroker_id = 1"
    found = problems(text)
    assert any(each.startswith(f"{where}.{problem}") for each in found), found


def test_controllers_are_followed_only_where_their_addresses_are_given():
    config = parse(f"{KAFKA}\n[daemon]\nbroker_id = 1")
    assert isinstance(config.event_log, KafkaLog)
    assert config.event_log.kafka.controllers is None
    section = "[event_log.kafka.controllers.security]\nprotocol = 'SSL'"
    found = problems(f"{KAFKA}\n{section}\n[daemon]\nbroker_id = 1")
    assert any("event_log.kafka.controllers.bootstrap is missing" in each for each in found), found


def test_files_named_for_the_kafka_log_are_made_absolute():
    text = f"{KAFKA}\n[event_log.kafka.security]\nprotocol = 'SSL'\nca_file = 'ca.pem'"
    text += "\n[event_log.kafka.controllers]\nbootstrap = ['c:1']"
    text += "\n[event_log.kafka.controllers.security]\nprotocol = 'SSL'\nca_file = 'ca.pem'"
    config = parse(f"{text}\n[daemon]\nbroker_id = 1")
    assert isinstance(config.event_log, KafkaLog)
    kafka = config.event_log.kafka
    assert kafka.security.ca_file == str(Path.cwd() / "ca.pem")
    assert kafka.controllers is not None
    assert kafka.controllers.security == kafka.security


def test_every_mistake_is_named_at_once_with_its_path_and_the_nearest_key():
    text = """
[daemon]
broker = 1
cluster_id = "c"
[event_log]
kind = "embedded"
single_broker = true
partition_count = 0
[readines]
[copy]
parallelism = "many"
[log]
level = "loud"
"""
    levels = '"debug" or "info" or "warning" or "error"'
    assert problems(text) == [
        "readines is not a key; did you mean readiness?",
        "daemon.broker is not a key; did you mean daemon.broker_id?",
        "daemon.broker_id is missing and has no default",
        "event_log.partition_count = 0: expected int >= 1; the default is 50",
        'copy.parallelism = "many": expected int, got str; the default is 4',
        f'log.level = "loud": expected {levels}; the default is "info"',
    ]


def test_a_key_unlike_any_other_is_answered_with_the_list():
    listed = "admin.xyz is not a key; [admin] has listen, hosts, peers, topics_max"
    assert problems(SMALLEST + "[admin]\nxyz = 1") == [listed]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('kind = "embedded"\n', "", f"event_log.kind is missing: set it to {KINDS}"),
        ('"embedded"', '"raft"', f'event_log.kind = "raft": this version knows {KINDS}'),
        ('"embedded"', "[1]", f"event_log.kind = [1]: this version knows {KINDS}"),
        ('cluster_id = "c"\n', "", "daemon.cluster_id is missing: an embedded log can't"),
        ("= true", "= false", "event_log.single_broker = false: an embedded log is this"),
        ("broker_id = 1", "broker_id = -1", "daemon.broker_id = -1: expected int >= 0"),
        ("broker_id = 1", "broker_id = true", "daemon.broker_id = true: expected int, got bool"),
    ],
)
def test_what_the_embedded_log_needs_is_asked_for(old: str, new: str, problem: str):
    assert any(each.startswith(problem) for each in problems(SMALLEST.replace(old, new)))


def test_a_cluster_is_discovered_only_where_there_is_one_to_ask():
    discover = '[assignment]\nmode = "discover"\n'
    assert any("an embedded log knows none" in each for each in problems(SMALLEST + discover))
    parsed = parse("[daemon]\nbroker_id = 1\n" + KAFKA + discover)
    assert parsed.assignment.mode == "discover"


def test_a_cluster_is_observed_only_where_there_is_one_to_ask_and_a_cleaner():
    observe = "[cleaner.observe]\nenabled = true\ngrace_seconds = 300\n"
    found = problems(SMALLEST + observe)
    assert any("an embedded log knows none" in each for each in found)
    assert any('storage.kind = "none" has none' in each for each in found)
    assert any("shorter than two of its intervals" in each for each in found)
    assert not parse(SMALLEST).cleaner.observe.enabled


def test_a_missing_table_is_named_with_what_it_has_to_hold():
    assert problems("") == [
        "the table [daemon] is missing",
        "daemon.broker_id is missing and has no default",
        "the table [event_log] is missing",
        f"event_log.kind is missing: set it to {KINDS}",
    ]


def test_a_value_in_place_of_a_table_is_refused():
    assert problems("copy = 1\n" + SMALLEST) == ["copy is 1: expected a table, written [copy]"]


@pytest.mark.parametrize("directory", ["/var/lib/rlmm", "/var/lib/rlmm/remote", "/var", "/kafka/x"])
def test_remote_storage_needs_a_directory_of_its_own(directory: str):
    text = SMALLEST + LOCAL.replace("/srv/remote", directory)
    assert any(
        "lie in one another" in each for each in problems(text, 'daemon.log_dirs=["/kafka"]')
    )


@pytest.mark.parametrize("directory", ["/var/lib/rlmm", "/var/lib", "/var/lib/rlmm/log"])
def test_nothing_of_a_daemon_lies_among_a_brokers_partitions(directory: str):
    """A broker does not start on a log directory with a directory that is no partition's."""
    told = problems(SMALLEST, f'daemon.log_dirs=["{directory}"]')
    assert any(f'lies in daemon.log_dirs = "{directory}"' in each for each in told)


def test_a_brokers_directory_may_lie_beside_the_daemons():
    parse(SMALLEST, ['daemon.log_dirs=["/var/lib/kafka", "/var/lib/rlmm-kafka"]'])


def test_a_storage_without_log_dirs_could_copy_nothing():
    assert problems(SMALLEST + LOCAL)[0].startswith("daemon.log_dirs is empty")


def test_a_socket_path_the_kernel_cannot_take_is_refused_with_its_length():
    assert len(parse(SMALLEST, [f"socket.path=/{'a' * 106}"]).socket.path) == 107
    assert (
        "108 bytes long and the kernel takes 107"
        in problems(SMALLEST, f"socket.path=/{'a' * 107}")[0]
    )


@pytest.mark.parametrize(
    "listen", ["9405", "localhost:", "localhost:70000", "a b:1", "::1:9405", ":9405"]
)
def test_an_address_that_is_not_host_and_port_is_refused(listen: str):
    assert problems(SMALLEST, f"admin.listen={listen}")[0].startswith("admin.listen = ")


@pytest.mark.parametrize("listen", ["", "localhost:0", "[::1]:9405"])
def test_host_and_port_or_nothing_is_taken(listen: str):
    assert parse(SMALLEST, [f'admin.listen="{listen}"']).admin.listen == listen


@pytest.mark.parametrize(
    "peer", ["broker-2", "broker-2:0", "b:65536", "b c:1", "\u00fc:1", "x:1\\r"]
)
def test_a_peer_that_is_no_address_is_refused(peer):
    assert "admin.peers" in problems(SMALLEST, f'admin.peers=["{peer}"]')[0]


def test_peers_are_addresses_and_not_without_end():
    both = ("broker-2:9405", "[::1]:9405")
    assert parse(SMALLEST, [f"admin.peers={list(both)}"]).admin.peers == both
    many = [f"b{number}:1" for number in range(65)]
    assert "admin.peers" in problems(SMALLEST, f"admin.peers={many}")[0]


def test_relative_paths_are_taken_from_the_working_directory(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = parse(SMALLEST, ["daemon.state_dir=state", 'daemon.log_dirs=["a", "/b"]'])
    assert config.daemon.state_dir == f"{tmp_path}/state"
    assert config.daemon.log_dirs == (f"{tmp_path}/a", "/b")


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("copy.parallelism=7", "copy.parallelism", 7),
        ("copy.check_segment = false", "copy.check_segment", False),
        ("log.level=debug", "log.level", "debug"),
        ('daemon.cluster_id="7"', "daemon.cluster_id", "7"),
        ("socket.rights.read.gids=[5, 6]", "socket.rights.read.gids", (5, 6)),
    ],
)
def test_an_override_is_a_toml_value_or_else_text(override: str, key: str, value: object):
    found: object = parse(SMALLEST, [override])
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize("override", ["", "copy", "=1", "a b=1", "daemon.broker_id.x=1"])
def test_an_override_that_names_no_key_is_refused(override: str):
    assert problems(SMALLEST, override)[0].startswith("--set ")


@pytest.mark.parametrize("key", ["storage.secret_access_key", "a.sasl_password", "token"])
def test_an_override_never_takes_a_secret_and_never_repeats_it(key: str):
    found = problems(SMALLEST, f"{key}=hunter2")
    assert f"{key}_file" in found[0]
    assert "hunter2" not in "".join(found)


def test_a_secret_put_into_the_file_is_not_repeated():
    assert "hunter2" not in "".join(problems(SMALLEST + '[storage]\npassword = "hunter2"'))


def test_a_file_that_is_absent_or_not_toml_is_named(tmp_path: Path):
    path = tmp_path / "x.toml"
    with pytest.raises(ConfigError, match=r"x\.toml: can't be read: No such file"):
        load(path)
    path.write_text("[daemon")
    with pytest.raises(ConfigError, match=r"x\.toml: is not TOML: .*at end of document"):
        load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"x\.toml: can't be read: it is not UTF-8"):
        load(path)
    for value in ("[" * 5_000 + "]" * 5_000, "9" * 6_000):  # the parser itself gives these up
        path.write_text(f"[daemon]\nbroker_id = {value}")
        with pytest.raises(ConfigError, match=r"x\.toml: is not TOML"):
            load(path)


def test_differences_are_named_by_dotted_key():
    old: Config = parse(SMALLEST)
    new = parse(SMALLEST + LOCAL, ["log.level=debug", 'daemon.log_dirs=["/k"]'])
    assert differences(old, old) == []
    assert differences(old, new) == [
        "daemon.log_dirs",
        "log.level",
        "storage.directory",
        "storage.kind",
        "storage.prefix",
        "storage.shared",
    ]
