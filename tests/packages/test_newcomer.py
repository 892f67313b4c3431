"""A newcomer types what docs/install.md says, on a host of a real broker, with a real systemd.

Asked for by RLMM_TEST_PACKAGES=1 and RLMM_TEST_KAFKA=1 (`make test-newcomer`). The host is a copy
of this one: it has a JDK and Kafka's jars, and a broker that keeps no tier.
"""

import os
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from deploy.dev.stack.kafka import cluster, libs
from tests.packages.conftest import Built
from tests.packages.root import Root, machine, until
from tests.support.daemon_process import REPOSITORY

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif("RLMM_TEST_KAFKA" not in os.environ, reason="needs a broker"),
]
FILE = "/etc/kafka/server.properties"
PAGE = REPOSITORY / "docs" / "install.md"
STEPS_MAX = 8
SERVER = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=/var/lib/kafka
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
remote.log.manager.task.interval.ms=500
"""
UNIT = """\
[Service]
User=kafka
Environment=LOG_DIR=/var/lib/kafka
ExecStart=/usr/bin/java -Xmx384m {quick} -Dlog4j2.configurationFile={log4j} -cp {libs}/* \
  kafka.Kafka {file}
[Install]
WantedBy=multi-user.target
"""
TOOL = '#!/bin/sh\nexec /usr/bin/java -Xmx128m {quick} -cp "{libs}/*" {main} "$@"\n'
TOOLS = {
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-storage.sh": "kafka.tools.StorageTool",
}
RECORDS = 6000
#: A topic with segments of 1 MiB, filled; then read from its beginning.
PRODUCE = f"""
import asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
async def main():
    admin = AIOKafkaAdminClient(bootstrap_servers="localhost:9092")
    await admin.start()
    await admin.create_topics([NewTopic("orders", 1, 1, topic_configs={{
        "segment.bytes": "1048576", "local.retention.ms": "1000"}})])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers="localhost:9092") as producer:
        sent = [await producer.send("orders", b"%08d" % n + bytes(1000), partition=0)
                for n in range({RECORDS})]
        for each in sent:
            await each
asyncio.run(main())
"""
CONSUME = f"""
import asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition
async def main():
    at = TopicPartition("orders", 0)
    async with AIOKafkaConsumer(bootstrap_servers="localhost:9092") as consumer:
        consumer.assign([at])
        await consumer.seek_to_beginning(at)
        for n in range({RECORDS}):
            record = await asyncio.wait_for(consumer.getone(at), 60)
            assert (record.offset, record.value[:8]) == (n, b"%08d" % n)
asyncio.run(main())
"""


@pytest.fixture
def host(tmp_path: Path, built: Built) -> Iterator[Root]:
    """A host on which a broker runs, and the packages lie in root's home."""
    jars, log4j = libs.fetched(), libs.HERE / "log4j2.properties"
    quick = " ".join(cluster.quick())
    with machine(tmp_path / "machine.log") as it:
        it.shell("useradd --system --user-group kafka; mkdir /var/lib/kafka /etc/kafka")
        write(it, FILE, SERVER)
        unit = UNIT.format(libs=jars, log4j=log4j, file=FILE, quick=quick)
        write(it, "/etc/systemd/system/kafka.service", unit)
        for name, main in TOOLS.items():
            write(it, f"/usr/local/bin/{name}", TOOL.format(libs=jars, main=main, quick=quick))
        it.shell(
            "chmod +x /usr/local/bin/*.sh; chown kafka:kafka /var/lib/kafka\n"
            "kafka-storage.sh format -t MkU3OEVBNTcwNTJENDM2Qg -c /etc/kafka/server.properties\n"
            "chown -R kafka:kafka /var/lib/kafka\n"
            # A person answers y; there is no list of packages here, and none is needed.
            "echo 'APT::Get::Assume-Yes \"true\";' > /etc/apt/apt.conf.d/99yes\n"
            "systemctl daemon-reload; systemctl start kafka"
        )
        for name in ("rlmm-daemon", "rlmm-kafka-plugin"):
            it.put(built.file(name, "deb"))
        # The page begins beside a broker that runs, and on a busy machine one takes its time.
        listens = "exec 3<>/dev/tcp/localhost/9092"
        until(partial(it.try_, "/bin/bash", "-c", listens), "the broker listens")
        yield it


def write(root: Root, path: str, text: str) -> None:
    root.shell(f"printf '%s' {shlex.quote(text)} > {path}")


def steps() -> list[list[str]]:
    """Return the commands of each numbered step of the page."""
    text = PAGE.read_text().partition("\n## ")[0]
    numbered = re.split(r"(?m)^\d+\. ", text)[1:]
    return [re.findall(r"(?m)^ +\$ (.*?)(?: {2,}#.*)?$", each) for each in numbered]


def test_the_page_has_few_steps():
    assert 5 <= len(steps()) <= STEPS_MAX
    assert sum(map(len, steps())) >= 5


def test_from_packages_to_a_consumer_that_reads_from_the_tier(host: Root, newer: Built):
    python = REPOSITORY / ".venv" / "bin" / "python"
    answers = "local\\n/srv/tier\\ny\\n"
    for number, commands in enumerate(steps(), 1):
        for command in commands:
            if command.startswith("rlmm setup"):
                typed = f"printf '{answers}' | script -qec {shlex.quote(command)} /dev/null"
                said = host.shell(f"cd /tmp; {typed}")
                assert "left to do" in said, said
            elif command.startswith("kafka-configs.sh"):
                host.run(python, "-c", PRODUCE)
                host.shell(command)
            elif command.startswith("rlmm doctor"):
                # The broker takes its time to be up, and the daemon asks it again after a pause.
                until(partial(host.try_, "/bin/sh", "-c", command), command)
            else:
                host.shell(f"cd /tmp; {command}")
        assert number <= STEPS_MAX

    def local_files() -> list[str]:
        return host.shell("ls /var/lib/kafka/orders-0 | grep '\\.log$'").split()

    until(lambda: local_files()[0] != f"{0:020}.log", "the first segment is in the tier alone")
    host.run(python, "-c", CONSUME)

    before = host.run("systemctl", "show", "--value", "-p", "MainPID", "rlmm-daemon")
    broker = host.run("systemctl", "show", "--value", "-p", "MainPID", "kafka")
    upgrade = " ".join(
        host.put(newer.file(name, "deb")) for name in ("rlmm-daemon", "rlmm-kafka-plugin")
    )
    host.shell(f"apt-get install {upgrade}")
    after = host.run("systemctl", "show", "--value", "-p", "MainPID", "rlmm-daemon")
    assert after not in (before, "0\n")
    assert host.run("systemctl", "show", "--value", "-p", "MainPID", "kafka") == broker
    host.run(python, "-c", CONSUME)
    assert "nothing to change" in host.shell("rlmm setup --execute")
