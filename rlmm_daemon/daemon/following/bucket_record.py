"""The bucket's word on the log: what its marker and the presence files say of it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.domain.ids import MetadataPartition, TopicId
from rlmm_daemon.ports.event_log import LogIdentity, LogRange


class BucketLog(msgspec.Struct, frozen=True, kw_only=True):
    """What the bucket knows of the log: its marker, and this daemon's own presence file."""

    #: None: not known.
    cluster_id: str | None = None
    topic_id: TopicId
    partition_count: int
    #: How far an earlier life of this daemon had read, by metadata partition.
    positions: Mapping[int, Position] = msgspec.field(default_factory=dict)
    #: The same of other brokers' daemons, where none of them is beyond another, and whose files say
    #: so.
    others: Mapping[int, Mapping[Position, str]] = msgspec.field(default_factory=dict)
    #: Metadata partitions (None: all) whose loss any daemon accepted since our presence file.
    lost_since: Collection[int | None] = ()
    #: Presence files that can't be read, by each metadata partition of which they may have told
    #: something: no loss of it was accepted since they were written.
    unread: Mapping[int, Sequence[str]] = msgspec.field(default_factory=dict)
    #: This daemon's own is among them.
    own_unread: bool = False
    #: Gaps whose loss was accepted, by any daemon: log, metadata partition, offsets.
    accepted_gaps: Sequence[tuple[TopicId, int, LogRange]] = ()


class BucketRecord(Protocol):
    """The bucket's word on the log; without a bucket, what a later one is to be told."""

    @property
    def has_storage(self) -> bool:
        """Whether there is a bucket."""

    async def log(self) -> BucketLog | None:
        """Return what the marker says, once it was read; None where there is no marker yet.

        Raises:
            RlmmError: not now; asked again with back-off.
        """

    async def accept_loss(
        self,
        partition: MetadataPartition | None,
        identity: LogIdentity,
        gaps: Mapping[int, Sequence[LogRange]],
    ) -> None:
        """Keep in the marker that a loss (None: of the whole log) was accepted; the log is this.

        `gaps`: the known ones of the metadata partitions that were accepted.

        Raises:
            RlmmError: it was not written.
        """


def same_cluster(marker: BucketLog, identity: LogIdentity) -> bool:
    """Whether a marker speaks of our cluster; another one's says nothing of our log."""
    return None in (marker.cluster_id, identity.cluster_id) or (
        marker.cluster_id == identity.cluster_id
    )
