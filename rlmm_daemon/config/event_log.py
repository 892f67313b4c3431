"""Keys of `[event_log]`: a log of the daemon's own, Kafka's metadata topic, or a quorum's."""

from typing import Annotated

from msgspec import Meta

from rlmm_daemon.config.kafka_log import KafkaLog
from rlmm_daemon.config.quorum_log import QuorumLog
from rlmm_daemon.config.section import MIB, FilePath, Section


class EmbeddedLog(Section, frozen=True, kw_only=True, tag_field="kind", tag="embedded"):
    """A log of this daemon's own, for a cluster of one broker."""

    #: Has to be written out as true: the log is not replicated.
    single_broker: bool
    #: Directory of the log's files. Default: `log` below `daemon.state_dir`.
    directory: FilePath | None = None
    #: Metadata partitions of the log. Fixed when the log is created.
    partition_count: Annotated[int, Meta(ge=1, le=10_000)] = 50
    #: A log file is closed at this size. A restart reads only the newest file of each partition.
    segment_bytes: Annotated[int, Meta(ge=MIB, le=1_024 * MIB)] = 16 * MIB
    #: Drop the events of segments that are gone, in the background. False: the log only grows.
    compact: bool = True
    #: A metadata partition's log is compacted once it is so many times as large as the last
    #: compaction left it.
    compact_factor: Annotated[float, Meta(ge=1.2, le=100)] = 1.5
    #: A metadata partition's log that is smaller than this is not compacted.
    compact_bytes_min: Annotated[int, Meta(ge=MIB, le=1_024 * MIB)] = 4 * MIB


#: The kinds of log this version knows, told apart by `kind`; another one is one more struct here.
EventLog = EmbeddedLog | KafkaLog | QuorumLog
