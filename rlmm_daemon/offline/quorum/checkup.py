"""Checks of `rlmm doctor` on a quorum's log: this daemon's replica, the quorum, and the brokers."""

import asyncio
import ipaddress
import os
import random
from collections import Counter
from typing import Final

from rlmm_daemon.adapters.kafka.cluster import KafkaCluster
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.adapters.quorum.client import Description, QuorumClient
from rlmm_daemon.adapters.quorum.files.formatted import (
    TOPIC,
    require_may_run,
    topic_id_of,
)
from rlmm_daemon.adapters.quorum.files.identity import read_meta
from rlmm_daemon.adapters.quorum.files.layout import Layout
from rlmm_daemon.adapters.quorum.wire import Group
from rlmm_daemon.config import Config, QuorumLog, QuorumReplica
from rlmm_daemon.core import phrases
from rlmm_daemon.core.raft import standing
from rlmm_daemon.domain.errors import ConfigError, RlmmError
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.offline.finding import CheckResult
from rlmm_daemon.wiring import adapters
from rlmm_daemon.wiring.quorum_log import LISTENER, connections_of, endpoint_of

#: Voters fetch a few times a second; one that did not for so long is away.
_AWAY_MS: Final = 10_000


async def checks(config: Config, seconds: float) -> list[CheckResult]:
    """Look at the directory, ask the quorum, and ask the brokers where they are configured."""
    chosen = config.event_log
    assert isinstance(chosen, QuorumLog), "others have checks of their own"
    found = [await _replica(config), *await _quorum(config, chosen.quorum, seconds)]
    if chosen.quorum.brokers is not None:
        found.append(await _brokers(config, seconds))
    return found


async def _replica(config: Config) -> CheckResult:
    """Hold the directory's own files against the configuration."""
    check, directory, disk = "quorum replica", config.quorum_directory, LocalDisk()
    wanted, cluster_id = config.daemon.broker_id, config.daemon.cluster_id

    def failed(found: str, advice: str) -> CheckResult:
        return CheckResult(check=check, verdict="failed", found=found, advice=advice)

    try:
        layout = Layout(directory, TOPIC)
        if not await disk.exists(layout.meta):
            return failed(
                f"{directory} is not formatted for a quorum",
                "mount its disk, or mend event_log.quorum.directory; for a new replica only: rlmm "
                f"quorum format {directory} --cluster-id {cluster_id} --node-id {wanted}, with "
                "--standalone, --voter or --join; docs/quorum.md",
            )
        meta = await read_meta(disk, layout)
        topic_id = await topic_id_of(disk, directory)
        await require_may_run(disk, directory)
    except PermissionError as error:
        advice = "run this as the user that the daemon runs as, or as root"
        return failed(f"{error.filename}: permission denied to uid {os.geteuid()}", advice)
    except (OSError, RlmmError) as error:
        return failed(str(error), "docs/quorum.md: a disk is lost")
    finally:
        disk.close()
    advice = "mend event_log.quorum.directory, daemon.broker_id or daemon.cluster_id"
    if meta.node_id != wanted:
        return failed(
            f"{directory} is replica {meta.node_id}, daemon.broker_id is {wanted}", advice
        )
    if meta.cluster_id != cluster_id:
        return failed(
            f"{directory} is of cluster {meta.cluster_id}, daemon.cluster_id is {cluster_id}",
            advice,
        )
    found = f"{directory} is replica {meta.node_id} of log {uuid_text(topic_id)}"
    return CheckResult(check=check, verdict="ok", found=found)


async def _quorum(config: Config, chosen: QuorumReplica, seconds: float) -> list[CheckResult]:
    """Ask any replica who leads, and the leader who fetches."""
    check = "quorum"
    try:
        _, dialer = connections_of(config, chosen)
    except (ConfigError, OSError) as error:
        advice = "mend the files that [event_log.quorum.security] names"
        return [CheckResult(check=check, verdict="failed", found=str(error), advice=advice)]
    servers = tuple(map(endpoint_of, (chosen.listen, *chosen.bootstrap)))
    group = Group(
        cluster_id=config.daemon.cluster_id or "",
        topic=TOPIC,
        topic_id=bytes(16),
        listener=LISTENER,
    )
    client = QuorumClient(group, dialer, servers, timeout_seconds=seconds)
    try:
        seen = await client.describe()
    except RlmmError as error:
        advice = (
            "start the daemon, and those of other voters: most of them have to run and to reach "
            "each other; rlmm quorum describe --server asks one"
        )
        return [CheckResult(check=check, verdict="warning", found=error.message, advice=advice)]
    return [_health(seen), *_hosts(seen)]


def _health(seen: Description) -> CheckResult:
    voters = [each.key.id for each in seen.voters]
    led = next((each.fetched_at_ms for each in seen.voters if each.key.id == seen.leader), 0)
    away = [
        each.key.id
        for each in seen.voters
        if each.fetched_at_ms < 0 or led - each.fetched_at_ms >= _AWAY_MS
    ]
    found = (
        f"replica {seen.leader} leads in epoch {seen.epoch}; voters "
        f"{', '.join(map(str, voters))}: {len(voters) // 2 + 1} decide, "
        f"{standing.tolerated(len(voters)) or 'none'} may be lost"
    )
    if not away:
        return CheckResult(check="quorum", verdict="ok", found=found)
    found += f"; {', '.join(map(str, away))} did not fetch for {_AWAY_MS // 1000} s"
    advice = "start those daemons again, or rlmm quorum remove what is gone for good"
    return CheckResult(check="quorum", verdict="warning", found=found, advice=advice)


def _hosts(seen: Description) -> list[CheckResult]:
    """Name hosts of several voters: one machine's end would be that of them all."""
    hosts = Counter(
        at.host for voter in seen.voters for at in seen.endpoints.get(voter.key.id, ())[:1]
    )
    shared = sorted(host for host, count in hosts.items() if count > 1 and not _is_loopback(host))
    if not shared:
        return []
    found = f"several voters listen on {', '.join(shared)}"
    advice = "three voters belong on three machines, each with a disk of its own"
    return [CheckResult(check="quorum hosts", verdict="warning", found=found, advice=advice)]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_NO_BROKERS: Final = (
    "check event_log.quorum.brokers.bootstrap and .security; nothing is removed while they do not "
    "answer"
)


async def _brokers(config: Config, seconds: float) -> CheckResult:
    """Ask the brokers which cluster they are."""
    check = "brokers"
    client = adapters.brokers_of(config, random.Random())  # noqa: S311 - jitter
    assert client is not None, "they are configured"
    try:
        async with asyncio.timeout(seconds):
            cluster = KafkaCluster(client, "", lambda: None)
            found_id, brokers = await cluster.cluster_id(), await cluster.brokers()
    except TimeoutError:
        found = f"nothing within {seconds:g} s"
        return CheckResult(check=check, verdict="failed", found=found, advice=_NO_BROKERS)
    except RlmmError as error:
        return CheckResult(check=check, verdict="failed", found=error.message, advice=_NO_BROKERS)
    finally:
        client.close()
    if found_id != config.daemon.cluster_id:
        found = f"they say {found_id}, daemon.cluster_id is {config.daemon.cluster_id}"
        advice = "event_log.quorum.brokers.bootstrap leads to another cluster: nothing is removed"
        return CheckResult(check=check, verdict="failed", found=found, advice=advice)
    live = sum(not each.fenced for each in brokers.values())
    found = f"{phrases.number(len(brokers), 'broker')}, {live} live, of cluster {found_id}"
    return CheckResult(check=check, verdict="ok", found=found)
