"""The metadata topic itself: made as Kafka makes it, and looked at before it is trusted."""

from collections.abc import Mapping
from typing import Final

from rlmm_daemon.adapters.kafka.connection import KafkaClient
from rlmm_daemon.adapters.kafka.connection.errors import error_of
from rlmm_daemon.adapters.kafka.connection.requests import (
    NO_TAGS,
    CreateTopics,
    DescribeConfigs,
)
from rlmm_daemon.config import KafkaAdmin

_TOPIC_RESOURCE: Final = 2
_TOPIC_EXISTS: Final = 36
_DEFAULT_MIN_INSYNC: Final = 2
_KEYS: Final = ["cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas"]


def topic_settings(admin: KafkaAdmin) -> dict[str, str]:
    """Return the configuration that a new topic gets."""
    insync = admin.min_insync_replicas or min(_DEFAULT_MIN_INSYNC, admin.replication_factor)
    return {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "min.insync.replicas": str(insync),
        "remote.storage.enable": "false",
        **admin.topic_settings,
    }


async def create_topic(client: KafkaClient, topic: str) -> None:
    """Create the topic, or find that somebody else just did.

    Raises:
        UnavailableError: refused or no answer; a timeout may leave it to be made later.
    """
    admin = client.config.admin
    timeout_ms = admin.request_timeout_ms or client.config.request_timeout_ms
    settings = [(key, value, NO_TAGS) for key, value in topic_settings(admin).items()]
    row: tuple[object, ...] = (
        topic,
        admin.partition_count,
        admin.replication_factor,
        [],
        settings,
        NO_TAGS,
    )
    request = CreateTopics([row], timeout_ms, False, NO_TAGS)  # noqa: FBT003 - a struct
    _, answer = await client.ask_any(request, seconds=timeout_ms / 1000 + 1)
    _, error, message, *_ = answer.topics[0]
    if error not in (0, _TOPIC_EXISTS):
        raise error_of(error, f"creating topic {topic}", message)


async def read_settings(client: KafkaClient, topic: str) -> Mapping[str, str]:
    """Return the topic's settings that matter here.

    Raises:
        UnavailableError: not authorized (DESCRIBE_CONFIGS), or no answer.
    """
    request = DescribeConfigs(
        [(_TOPIC_RESOURCE, topic, _KEYS, NO_TAGS)],
        False,  # noqa: FBT003 - a struct
        False,  # noqa: FBT003 - a struct
        NO_TAGS,
    )
    _, answer = await client.ask_any(request)
    error, message, _, _, configs, *_ = answer.results[0]
    if error:
        raise error_of(error, f"reading the settings of topic {topic}", message)
    return {row[0]: row[1] or "" for row in configs}


def shortcomings(settings: Mapping[str, str]) -> list[str]:
    """Return what may lose events: compaction, and retention by age or size."""
    found = []
    if "compact" in settings.get("cleanup.policy", "delete"):
        found.append(
            f"cleanup.policy is {settings['cleanup.policy']}: compaction deletes events; "
            "set it to delete"
        )
    found.extend(
        f"{key} is {settings[key]}: events of live segments will expire; set it to -1"
        for key in ("retention.ms", "retention.bytes")
        if settings.get(key, "-1") != "-1"
    )
    return found


def lone_replicas(settings: Mapping[str, str], replicas: int) -> str | None:
    """Return why one broker's loss may lose acknowledged events, None if it takes more than one.

    `replicas`: the least that any partition has.
    """
    insync = settings.get("min.insync.replicas", "1")
    if replicas < _DEFAULT_MIN_INSYNC:
        return f"a partition has {replicas} replica: its disk is all there is of its events"
    if insync.isdecimal() and int(insync) < _DEFAULT_MIN_INSYNC:
        return (
            f"min.insync.replicas is {insync}: an acknowledged event may be on one broker alone; "
            f"set it to {_DEFAULT_MIN_INSYNC}"
        )
    return None
