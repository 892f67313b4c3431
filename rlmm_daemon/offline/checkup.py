"""Checks of `rlmm doctor`: each asks one thing of the event log and writes nothing to it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from rlmm_daemon.adapters.event_log.embedded.identity import read_identity
from rlmm_daemon.adapters.event_log.embedded.misplaced import MISPLACED
from rlmm_daemon.adapters.event_log.embedded.verify import PartitionReport, verify
from rlmm_daemon.adapters.kafka.event_log import KafkaLog
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec import records
from rlmm_daemon.codec.state_files import Identity, Positions
from rlmm_daemon.config import Config, EmbeddedLog, QuorumLog
from rlmm_daemon.config import KafkaLog as KafkaLogConfig
from rlmm_daemon.config.accounts import unknown_accounts
from rlmm_daemon.config.exposure import exposures_in_time
from rlmm_daemon.core import phrases
from rlmm_daemon.core.partitioner import PARTITIONER_ID
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.domain.errors import RlmmError, UnsupportedProtocol
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.domain.segment import SegmentSnapshot
from rlmm_daemon.offline import checkup_broker, checkup_host, checkup_storage
from rlmm_daemon.offline.checkup_kafka import (
    connection,
    controllers,
    discovery,
    durability,
    observation,
    rights,
    settings,
)
from rlmm_daemon.offline.finding import CheckResult
from rlmm_daemon.offline.log_adoption import read_before
from rlmm_daemon.offline.quorum import checkup as quorum
from rlmm_daemon.ports.event_log import NO_EPOCH, LogIdentity, LogMoved, LogRange
from rlmm_daemon.wiring.log_alone import log_alone

#: Events of the future by more than this: a clock is wrong somewhere.
SKEW_MS_MAX: Final = 30_000
#: Partitions whose newest event is read for the clock's sake.
_SAMPLES: Final = 4
#: How long modes of files and directories are looked at.
_ACCESS_SECONDS: Final = 10.0


def examine(config: Config, *, seconds: float) -> list[CheckResult]:
    """Return every check's finding, in the order in which they depend on each other."""
    return asyncio.run(_all(config, seconds))


def machine(config: Config, file: str, *, seconds: float) -> list[CheckResult]:
    """Return the findings about the machine; `file` is the configuration's own path."""
    return asyncio.run(checkup_host.host(config, file, seconds))


def access(config: Config, file: str) -> list[CheckResult]:
    """Return a row for each thing that others may read, change or reach, or that there is none.

    A user of the socket whom nobody knows is a failure.

    `file` is the configuration's own path.
    """
    exposed = exposures_in_time(config, file, _ACCESS_SECONDS)
    if exposed is None:
        found = f"no answer within {_ACCESS_SECONDS:g} s: a disk or mount hangs"
        advice = "find it (df hangs on it, too) and have it answer; then run rlmm doctor again"
        return [CheckResult(check="access", verdict="warning", found=found, advice=advice)]
    warnings = [
        CheckResult(check=each.check, verdict="warning", found=each.found, advice=each.advice)
        for each in exposed
    ]
    warnings += [
        CheckResult(
            check="socket rights",
            verdict="failed",
            found=each,
            advice="the daemon does not start before it does: make that user, or mend the name",
        )
        for each in unknown_accounts(config)
    ]
    mine = "secrets, configuration, socket, directories and admin port are the daemon's own"
    return warnings or [CheckResult(check="access", verdict="ok", found=mine)]


async def _all(config: Config, seconds: float) -> list[CheckResult]:
    of_log = await _of_log(config, seconds)
    of_broker = await checkup_broker.log_directories(config)
    return of_log + of_broker + await checkup_storage.marker(config, seconds)


async def _of_log(config: Config, seconds: float) -> list[CheckResult]:
    match config.event_log:
        case EmbeddedLog():
            return await _embedded(config, seconds)
        case KafkaLogConfig():
            return await _kafka(config, seconds)
        case QuorumLog():
            return await quorum.checks(config, seconds)


def _gone(config: Config) -> str:
    """Return what to do about a log that is not there, the last resort last."""
    return (
        "mount its disk or mend event_log.directory, and the daemon takes it up by itself; or put "
        f"a copy back; or run: {_restore(config, config.event_log_directory)}; only if neither is "
        "left: rlmm partition accept-loss --all"
    )


def _restore(config: Config, target: str) -> str:
    """Return the command that gives a log back what this daemon's snapshots know."""
    snapshots = config.snapshot_directory
    return f"rlmm log restore --config FILE --from-snapshots {snapshots} --to {target}"


_SHORT: Final = (
    "put the missing files back from a copy, or mount their disk; else see rlmm explain and "
    "rlmm log recover N"
)


_FOREIGN: Final = (
    "leave it as it is; put this cluster's own log back in its place, or mend event_log.directory "
    "or daemon.cluster_id, whichever is wrong"
)


_NAMELESS: Final = "put the file back from a copy; or run: rlmm log name"


def _unreadable(error: OSError | RlmmError, damaged: str) -> str:
    """Return what to do about a file that can't be read; `damaged` is for one that is damaged."""
    if isinstance(error, UnsupportedProtocol):
        return "start the version again that wrote it (rlmm --version shows this one's)"
    if isinstance(error, OSError):
        return "see what the kernel says of its disk (dmesg), and have it answer"
    return damaged


async def _embedded(config: Config, seconds: float) -> list[CheckResult]:
    disk, directory = LocalDisk(), config.event_log_directory
    state = StateDirectory(disk, config.daemon.state_dir)
    try:
        present = await read_identity(disk, directory)
        if present is None:
            return [await _no_log(disk, config, seconds)]
        # Read before the log: a daemon that runs goes on with both.
        known, positions = await state.identity(), await state.positions()
        reports = await verify(disk, directory, present.partition_count)
    except PermissionError as error:
        advice = "run this as the user that the daemon runs as, or as root"
        found = f"{error.filename}: permission denied to uid {os.geteuid()}"
        return [CheckResult(check="event log", verdict="failed", found=found, advice=advice)]
    except (OSError, RlmmError) as error:
        found, advice = f"{directory}: {error}", _unreadable(error, _NAMELESS)
        return [CheckResult(check="event log", verdict="failed", found=found, advice=advice)]
    finally:
        disk.close()
    corrupt = _foreign(config, present, known) or _corrupt(reports) or _misplaced(reports)
    absent = _absent(reports, present, known, positions, gone=_gone(config))
    headless = _headless(reports, positions, config.snapshot_directory)
    return [corrupt or absent or headless or _whole(reports)]


def _foreign(config: Config, present: LogIdentity, known: Identity | None) -> CheckResult | None:
    """Tell whether the log is another cluster's than configuration and state directory say."""
    ours = {
        "daemon.cluster_id": config.daemon.cluster_id,
        "the state directory's cluster": known and known.cluster_id,
    }
    for who, cluster_id in ours.items():
        if None not in (cluster_id, present.cluster_id) and cluster_id != present.cluster_id:
            found = (
                f"{config.event_log_directory} holds the log of cluster {present.cluster_id}, and "
                f"{who} is {cluster_id}"
            )
            return CheckResult(check="event log", verdict="failed", found=found, advice=_FOREIGN)
    return None


def _corrupt(reports: list[PartitionReport]) -> CheckResult | None:
    findings = [finding for report in reports for finding in report.findings]
    corrupt = [finding for finding in findings if finding.kind == "corrupt"]
    if not corrupt:
        return None
    found = f"{corrupt[0].file}: {corrupt[0].reason} ({len(corrupt)} in all)"
    advice = "run: rlmm log verify, then: rlmm log repair"
    return CheckResult(check="event log", verdict="failed", found=found, advice=advice)


def _misplaced(reports: list[PartitionReport]) -> CheckResult | None:
    findings = [finding for report in reports for finding in report.findings]
    misplaced = [finding for finding in findings if finding.kind == "misplaced"]
    if not misplaced:
        return None
    found = f"{misplaced[0].file}: {misplaced[0].reason} ({len(misplaced)} in all)"
    return CheckResult(check="event log", verdict="failed", found=found, advice=MISPLACED)


def _absent(
    reports: list[PartitionReport],
    present: LogIdentity,
    known: Identity | None,
    positions: Positions | None,
    *,
    gone: str,
) -> CheckResult | None:
    """Tell what the daemon knew of its log and this one does not hold."""
    ours = uuid_text(present.topic_id)
    if known is not None and known.topic_id != ours:
        found = f"this is log {ours}, and this daemon had {known.topic_id}"
        return CheckResult(check="event log", verdict="failed", found=found, advice=gone)
    if positions is None or positions.topic_id != ours:
        return None
    ends = {int(report.partition): report.range.end for report in reports}
    short = [
        f"partition {number} ends at {ends.get(number, 0)}, and was read up to {at.next_offset}"
        for number, at in sorted(positions.numbered().items())
        if at.next_offset > ends.get(number, 0)
    ]
    if not short:
        return None
    found = f"a part is absent: {short[0]} ({len(short)} in all)"
    return CheckResult(check="event log", verdict="failed", found=found, advice=_SHORT)


def _headless(
    reports: list[PartitionReport], positions: Positions | None, snapshots: str
) -> CheckResult | None:
    """Tell of heads that are gone, that nobody accepted and that no snapshot may stand for."""
    accepted = {} if positions is None else positions.accepted_starts
    gone = [
        f"partition {each.partition} begins at {each.range.start}"
        for each in reports
        if each.range.start > accepted.get(str(each.partition), 0)
        and not any(Path(snapshots).glob(f"{each.partition}-*.snapshot"))
    ]
    if not gone:
        return None
    found = f"what stood at its beginning is absent: {gone[0]} ({len(gone)} in all)"
    return CheckResult(check="event log", verdict="failed", found=found, advice=_SHORT)


def _whole(reports: list[PartitionReport]) -> CheckResult:
    count = sum(report.records for report in reports)
    found = f"{phrases.number(len(reports), 'partition')}, {phrases.number(count, 'event')}, whole"
    return CheckResult(check="event log", verdict="ok", found=found)


async def _no_log(disk: LocalDisk, config: Config, seconds: float) -> CheckResult:
    """Say whether a log that is not there ever was."""
    found = f"{config.event_log_directory} holds no event log, or none that is named"
    if await StateDirectory(disk, config.daemon.state_dir).identity() is not None:
        found += ", and this daemon had one"
        return CheckResult(check="event log", verdict="failed", found=found, advice=_gone(config))
    named: object = None
    with suppress(RlmmError, TimeoutError):  # its own row tells what is wrong with the storage
        async with asyncio.timeout(seconds):
            named = await read_before(config)
    if named:
        found += ", and the bucket marker names one"
        return CheckResult(check="event log", verdict="failed", found=found, advice=_gone(config))
    advice = "fine if the daemon never ran: it makes the log at its first start"
    return CheckResult(check="event log", verdict="warning", found=found, advice=advice)


@asynccontextmanager
async def _opened(config: Config) -> AsyncIterator[KafkaLog]:
    whichever = replace(config.daemon, cluster_id=None)  # another cluster is told by `_cluster`
    async with log_alone(replace(config, daemon=whichever)) as log:
        assert isinstance(log, KafkaLog), "the embedded log has checks of its own"
        yield log


async def _kafka(config: Config, seconds: float) -> list[CheckResult]:
    async with _opened(config) as log:
        findings = [await connection(log, seconds)]
        identity = log.identity
        if identity is None:
            return findings
        findings.append(_cluster(config, identity))
        findings.append(await _state(config, identity))
        findings.append(await rights(log, _topic(config), seconds))
        findings.append(settings(log))
        findings.append(await durability(log, _topic(config), seconds))
        ranges = await _ranges(log, identity, seconds)
        findings.append(_leaders(identity, ranges))
        findings.extend(await _reading(log, ranges, seconds))
        if config.assignment.mode == "discover":
            findings.append(await discovery(config, log, seconds))
        if config.cleaner.observe.enabled:
            findings.append(await observation(config, log, seconds))
        findings.append(await controllers(config, log, seconds))
        return findings


def _topic(config: Config) -> str:
    assert isinstance(config.event_log, KafkaLogConfig), "others have checks of their own"
    return config.event_log.kafka.topic


def _cluster(config: Config, identity: LogIdentity) -> CheckResult:
    check, wanted = "cluster id", config.daemon.cluster_id
    if wanted is not None and wanted != identity.cluster_id:
        found = f"the brokers say {identity.cluster_id}, daemon.cluster_id is {wanted}"
        advice = "bootstrap leads to another cluster, or daemon.cluster_id is wrong"
        return CheckResult(check=check, verdict="failed", found=found, advice=advice)
    return CheckResult(check=check, verdict="ok", found=str(identity.cluster_id))


async def _state(config: Config, identity: LogIdentity) -> CheckResult:
    """Hold the topic against what the state directory was bound to at first contact."""
    check = "state directory"
    disk = LocalDisk()
    try:
        known = await StateDirectory(disk, config.daemon.state_dir).identity()
    except (OSError, RlmmError) as error:
        advice = _unreadable(error, "put the file back from a copy, or see rlmm explain")
        return CheckResult(check=check, verdict="failed", found=str(error), advice=advice)
    finally:
        disk.close()
    if known is None:
        return CheckResult(check=check, verdict="ok", found="not bound to a log yet")
    if None not in (known.cluster_id, identity.cluster_id) and (
        known.cluster_id != identity.cluster_id
    ):
        found = f"bound to cluster {known.cluster_id}, and the brokers say {identity.cluster_id}"
        advice = (
            "bootstrap leads to another cluster; or this is another cluster's state directory: "
            "then let daemon.state_dir name one of this daemon's own"
        )
        return CheckResult(check=check, verdict="failed", found=found, advice=advice)
    if known.topic_id != uuid_text(identity.topic_id):
        found = f"bound to topic id {known.topic_id}: the topic was deleted and created again"
        advice = "rlmm log restore brings back what is known; rlmm partition accept-loss gives up"
        return CheckResult(check=check, verdict="failed", found=found, advice=advice)
    if (known.partition_count, known.partitioner) != (identity.partition_count, PARTITIONER_ID):
        found = f"bound to {known.partition_count} partitions, there are {identity.partition_count}"
        advice = (
            "events are found by their hash, so those in other partitions now are lost to it; "
            "rlmm partition accept-loss --all goes on without them"
        )
        return CheckResult(check=check, verdict="failed", found=found, advice=advice)
    return CheckResult(check=check, verdict="ok", found="bound to this topic")


async def _ranges(
    log: KafkaLog, identity: LogIdentity, seconds: float
) -> dict[MetadataPartition, LogRange]:
    every = [MetadataPartition(number) for number in range(identity.partition_count)]
    try:
        async with asyncio.timeout(seconds):
            return dict(await log.end_offsets(every))
    except (TimeoutError, RlmmError):
        return {}


def _leaders(identity: LogIdentity, ranges: dict[MetadataPartition, LogRange]) -> CheckResult:
    check = "leaders"
    silent = [number for number in range(identity.partition_count) if number not in ranges]
    if silent:
        found = f"no answer for {len(silent)} of {identity.partition_count} partitions: {silent}"
        advice = "are all brokers up and reachable from here, at their advertised listeners?"
        return CheckResult(check=check, verdict="failed", found=found[:200], advice=advice)
    lost = [number for number, each in ranges.items() if each.start > 0]
    events = sum(each.end - each.start for each in ranges.values())
    found = f"all {identity.partition_count} answered, {phrases.number(events, 'event')}"
    if lost:
        found += f"; {len(lost)} partitions have lost their head: {lost}"
        advice = "a daemon without a snapshot of them is history_lost: rlmm log restore"
        return CheckResult(check=check, verdict="warning", found=found[:200], advice=advice)
    return CheckResult(check=check, verdict="ok", found=found)


_UNREAD: Final = (
    "a leader answers, and not with events: see its log (server.log) and its disk, and whether the "
    "principal has READ; rlmm explain says what the daemon makes of it"
)


async def _reading(
    log: KafkaLog, ranges: dict[MetadataPartition, LogRange], seconds: float
) -> list[CheckResult]:
    """Fetch the newest event of a few partitions, and judge the clocks by their times."""
    filled = [number for number, each in ranges.items() if each.end > each.start]
    if not filled:
        return [CheckResult(check="reading", verdict="skipped", found="the topic is empty")]
    newest = 0
    try:
        async with asyncio.timeout(seconds):
            for number in filled[:_SAMPLES]:
                newest = max(newest, await _newest(log, number, ranges[number].end - 1))
    except TimeoutError:
        found = f"nothing within {seconds:g} s"
        return [CheckResult(check="reading", verdict="failed", found=found, advice=_UNREAD)]
    except LogMoved as moved:  # somebody deletes records, or the topic, at this very moment
        advice = "the log changed while it was read; run rlmm doctor again"
        return [CheckResult(check="reading", verdict="failed", found=str(moved), advice=advice)]
    except RlmmError as error:
        found = error.message
        return [CheckResult(check="reading", verdict="failed", found=found, advice=_UNREAD)]
    return [
        CheckResult(check="reading", verdict="ok", found="a Fetch from the leaders was answered"),
        _clock(newest),
    ]


def _clock(newest_ms: int) -> CheckResult:
    check, ahead = "clocks", newest_ms - SystemClock().now_ms()
    if ahead > SKEW_MS_MAX:
        found = f"the newest event is {phrases.duration(ahead / 1000)} in the future"
        advice = "a broker's clock or this one's is wrong; are they synchronised?"
        return CheckResult(check=check, verdict="warning", found=found, advice=advice)
    return CheckResult(check=check, verdict="ok", found="no event is of the future")


async def _newest(log: KafkaLog, partition: MetadataPartition, offset: int) -> int:
    """Return the time of the newest event, 0 if the last record is none."""
    async with aclosing(log.follow(partition, offset, epoch=NO_EPOCH)) as batches:
        batch = await anext(batches)
    times = [0]
    for _, value in batch.records:
        try:
            record = records.decode(value or b"")
        except RlmmError:
            continue
        if not isinstance(record, SegmentSnapshot):
            times.append(record.event_timestamp_ms)
    return max(times)
