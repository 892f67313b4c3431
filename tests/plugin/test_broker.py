"""A real broker tiers through the plugin: copies, reads from the tier, deletes, and outages."""

import random
import subprocess
from pathlib import Path

from deploy.dev.stack.kafka import libs
from deploy.dev.stack.kafka.cluster import java, quick
from tests.plugin.conftest import PLUGIN
from tests.plugin.rig import CLIENT, BrokerRig, client_settings, until

#: Listener, its protocol, mechanism, and what the plugin learns there.
ASKED = (
    ("PLAINTEXT", "PLAINTEXT", "", "1"),
    ("TLS", "SSL", "", "1"),
    ("SASL", "SASL_PLAINTEXT", "PLAIN", "1"),
    ("SASL", "SASL_PLAINTEXT", "SCRAM-SHA-256", "1"),
    ("SASLTLS", "SASL_SSL", "PLAIN", "1"),
    ("SASLTLS", "SASL_SSL", "SCRAM-SHA-512", "1"),
    # Without a certificate of its own, and where SASL is wanted with none given.
    ("MTLS", "SSL", "", "SslAuthenticationException"),
    ("SASLTLS", "SSL", "", "TimeoutException"),
)

COUNT = 9_000


def lines(count: int, seed: int = 1) -> list[str]:
    """Records of about half a KiB, all different."""
    luck = random.Random(seed)
    return [f"{number}:{luck.getrandbits(2048):0512x}" for number in range(count)]


def test_a_topic_tiers_is_read_from_offset_0_and_leaves_nothing_behind(rig: BrokerRig) -> None:
    written = lines(COUNT)
    rig.create("orders")
    rig.produce("orders", written)
    rig.until_tiered("orders", COUNT)
    logs = rig.stored("orders", ".log")
    assert len(logs) >= 4
    for suffix in (".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"):
        assert len(rig.stored("orders", suffix)) == len(logs), suffix
    assert rig.offset("orders", "earliest") == 0
    assert rig.offset("orders", "latest-tiered") == COUNT - 1
    assert rig.offset("orders", "earliest-local") == COUNT
    assert rig.consume("orders", COUNT) == written
    committed = ("--isolation-level", "read_committed")
    assert rig.consume("orders", COUNT, *committed) == written
    rig.delete("orders")
    until(lambda: not rig.stored("orders"), "the storage is empty")


def test_a_topic_that_is_deleted_while_the_daemon_restarts_leaves_nothing_behind(
    rig: BrokerRig,
) -> None:
    """The broker lists it once, and nothing else would find out that it is gone."""
    rig.create("parting")
    rig.produce("parting", lines(COUNT // 3, seed=4))
    rig.until_tiered("parting", COUNT // 3)
    rig.daemon.kill()
    asked = "Deleting the remote log segments task for partition"
    before = rig.broker_log().count(asked)
    rig.delete("parting")
    until(lambda: rig.broker_log().count(asked) > before, "the broker deletes it")
    rig.daemon.start()
    until(lambda: not rig.stored("parting"), "the storage is empty")


def test_retention_removes_what_is_remote(rig: BrokerRig) -> None:
    rig.create("brief", retention_ms=6_000)
    rig.produce("brief", lines(COUNT // 3))
    until(lambda: bool(rig.stored("brief", ".log")), "something is tiered")
    until(lambda: not rig.stored("brief"), "everything is too old")


def test_without_a_daemon_the_broker_serves_what_is_local_and_tiers_it_later(
    rig: BrokerRig,
) -> None:
    written = lines(COUNT // 3, seed=2)
    rig.create("outage")
    rig.produce("outage", written)
    rig.until_tiered("outage", len(written))
    rig.daemon.kill()
    more = lines(COUNT // 3, seed=3)
    rig.produce("outage", more)
    assert len(rig.local_segments("outage")) > 1
    rig.daemon.start()
    rig.until_tiered("outage", len(written) + len(more))
    assert rig.consume("outage", len(written) + len(more)) == written + more
    rig.configure("outage", retention_ms=1000)
    until(lambda: not rig.stored("outage"), "expiration runs as well")


def test_the_cluster_is_asked_over_every_kind_of_listener(rig: BrokerRig, tmp_path: Path) -> None:
    """This broker's own plugin asks over the last one, and is not used before it knows."""
    keys = rig.cluster.key_directory
    asked = []
    for number, (listener, protocol, mechanism, _) in enumerate(ASKED):
        settings = client_settings(keys, protocol, mechanism) | {
            "bootstrap.servers": rig.cluster.bootstrap(listener),
            "security.protocol": protocol,
        }
        lines = [
            "broker.id=1",
            "cluster.id=asked",
            *(f"{CLIENT}{name}={value}" for name, value in settings.items()),
        ]
        file = tmp_path / f"{number}.properties"
        file.write_text("\n".join(lines))
        asked.append(str(file))
    path = f"{libs.fetched()}/*:{PLUGIN}"
    source = Path(__file__).parent / "java" / "AskCluster.java"
    subprocess.run(
        ["javac", "-d", str(tmp_path), "-cp", path, str(source)], check=True, timeout=120
    )
    command = java("-Xmx128m", *quick())
    command[-1] = f"{path}:{tmp_path}"
    done = subprocess.run(
        [*command, "rlmm.daemon.kafka.AskCluster", *asked],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    learnt = done.stdout.split()
    assert learnt == [expected for *_, expected in ASKED]


def test_nothing_that_the_broker_met_was_an_unknown_error(rig: BrokerRig) -> None:
    said = rig.broker_log()
    for bad in ("met a bug", "NoClassDefFoundError", "ClassCastException", "NullPointerException"):
        assert bad not in said
