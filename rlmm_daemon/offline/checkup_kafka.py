"""Checks of `rlmm doctor` that ask brokers: the topic, and what this principal may do."""

import asyncio
import random
import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rlmm_daemon.adapters.kafka.connection.directory import metadata_by_name
from rlmm_daemon.adapters.kafka.connection.requests import NO_ID, NO_TAGS, Metadata
from rlmm_daemon.adapters.kafka.event_log import KafkaLog
from rlmm_daemon.adapters.kafka.event_log.provisioning import lone_replicas, read_settings
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.config import Config
from rlmm_daemon.core import phrases
from rlmm_daemon.core.cluster_image.word import ControllersState
from rlmm_daemon.domain.errors import RlmmError
from rlmm_daemon.domain.ids import TopicId, uuid_text
from rlmm_daemon.offline.finding import CheckResult
from rlmm_daemon.ports.event_log import LogMissing, NoTopicId
from rlmm_daemon.wiring import adapters

#: AclOperation's codes, as Metadata's authorized operations have them, a bit each.
_RIGHTS: Final = {"READ": 3, "WRITE": 4, "DESCRIBE": 8, "DESCRIBE_CONFIGS": 10}
#: What a broker answers that has no authorizer, or does not tell.
_RIGHTS_UNKNOWN: Final = -(2**31)
_NEEDED: Final = ("READ", "WRITE", "DESCRIBE")


async def connection(log: KafkaLog, seconds: float) -> CheckResult:
    """Open the log, without creating it: connection, TLS, authentication, the topic itself."""
    check = "connection"
    try:
        async with asyncio.timeout(seconds):
            identity = await log.open(create=False)
    except LogMissing as missing:
        advice = (
            "fine before the first start, which creates it (needs CREATE on the topic or the"
            " cluster); otherwise: rlmm log restore, or rlmm partition accept-loss --all"
        )
        return CheckResult(check=check, verdict="warning", found=str(missing), advice=advice)
    except NoTopicId as nameless:
        advice = "upgrade the cluster's metadata.version: kafka-features.sh upgrade"
        return CheckResult(check=check, verdict="failed", found=str(nameless), advice=advice)
    except TimeoutError:
        found = f"no broker answered within {seconds:g} s"
        return CheckResult(check=check, verdict="failed", found=found, advice=_UNREACHED)
    except RlmmError as error:
        return CheckResult(check=check, verdict="failed", found=error.message, advice=_UNREACHED)
    found = f"topic {uuid_text(identity.topic_id)}, {identity.partition_count} partitions"
    return CheckResult(check=check, verdict="ok", found=found)


_UNREACHED: Final = (
    "check event_log.kafka.bootstrap and .security: that listener's protocol, certificate"
    " authority, mechanism, user and password, and DESCRIBE on the topic"
)


_SILENT: Final = (
    "are all brokers and controllers up, and reachable from here at their advertised listeners? A "
    "cluster that is merely slow: rlmm doctor --timeout SECONDS"
)


async def rights(log: KafkaLog, topic: str, seconds: float) -> CheckResult:
    """Ask the broker what this principal may do with the topic; nothing is tried out."""
    check = "rights"
    ask = Metadata([(NO_ID, topic, NO_TAGS)], False, True, NO_TAGS)  # noqa: FBT003 - a struct
    try:
        _, answer = await log.client.ask_any(ask, seconds=seconds)
    except RlmmError as error:
        return CheckResult(check=check, verdict="failed", found=error.message, advice=_UNREACHED)
    bits = int(answer.topics[0][5])
    if bits == _RIGHTS_UNKNOWN:
        return CheckResult(check=check, verdict="skipped", found="the broker does not tell")
    missing = [name for name, bit in _RIGHTS.items() if not bits >> bit & 1]
    if not missing:
        return CheckResult(check=check, verdict="ok", found=", ".join(_RIGHTS))
    advice = f"grant it: kafka-acls.sh --add --topic {topic} --operation " + " --operation ".join(
        name.title().replace("_", "") for name in missing
    )
    needed = any(name in _NEEDED for name in missing)
    return CheckResult(
        check=check,
        verdict="failed" if needed else "warning",
        found=f"missing: {', '.join(missing)}",
        advice=advice,
    )


def settings(log: KafkaLog) -> CheckResult:
    """Say what of the settings that were read at the opening may lose events."""
    check = "topic settings"
    if log.warnings:
        advice = "kafka-configs.sh --alter; events of live segments must never expire"
        return CheckResult(
            check=check, verdict="warning", found="; ".join(log.warnings), advice=advice
        )
    return CheckResult(check=check, verdict="ok", found="nothing expires, nothing is compacted")


async def durability(log: KafkaLog, topic: str, seconds: float) -> CheckResult:
    """Ask how many disks hold an event that was acknowledged: acks=all means those in sync."""
    check = "durability"
    try:
        async with asyncio.timeout(seconds):
            known = await read_settings(log.client, topic)
            _, answer = await log.client.ask_any(metadata_by_name(topic))
    except TimeoutError:
        return CheckResult(check=check, verdict="skipped", found=f"no answer within {seconds:g} s")
    except RlmmError as error:
        return CheckResult(check=check, verdict="skipped", found=error.message)
    partitions = answer.topics[0][4]
    replicas = min((len(row[4]) for row in partitions), default=0)
    weak = lone_replicas(known, replicas)
    if weak is not None:
        advice = "kafka-configs.sh --alter, kafka-reassign-partitions.sh; fine with one broker"
        return CheckResult(check=check, verdict="warning", found=weak, advice=advice)
    found = f"{replicas} replicas, min.insync.replicas is {known.get('min.insync.replicas')}"
    return CheckResult(check=check, verdict="ok", found=found)


async def discovery(config: Config, log: KafkaLog, seconds: float) -> CheckResult:
    """Ask which partitions would be followed; a topic out of sight is not told from none."""
    check, broker_id = "discovery", config.daemon.broker_id
    see_all = "the principal has to see every topic: DESCRIBE and DESCRIBE_CONFIGS on topic '*'"
    try:
        async with asyncio.timeout(seconds):
            tiered = await adapters.cluster_of(config, log).tiered_topics(broker_id)
    except TimeoutError:
        found = f"nothing within {seconds:g} s"
        return CheckResult(check=check, verdict="failed", found=found, advice=_SILENT)
    except RlmmError as error:
        return CheckResult(check=check, verdict="failed", found=error.message, advice=see_all)
    count = phrases.number(len(tiered.replicated), "partition")
    found = f"broker {broker_id} replicates {count} of topics with remote.storage.enable"
    if tiered.replicated:
        return CheckResult(check=check, verdict="ok", found=found)
    advice = f"is daemon.broker_id the broker's node.id? {see_all}"
    return CheckResult(check=check, verdict="warning", found=found, advice=advice)


async def observation(config: Config, log: KafkaLog, seconds: float) -> CheckResult:
    """Look once as the observer does: every live broker, and who leads the controllers."""
    check, nobodys = "observation", TopicId(secrets.token_bytes(16))
    try:
        async with asyncio.timeout(seconds):
            look = await adapters.cluster_of(config, log).look(frozenset({nobodys}))
    except TimeoutError:
        found = f"nothing within {seconds:g} s"
        return CheckResult(check=check, verdict="failed", found=found, advice=_SILENT)
    except RlmmError as error:
        advice = (
            "no topic is ever marked unasked without it: every live broker has to answer, and the "
            "principal needs DESCRIBE on the cluster: kafka-acls.sh --add --cluster "
            "--operation Describe"
        )
        return CheckResult(check=check, verdict="failed", found=error.message, advice=advice)
    found = f"{look.live} of {look.registered} brokers live, the controllers have a leader"
    return CheckResult(check=check, verdict="ok", found=found)


async def controllers(config: Config, log: KafkaLog, seconds: float) -> CheckResult:
    """Say whose word it is that a topic was deleted, and follow the controllers once if theirs."""
    check = "deleted topics"
    brokers = adapters.cluster_of(config, log)
    followed = adapters.controllers_of(config, brokers, SystemClock(), random.Random())  # noqa: S311 - jitter
    if followed is None:
        found = "by the brokers' word: every live one has to call the topic id unknown"
        return CheckResult(check=check, verdict="ok", found=found)
    observer = followed.observer
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(observer.run(), name="controllers")
        try:
            async with asyncio.timeout(seconds):
                await observer.settled()
        except TimeoutError:
            pass
        finally:
            task.cancel()
    told = observer.observed()
    if told.standing is ControllersState.CURRENT and told.at is not None:
        found = (
            f"by the brokers' and the controllers' word: {phrases.number(told.topics, 'topic')}, "
            f"{phrases.number(told.brokers, 'broker')} at offset {told.at.end} of epoch "
            f"{told.at.epoch}"
        )
        if not told.unknown_kinds:
            return CheckResult(check=check, verdict="ok", found=found)
        kinds = ", ".join(map(str, told.unknown_kinds))
        found += f"; types of records that this version does not know: {kinds}"
        advice = "a newer rlmm-daemon; until then what these records change is passed over"
        return CheckResult(check=check, verdict="warning", found=found, advice=advice)
    found = f"by the brokers' word alone, the controllers are {told.standing.value}"
    found += f": {told.trouble}" if told.trouble else f": nothing whole within {seconds:g} s"
    return CheckResult(
        check=check, verdict="warning", found=found, advice=_CONTROLLERS_ADVICE[told.standing]
    )


_UNREACHED_CONTROLLERS: Final = (
    "check event_log.kafka.controllers.bootstrap and .security: the controllers' listener, its "
    "protocol and user, and whatever firewall is before it"
)
_CONTROLLERS_ADVICE: Final[Mapping[ControllersState, str]] = MappingProxyType(
    {
        ControllersState.LOADING: "a longer --timeout, or less load on the controllers",
        ControllersState.CURRENT: "a longer --timeout",
        ControllersState.STALE: _UNREACHED_CONTROLLERS,
        ControllersState.UNREACHABLE: _UNREACHED_CONTROLLERS,
        ControllersState.OTHER_CLUSTER: (
            "event_log.kafka.controllers.bootstrap leads to another cluster"
        ),
        ControllersState.UNAUTHORIZED: (
            "grant it: kafka-acls.sh --add --cluster --operation ClusterAction, for the principal "
            "that the controllers see"
        ),
        ControllersState.UNREADABLE: "a newer rlmm-daemon, or no [event_log.kafka.controllers]",
    }
)
