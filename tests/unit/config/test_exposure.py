"""What others may read, change or reach is named, each by its own check."""

import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlmm_daemon.cli import main
from rlmm_daemon.config import exposure, parse
from rlmm_daemon.config.exposure import exposures
from rlmm_daemon.offline import checkup
from rlmm_daemon.offline.checkup import access

TEXT = """
[daemon]
broker_id = 1
cluster_id = "c"
state_dir = "{home}/state"
log_dirs = ["{home}/logs"]
[socket]
path = "{home}/run/rlmm.sock"
[event_log]
kind = "kafka"
[event_log.kafka]
bootstrap = ["127.0.0.1:9092"]
[event_log.kafka.security]
protocol = "SASL_SSL"
mechanism = "PLAIN"
username = "rlmm"
password_file = "{home}/secrets/password"
certificate_file = "{home}/secrets/certificate"
key_file = "{home}/secrets/key"
key_password_file = "{home}/secrets/key_password"
[storage]
kind = "s3"
endpoint = "https://s3.example"
region = "here"
bucket = "bucket"
access_key_id_file = "{home}/secrets/access"
secret_access_key_file = "{home}/secrets/secret_access"
session_token_file = "{home}/secrets/session"
"""
SECRETS = ("password", "key", "key_password", "access", "secret_access", "session")
#: Nothing here takes a tenth of it.
HANGS_SECONDS_MAX = 10.0
EMBEDDED = """
[daemon]
broker_id = 1
cluster_id = "c"
state_dir = "{home}/state"
log_dirs = ["{home}/logs"]
[socket]
path = "{home}/run/rlmm.sock"
[event_log]
kind = "embedded"
single_broker = true
directory = "{home}/log"
[storage]
kind = "local"
directory = "{home}/remote"
"""
QUORUM = """
[daemon]
broker_id = 1
cluster_id = "c"
state_dir = "{home}/state"
[event_log]
kind = "quorum"
[event_log.quorum]
listen = "10.0.0.1:9393"
[event_log.quorum.security]
ca_file = "{home}/secrets/certificate"
certificate_file = "{home}/secrets/certificate"
key_file = "{home}/secrets/key"
users_file = "{home}/secrets/access"
password_file = "{home}/secrets/password"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    names = ("state/snapshots", "state/cache", "logs", "run", "secrets", "log", "remote", "etc")
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    for name in (*SECRETS, "certificate"):
        (tmp_path / "secrets" / name).write_text("s3cret")
    (tmp_path / "etc" / "rlmm.toml").write_text(TEXT.format(home=tmp_path))
    for path in tmp_path.rglob("*"):
        path.chmod(0o750 if path.is_dir() else 0o640)
    return tmp_path


def found(home: Path, *overrides: str, text: str = TEXT) -> list[tuple[str, str]]:
    config = parse(text.format(home=home), overrides)
    rows = exposures(config, str(home / "etc" / "rlmm.toml"))
    return [(each.check, each.found.replace(f"{home}/", "")) for each in rows]


@pytest.mark.parametrize("text", [TEXT, EMBEDDED, QUORUM])
def test_what_is_the_daemons_own_is_no_exposure(home, text):
    assert found(home, text=text) == []
    config = parse(text.format(home=home), [])
    (ok,) = access(config, str(home / "etc" / "rlmm.toml"))
    assert ok.verdict == "ok"


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("secrets/key", "secret files"),
        ("secrets/access", "secret files"),
        ("secrets/password", "secret files"),
        ("state/quorum", "own directories"),
    ],
)
def test_what_a_quorums_replica_is_known_by_is_its_own(home, name, check):
    (home / "state/quorum").mkdir(mode=0o750)
    (home / name).chmod(0o777)
    assert check in [each for each, _ in found(home, text=QUORUM)]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (0o644, "others may read"),
        (0o642, "others may write"),
        (0o646, "others may read and write"),
        (0o660, "its group may write"),
    ],
)
def test_a_secret_that_others_may_read_or_change_is_named_without_what_is_in_it(
    home, name, mode, says
):
    (home / "secrets" / name).chmod(mode)
    ((check, told),) = found(home)
    assert check == "secret files"
    assert told.startswith(f"secrets/{name} (")
    assert told.endswith(f"has mode {mode:04o}: {says}")
    assert "s3cret" not in told


@pytest.mark.parametrize(
    ("path", "mode", "check", "says"),
    [
        ("etc/rlmm.toml", 0o642, "configuration", "others may write"),
        ("etc/rlmm.toml", 0o660, "configuration", "its group may write"),
        ("state", 0o752, "own directories", "others may write"),
        ("state", 0o770, "own directories", "its group may write"),
        ("state/snapshots", 0o752, "own directories", "others may write"),
        ("state/cache", 0o752, "own directories", "others may write"),
        ("log", 0o752, "own directories", "others may write"),
        ("remote", 0o752, "shared directories", "others may write"),
        ("etc", 0o752, "shared directories", "others may write"),
        ("run", 0o752, "shared directories", "others may write"),
    ],
)
def test_what_others_may_change_is_named(home, path, mode, check, says):
    (home / path).chmod(mode)
    rows = found(home, text=EMBEDDED)
    assert [(name, told.partition(" (")[0]) for name, told in rows] == [(check, path)]
    assert rows[0][1].endswith(f"has mode {mode:04o}: {says}")


def test_a_directory_of_secrets_that_others_may_write_in_is_named_once_a_secret(home):
    (home / "secrets").chmod(0o752)
    assert {check for check, _ in found(home)} == {"shared directories"}


@pytest.mark.parametrize(
    ("path", "mode"),
    [("etc/rlmm.toml", 0o644), ("state", 0o755), ("run", 0o1777), ("etc", 0o1777), ("run", 0o770)],
)
def test_what_harms_nobody_is_not_named(home, path, mode):
    (home / path).chmod(mode)
    assert found(home) == []


@pytest.mark.parametrize(("mode", "exposed"), [("0660", False), ("0662", True), ("0664", True)])
def test_a_socket_for_everybody_is_named(home, mode, exposed):
    assert bool(found(home, f"socket.mode={mode}")) is exposed


@pytest.mark.parametrize(
    ("listen", "exposed"),
    [
        ("127.0.0.1:9405", False),
        ("127.8.8.8:9405", False),
        ("[::1]:9405", False),
        ("localhost:9405", False),
        ("", False),
        ("0.0.0.0:9405", True),
        ("[::]:9405", True),
        ("10.1.2.3:9405", True),
        ("broker-1.example:9405", True),
    ],
)
def test_an_admin_port_beyond_loopback_is_named(home, listen, exposed):
    assert [check for check, _ in found(home, f"admin.listen={listen}")] == (
        ["admin port"] if exposed else []
    )


def test_what_is_not_there_yet_is_passed_over(tmp_path):
    assert found(tmp_path, text=EMBEDDED) == []


def test_doctor_warns_of_each_and_does_not_fail_of_it(home):
    file = home / "etc" / "rlmm.toml"
    file.write_text(EMBEDDED.format(home=home))
    file.chmod(0o666)
    (home / "state").chmod(0o777)
    config = parse(EMBEDDED.format(home=home), ["admin.listen=0.0.0.0:9405"])
    rows = access(config, str(file))
    assert [(each.check, each.verdict) for each in rows] == [
        ("configuration", "warning"),
        ("own directories", "warning"),
        ("admin port", "warning"),
    ]
    run = CliRunner().invoke(main, ["doctor", "--config", str(file)])
    told = " ".join(run.stdout.split())
    assert "configuration: chmod 0644" in told
    assert "own directories: chmod 0750" in told


def test_nobody_waits_for_a_place_that_hangs(home, monkeypatch):
    """Metadata is served, and `rlmm doctor` ends, whatever became of the segments' mount."""
    released = threading.Event()
    bound = threading.Timer(HANGS_SECONDS_MAX, released.set)
    bound.start()
    monkeypatch.setattr(exposure, "exposures", lambda _config, _file: released.wait())
    monkeypatch.setattr(checkup, "_ACCESS_SECONDS", 0.01)
    (row,) = access(parse(EMBEDDED.format(home=home)), "rlmm.toml")
    assert not released.is_set()
    assert (row.check, row.verdict) == ("access", "warning")
    released.set()
    bound.cancel()
