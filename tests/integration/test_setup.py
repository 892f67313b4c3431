"""`rlmm setup` on real files, and a daemon that runs by what it wrote."""

import json
import os
import pwd
import shlex
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner, Result

from deploy.dev.stack.ports import free_ports
from rlmm_daemon.cli import main, setup
from rlmm_daemon.client import Client
from rlmm_daemon.config import QuorumLog, load
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.offline.setup.plan import Places, plan, read_broker
from rlmm_daemon.offline.setup.quorum import Replica
from rlmm_daemon.offline.setup.settings import Choices
from tests.support.daemon_process import START_SECONDS, DaemonProcess, environment

ME = pwd.getpwuid(os.geteuid()).pw_name
SECRET = "hunter2-of-the-broker"


class Host:
    """A host with a broker's files."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        self.data.mkdir()
        (self.data / "meta.properties").write_text("version=1\ncluster.id=Mk-U3\nnode.id=4\n")
        self.properties = home / "server.properties"
        self.properties.write_text(
            "process.roles=broker,controller\nnode.id=4\n"
            "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER\n"
            f"log.dirs={self.data}\nssl.key.password={SECRET}"
        )
        self.properties.chmod(0o640)
        self.config = home / "etc" / "rlmm.toml"
        self.flags = [
            "setup", f"--properties={self.properties}", f"--config={self.config}",
            f"--units={home / 'units'}",
        ]  # fmt: skip
        self.embedded = [
            "--event-log=embedded", "--storage=local", f"--directory={home / 'tier'}",
            f"--socket={home / 's'}", f"--state-dir={home / 'state'}",
        ]  # fmt: skip

    def rlmm(self, *more: str) -> Result:
        return CliRunner().invoke(main, [*self.flags, *more])

    def files(self) -> dict[str, bytes]:
        return {str(each): each.read_bytes() for each in self.home.rglob("*") if each.is_file()}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_it_is_dry_and_shows_no_secret(host: Host):
    before = host.files()
    said = host.rlmm(*host.embedded)
    assert said.exit_code == 0, said.output
    assert "+broker_id = 4" in said.output
    assert "+rsm.config.socket.path=" in said.output
    assert "nothing is written" in said.output
    assert SECRET not in said.output
    assert host.files() == before


def test_it_writes_once_and_says_what_is_left(host: Host):
    said = host.rlmm(*host.embedded, "--execute")
    assert said.exit_code == 0, said.output
    assert "left to do:" in said.output
    assert "systemctl restart kafka" in said.output
    assert stat.S_IMODE(host.config.stat().st_mode) == 0o640
    assert stat.S_IMODE(host.properties.stat().st_mode) == 0o640
    kept = Path(f"{host.properties}.before-rlmm")
    assert kept.read_text().endswith(SECRET)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert SECRET in host.properties.read_text()
    assert SECRET not in said.output
    written = host.files()
    again = host.rlmm("--execute")
    assert again.exit_code == 0, again.output
    assert "nothing to change" in again.output
    assert host.files() == written


def test_a_directory_that_must_be_a_mount_is_not_made(host: Host):
    """Segments would be stored in it, beside those of the directory that is mounted later."""
    tier = host.home / "tier"
    said = host.rlmm(*host.embedded, "--shared", "--execute")
    assert said.exit_code == 1, "the doctor does not find it either"
    assert f"1. mount {tier}" in said.output
    assert not tier.exists()
    tier.mkdir()
    assert "mount" not in host.rlmm("--execute").output


def test_a_directory_that_was_configured_before_and_is_gone_is_not_made_anew(host: Host):
    assert host.rlmm(*host.embedded, "--execute").exit_code == 0
    (host.home / "tier").rmdir()
    said = host.rlmm("--execute")
    assert said.exit_code == 1
    assert f"1. mount {host.home / 'tier'}" in said.output
    assert not (host.home / "tier").exists()


def test_events_of_a_former_log_are_to_be_taken_along(host: Host):
    """A daemon that starts with another log misses all that is tiered."""
    assert host.rlmm(*host.embedded, "--execute").exit_code == 0

    def left(event_log: Literal["kafka", "embedded", "quorum"]) -> str:
        places = Places(properties=str(host.properties), config=str(host.config))
        replica = Replica(listen=Endpoint("QUORUM", "127.0.0.1", 9393))
        choices = Choices(event_log=event_log, replica=replica, storage={"kind": "local"})
        return plan(read_broker(str(host.properties)), choices, places).left[0]

    assert "take the events along" not in left("kafka"), "no daemon ever ran"
    former = host.home / "state" / "log"
    former.mkdir(parents=True)
    assert "take the events along" not in left("embedded")
    assert left("kafka").startswith("stop the daemon and take the events along")
    assert f"rlmm log copy --config {host.config} --from {former} --to kafka --execute" in left(
        "kafka"
    )
    host.config.write_text(host.config.read_text().replace('"embedded"', '"kafka"'))
    copied = f"rlmm log copy --config {host.config} --from-config FORMER --from kafka"
    assert f"{copied} --to {former} --execute," in left("embedded")
    assert f"{copied} --to quorum --execute, once its directory is formatted" in left("quorum")
    host.config.write_text(
        host.config.read_text().replace('"kafka"', '"quorum"').replace("single_broker", "# ")
        + "[event_log.quorum]\nlisten = '127.0.0.1:9393'\n"
    )
    copied = f"rlmm log copy --config {host.config} --from-config FORMER --from quorum"
    assert f"{copied} --to kafka --execute, where FORMER is" in left("kafka")


def test_a_daemon_runs_by_what_it_wrote(host: Host):
    assert host.rlmm(*host.embedded, "--execute").exit_code == 0
    config = load(host.config)
    assert config.socket.rights.write.users == (ME,)
    run = [sys.executable, "-m", "rlmm_daemon"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(host.home / "notify"))
        told.settimeout(START_SECONDS)
        daemon = subprocess.Popen(
            [*run, "run", "--config", str(host.config), "--set=admin.listen="],
            env=environment() | {"NOTIFY_SOCKET": str(host.home / "notify")},
            stderr=subprocess.DEVNULL,
        )
        try:
            while b"READY=1" not in told.recv(4096):
                pass
            with Client(str(host.home / "s")) as client:
                assert "Mk-U3" in json.dumps(client.status(), default=str)
        finally:
            daemon.kill()
            daemon.wait()


def test_on_a_terminal_it_asks_for_what_no_file_says(host: Host, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(setup, "_on_terminal", lambda: True)
    words = [*host.flags, *host.embedded[:1], *host.embedded[3:]]
    said = CliRunner().invoke(main, words, input=f"local\n{host.home / 'tier'}\nn\n")
    assert said.exit_code == 0, said.output
    assert not host.config.exists()
    said = CliRunner().invoke(main, words, input=f"local\n{host.home / 'tier'}\ny\n")
    assert said.exit_code == 0, said.output
    assert (host.home / "tier").is_dir()
    assert load(host.config).daemon.broker_id == 4


def test_a_file_that_is_wrong_ends_it_before_anything_is_written(host: Host):
    host.config.parent.mkdir()
    host.config.write_text("[daemon]\nno_such_key = 1\n")
    before = host.files()
    said = host.rlmm(*host.embedded, "--execute")
    assert said.exit_code == 78, said.output
    assert "no_such_key" in said.output
    assert host.files() == before


def test_a_log_of_a_kind_that_it_does_not_know_is_not_replaced(host: Host):
    host.config.parent.mkdir()
    host.config.write_text('[event_log]\nkind = "of-tomorrow"\n')
    said = host.rlmm(*host.embedded[1:], "--execute")
    assert said.exit_code == 78, said.output
    assert "of-tomorrow" in said.output
    assert host.rlmm(*host.embedded).exit_code == 0  # asked for, and shown


def test_without_a_terminal_a_missing_answer_is_a_usage_error(host: Host):
    said = host.rlmm()
    assert said.exit_code == 2
    assert "--storage is missing" in said.output


def test_lines_may_be_left_to_others(host: Host):
    before = host.properties.read_text()
    said = host.rlmm(*host.embedded, "--leave-properties", "--execute")
    assert said.exit_code == 0, said.output
    assert host.properties.read_text() == before
    assert "rsm.config.socket.path=" in said.output


def test_another_unit_gets_the_brokers_drop_in(host: Host):
    host.rlmm(*host.embedded, "--broker-unit=confluent-kafka.service", "--execute")
    drop_in = host.home / "units" / "confluent-kafka.service.d" / "rlmm.conf"
    assert "After=rlmm-daemon.service" in drop_in.read_text()


def quorum(host: Host, *ports: int) -> list[str]:
    """The flags of a quorum whose first voter is the host's broker."""
    voters = [f"--voter={node}@127.0.0.1:{port}" for node, port in enumerate(ports, 4)]
    return ["--event-log=quorum", *voters, *host.embedded[1:]]


def formats(said: Result) -> list[list[str]]:
    """The commands of rlmm quorum format that it says, as words behind `rlmm`."""
    found = [line.partition("rlmm quorum format ")[2] for line in said.output.splitlines()]
    return [["quorum", "format", *shlex.split(each)] for each in found if "--execute" in each]


def test_a_quorum_is_set_up_by_what_it_says_on_each_host(host: Host):
    """Every voter gets the same list of ids, and a daemon runs by it."""
    said = host.rlmm(*quorum(host, *free_ports(3)), "--execute")
    first, second, third = formats(said)
    assert [each[each.index("--node-id") + 1] for each in (first, second, third)] == list("456")
    lists = [[w for w in each if "@" in w] for each in (first, second, third)]
    assert lists[0] == lists[1] == lists[2]
    assert len(lists[0]) == 3
    assert f"rlmm setup ... --voter {lists[0][0]} --voter" in said.output
    log = load(host.config).event_log
    assert isinstance(log, QuorumLog)
    assert log.quorum.listen in lists[0][0]
    assert len(log.quorum.bootstrap) == 2
    assert log.quorum.brokers is not None
    assert log.quorum.brokers.bootstrap == ("localhost:9092",)
    written = host.files()
    again = host.rlmm("--execute")
    assert "nothing to change" in again.output
    assert "with the first voters (--voter)" in again.output
    assert host.files() == written
    assert CliRunner().invoke(main, first).exit_code == 0
    told = host.rlmm("--execute").output
    assert "quorum replica" in told
    assert "quorum format" not in told, "it is formatted"


def test_a_daemon_runs_as_the_quorum_of_one_that_was_set_up(host: Host):
    said = host.rlmm(*quorum(host, *free_ports(1)), "--execute")
    (command,) = formats(said)
    assert CliRunner().invoke(main, command).exit_code == 0
    settings = {"socket.path": "var/rlmm.sock"}
    with (
        DaemonProcess(host.home, settings, config=host.config) as daemon,
        daemon.client() as client,
    ):
        deadline = time.monotonic() + START_SECONDS
        while (told := client.status()["log"]["quorum"]).get("role") != "leader":
            assert time.monotonic() < deadline, told
            time.sleep(0.05)  # another process rings no bell
        assert told["replica"] == 4
        assert f'"event_log_at":"{host.home}/state/quorum"' in daemon.output.read_text().replace(
            '": "', '":"'
        )


def test_a_broker_that_is_no_voter_joins(host: Host):
    voter = f"--voter=1@127.0.0.1:{free_ports(1)[0]}:AQEBAQEBAQEBAQEBAQEBAQ"
    flags = ["--event-log=quorum", voter, *host.embedded[1:]]
    assert "--listen is missing" in host.rlmm(*flags).output
    said = host.rlmm(*flags, "--listen=127.0.0.1:9", "--execute")
    ((*_, join, _, topic_id, _),) = formats(said)
    assert join == "--join"
    assert len(topic_id) == 22
    assert "ids were drawn" not in said.output


def test_beyond_loopback_a_quorum_gets_certificates_that_are_asked_for(host: Host):
    flags = [*quorum(host, 1)[:1], "--listen=10.0.0.1:9393", *host.embedded[1:]]
    said = host.rlmm(*flags, "--execute")
    home = host.config.parent
    for name in ("quorum-ca.pem", "quorum.pem", "quorum.key"):
        assert f"put what belongs there into {home / name}" in said.output
    given = host.rlmm("--listen=10.0.0.2:9393", "--quorum-ca=/elsewhere/ca.pem")
    assert '+listen = "10.0.0.2:9393"' in given.output, "who says where it listens has moved it"
    assert "elsewhere" not in given.output, "what proves who it is is one whole"
