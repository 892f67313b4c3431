"""After a log was copied or restored: what names the daemon's log names this one from now on."""

import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.os.disk import LocalDisk
from rlmm_daemon.codec.marker import Hold
from rlmm_daemon.codec.state_files import Identity, Position, Positions
from rlmm_daemon.config import Config, EmbeddedLog, KafkaLog
from rlmm_daemon.core.partitioner import PARTITIONER_ID
from rlmm_daemon.daemon.base.state_directory import StateDirectory
from rlmm_daemon.daemon.bucket import acceptance
from rlmm_daemon.daemon.bucket.owed import owe
from rlmm_daemon.daemon.bucket.recorded_log import RecordedLog
from rlmm_daemon.domain.errors import ConfigError, InTheWay, Malformed, UnsupportedProtocol
from rlmm_daemon.domain.ids import BrokerId, TopicId, uuid_bytes, uuid_text
from rlmm_daemon.offline.log_contents import KAFKA, QUORUM
from rlmm_daemon.ports.event_log import LogIdentity
from rlmm_daemon.wiring import adapters


def is_configured(config: Config, name: str) -> bool:
    """Return whether `name` means the log that the configuration gives the daemon."""
    if isinstance(config.event_log, EmbeddedLog):
        return Path(name).resolve() == Path(config.event_log_directory).resolve()
    return name == (KAFKA if isinstance(config.event_log, KafkaLog) else QUORUM)


async def adopt(
    config: Config,
    name: str,
    identity: LogIdentity,
    *,
    hold_before_ms: int | None = None,
    ends: Mapping[int, Position] | None = None,
) -> bool:
    """Let state directory and bucket marker name this log; False where it is not the daemon's.

    `ends`, of a log that the daemon never read, count as read by it: it misses what goes then.

    With `hold_before_ms` it may lack what the one before it held: what was stored until then is
    held, unless the marker names this very log. Snapshots stay: at its start the daemon holds the
    replay of this log against what they know.

    Raises:
        InTheWay: the daemon runs, so its state directory can't be changed under it.
        StorageUnavailable: the marker was not written; asking again is harmless.
    """
    if not is_configured(config, name):
        return False
    disk = LocalDisk()
    state = StateDirectory(disk, config.daemon.state_dir)
    try:
        await state.open()
        await _name_in_marker(config, identity, state, hold_before_ms)
        await state.write(
            Identity(
                cluster_id=identity.cluster_id,
                topic_id=uuid_text(identity.topic_id),
                partition_count=identity.partition_count,
                partitioner=PARTITIONER_ID,
            )
        )
        if ends:
            await _note_ends(state, uuid_text(identity.topic_id), ends)
    finally:
        await state.close()
        disk.close()
    return True


async def _note_ends(state: StateDirectory, topic_id: str, ends: Mapping[int, Position]) -> None:
    """Write positions, unless some of this very log are there: those may tell of a loss."""
    with suppress(Malformed, UnsupportedProtocol):
        before = await state.positions()
        if before is None or before.topic_id != topic_id:
            partitions = {str(number): end for number, end in sorted(ends.items())}
            await state.write(Positions(topic_id=topic_id, partitions=partitions))


async def read_before(config: Config) -> Mapping[TopicId, Mapping[int, Position]]:
    """Return how far daemons had read which log, as far as anything that is left says.

    Of another one's word and this one's the further: what it was told alone is as acknowledged.

    Raises:
        RlmmError: the storage has a presence file, perhaps, and does not answer.
    """
    disk = LocalDisk()
    try:
        state = StateDirectory(disk, config.daemon.state_dir)
        found = await _read_by_bucket(config, state)
        with suppress(Malformed, UnsupportedProtocol, OSError):
            if (positions := await state.positions()) is not None:
                of = found.setdefault(TopicId(uuid_bytes(positions.topic_id)), {})
                # Written every second, the presence file once a minute.
                for number, at in positions.numbered().items():
                    if number not in of or of[number].next_offset <= at.next_offset:
                        of[number] = at
        return found
    finally:
        disk.close()


async def _read_by_bucket(
    config: Config, state: StateDirectory
) -> dict[TopicId, dict[int, Position]]:
    """Return what presence files say: all that is left where the state directory is gone."""
    made = adapters.storage_of(config, random.Random(), reads_only=True)  # noqa: S311 - jitter
    if made is None:
        return {}
    try:
        recorded = await RecordedLog(
            made.backend,
            made.bucket,
            broker_id=BrokerId(config.daemon.broker_id),
            cluster_id=config.daemon.cluster_id,
            now_ms=SystemClock().now_ms,
            state=state,
        ).log()
        if recorded is None:
            return {}
        read = dict(recorded.positions)
        for number, said in recorded.others.items():
            known = [read[number]] if number in read else []
            read[number] = max([*known, *said], key=lambda at: at.next_offset)
        return {recorded.topic_id: read}
    finally:
        await made.backend.close()


async def refuse_beside_a_daemon(config: Config) -> None:
    """Raise ConfigError if a daemon uses the state directory."""
    disk = LocalDisk()
    state = StateDirectory(disk, config.daemon.state_dir)
    try:
        await state.open()
    except InTheWay as busy:
        raise ConfigError(f"stop the daemon first: {busy.message}") from busy
    finally:
        await state.close()
        disk.close()


async def _name_in_marker(
    config: Config, identity: LogIdentity, state: StateDirectory, hold_before_ms: int | None
) -> None:
    topic_id, broker_id = uuid_text(identity.topic_id), config.daemon.broker_id
    cluster_id = identity.cluster_id or config.daemon.cluster_id
    hold = None
    if hold_before_ms is not None:
        hold = Hold(metadata_partition=None, before_ms=hold_before_ms, broker_id=broker_id)
    storage = adapters.storage_of(config, random.Random())  # noqa: S311 - names and jitter
    is_written = False
    if storage is not None:
        try:
            is_written = await acceptance.name_log(
                storage.bucket, topic_id, cluster_id=cluster_id, hold=hold
            )
        finally:
            await storage.backend.close()
    await owe(  # the marker may be lost before a daemon has read it
        state,
        acceptance.naming(topic_id, hold),
        identity,
        cluster_id=cluster_id,
        now_ms=SystemClock().now_ms(),
        broker_id=broker_id,
        is_used=storage is not None and not is_written,  # a copy of what was read, or none
        is_written=is_written,
    )
