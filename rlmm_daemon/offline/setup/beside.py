"""Files beside the daemon's configuration: rights in Kafka and in S3, drop-ins of units."""

import json
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from rlmm_daemon.adapters.storage.s3 import probe
from rlmm_daemon.config import Config, KafkaLog, LocalStorage, QuorumLog, S3Storage
from rlmm_daemon.offline.setup.broker import Broker

#: Of these the units' sandbox shows nothing, or something else.
_HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - compared
_LIFECYCLE: Final = {
    "Rules": [
        {
            "ID": "abort-incomplete-uploads",
            "Status": "Enabled",
            "Filter": {"Prefix": ""},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2},
        }
    ]
}
#: As the packages' sysusers.d and drop-in have it.
GROUP_OF_PACKAGE: Final = "kafka"
UNIT_OF_PACKAGE: Final = "kafka"


def acls(config: Config, broker: Broker, principal: str) -> str | None:
    """Return a script that gives the daemon its rights; None where nobody asks for rights."""
    log = config.event_log
    of_quorum = isinstance(log, QuorumLog) and log.quorum.brokers is not None
    if not (isinstance(log, KafkaLog) or of_quorum) or not broker.authorizes:
        return None
    add = (
        f'kafka-acls.sh --bootstrap-server {shlex.quote(broker.address)} "$@" --add '
        f"--allow-principal {shlex.quote(principal)}"
    )
    granted, mind = list[str](), list[str]()
    if isinstance(log, KafkaLog):
        topic = f"--topic {shlex.quote(log.kafka.topic)}"
        operations = ("Read", "Write", "Describe", "DescribeConfigs")
        granted += [
            " ".join([topic, *(f"--operation {each}" for each in operations)]),
            f"{topic} --operation Create",
        ]
        mind.append("# Create may be taken back once the topic is there.")
    if config.assignment.mode == "discover":
        granted.append("--topic '*' --operation Describe --operation DescribeConfigs")
    elif of_quorum:
        granted.append("--topic '*' --operation Describe")
    if of_quorum or config.cleaner.observe.enabled:
        granted.append("--cluster --operation Describe")
    return "\n".join(
        [
            "#!/bin/sh",
            "# Rights of the RLMM daemon in Kafka. Once for the cluster, by its administrator:",
            "#   sh acls.sh --command-config admin.properties",
            *mind,
            "set -e",
            *(f"{add} {each}" for each in granted),
            "",
        ]
    )


def iam_policy(storage: S3Storage) -> str:
    """Return the policy of the daemon's user or role, as JSON."""
    wanted = probe.policy(
        storage.bucket,
        probe.ACTIONS,
        region=storage.region,
        kms_key_id=storage.sse_kms_key,
        tags=bool(storage.tags),
    )
    return json.dumps(wanted, indent=2) + "\n"


def lifecycle() -> str:
    """Return the bucket's rule for uploads that nobody ends, as JSON."""
    return json.dumps(_LIFECYCLE, indent=2) + "\n"


def daemon_drop_in(config: Config, broker: Broker) -> str | None:
    """Return what the daemon's unit needs beyond the packages' own; None for nothing."""
    lines = [*_of_service(config, broker)]
    return "\n".join(["# Written by rlmm setup.", "[Service]", *lines, ""]) if lines else None


def _of_service(config: Config, broker: Broker) -> Iterator[str]:
    if broker.account is not None and broker.account.group not in (GROUP_OF_PACKAGE, "root"):
        yield "# Reads the broker's segment files, which belong to its group."
        yield f"SupplementaryGroups={broker.account.group}"
    if isinstance(config.storage, LocalStorage):
        directory = PurePosixPath(config.storage.directory)
        if not directory.is_relative_to("/var/lib/rlmm"):
            yield f"ReadWritePaths={_escaped(str(directory))}"


def hidden(log_dirs: tuple[str, ...]) -> list[str]:
    """Return those that the daemon's unit could not see."""
    return [
        each
        for each in log_dirs
        if any(PurePosixPath(each).is_relative_to(above) for above in _HIDDEN)
    ]


def broker_drop_in() -> str:
    """Return what the broker's unit needs, as `kafka.service.d/rlmm.conf` of the packages."""
    return (
        "# Written by rlmm setup. The daemon may come and go; the broker stays up.\n"
        "[Unit]\nWants=rlmm-daemon.service\nAfter=rlmm-daemon.service\n\n"
        "[Service]\nSupplementaryGroups=rlmm\n"
    )


def _escaped(path: str) -> str:
    """Return a path as units write it: no specifiers, no blanks between words."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
