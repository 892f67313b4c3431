"""Fence around a log that is copied away: nobody writes to it while it is copied, nor after."""

import random
from collections.abc import Mapping
from typing import Final

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.codec.marker import Presence, presence_key
from rlmm_daemon.config import Config
from rlmm_daemon.daemon.bucket.presence import LEASE_SECONDS
from rlmm_daemon.daemon.bucket.presence_files import PresenceReader
from rlmm_daemon.daemon.cleaner.peers import CLOCK_SLACK_MS
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import MetadataPartition, uuid_text
from rlmm_daemon.offline.log_contents import NAMED, Contents
from rlmm_daemon.ports.event_log import EventLog, LogIdentity
from rlmm_daemon.wiring import adapters

_LEASE_MS: Final = round(LEASE_SECONDS * 1000)


async def require_stopped(config: Config, source: str, log: LogIdentity) -> None:
    """Make sure that no other broker's daemon follows a log, by their presence files.

    Without a storage there are none: then only the log's ends tell, once it is copied.

    Raises:
        InvalidArgument: one does, or may; it says whose, and for how long that is believed.
        StorageUnavailable: nobody can say now.
    """
    storage = adapters.storage_of(config, random.Random(), reads_only=True)  # noqa: S311 - jitter
    if storage is None:
        return
    reader = PresenceReader(storage.backend, config.daemon.broker_id)
    try:
        await storage.backend.open()
        files = await reader.read()
    finally:
        await storage.backend.close()
    if reader.unseen is not None and source in NAMED:  # an embedded log is of one broker
        raise InvalidArgument(
            f"nobody knows whether daemons of other brokers write to {source}: {reader.unseen}"
        )
    if files.unread:
        raise InvalidArgument(
            f"{', '.join(files.unread)} can't be read, so nobody knows whether that daemon still "
            f"writes to {source}. Next: stop it; then remove the file"
        )
    now_ms, topic_id = SystemClock().now_ms(), uuid_text(log.topic_id)
    living = {
        each.broker_id: _gone_at_ms(each)
        for each in files.told
        if each.broker_id != config.daemon.broker_id  # whose state directory is not in use
        and any(seen.topic_id == topic_id for seen in each.partitions.values())
        and not each.ended
        and _gone_at_ms(each) >= now_ms
    }
    if living:
        seconds = max(1, (max(living.values()) - now_ms) // 1000)
        raise InvalidArgument(
            f"daemons of other brokers use {source}: {', '.join(map(str, sorted(living)))}. What "
            "they acknowledge from now on would not be in the copy. Next: stop them, each by "
            f"SIGTERM; one that was killed counts as gone by itself, in {seconds} s at most"
            + _ahead(living, now_ms)
        )


def _ahead(living: Mapping[int, int], now_ms: int) -> str:
    """Return what ends a wait that only the clock of a daemon's host has made so long."""
    longest_ms = _LEASE_MS + 2 * CLOCK_SLACK_MS
    ahead = [presence_key(each) for each, at in living.items() if at - now_ms > longest_ms]
    if not ahead:
        return ""
    return (
        f". The clock of a host was ahead: if its daemon is gone for sure, remove "
        f"{', '.join(sorted(ahead))}"
    )


def _gone_at_ms(presence: Presence) -> int:
    """Return when a daemon that writes no more is gone for sure."""
    lease_end_ms = presence.lease_end_ms
    if lease_end_ms is None:  # an older daemon's, which rewrote it as often
        lease_end_ms = presence.written_at_ms + _LEASE_MS
    return lease_end_ms + CLOCK_SLACK_MS


async def require_still(
    source: str, log: EventLog, reads: Mapping[MetadataPartition, Contents]
) -> None:
    """Make sure that a log ends where it ended when it was read.

    Raises:
        InvalidArgument: it went on, so somebody writes to it; or where it ends is not known.
    """
    ranges = await log.end_offsets(list(reads))
    unknown = [number for number in reads if number not in ranges]
    if unknown:
        raise InvalidArgument(
            f"where {source} ends now is not known: metadata partitions "
            f"{', '.join(map(str, unknown))}. The copy is not taken up yet; ask again"
        )
    for number, read in reads.items():
        if ranges[number].end > read.position:
            raise InvalidArgument(
                f"metadata partition {number} of {source} went on while it was copied, from offset "
                f"{read.position} to {ranges[number].end}: somebody writes to it. Next: stop its "
                "daemons, and brokers with Kafka's own metadata manager; then ask again, and the "
                "copy goes on"
            )
