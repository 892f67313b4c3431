"""Bounds and times of the cleaner, each a configuration key or a fact of its neighbours."""

import msgspec


class CleanerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All times in seconds."""

    #: Between two passes over a metadata partition; a mark is taken up at once.
    interval_seconds: float = 30.0
    #: Between two rounds over the metadata partitions that are not followed otherwise.
    round_seconds: float = 3600.0
    #: Storage calls in flight over all metadata partitions.
    parallelism: int = 4
    #: 0: no limit.
    segments_per_second_max: float = 0.0
    #: A delete that its broker has not ended after so long is taken over.
    stuck_delete_seconds: float = 3600.0
    #: No copy of this daemon lives longer.
    copy_deadline_seconds: float = 600.0
    #: A record whose fate is not known is given up after so long.
    delivery_timeout_seconds: float = 120.0
    #: What was put by a copy that was just cancelled shows up in a listing by then.
    settle_seconds: float = 5.0
    #: An owner whose view of the cluster is older has stopped.
    view_seconds_max: float = 75.0
    #: Brokers with another metadata manager may read the log: DELETE_PARTITION_FINISHED waits
    #: until each is known not to.
    jvm_peers: bool = True
    write_seconds: float = 30.0
    storage_seconds: float = 120.0
    backoff_seconds_min: float = 1.0
    backoff_seconds_max: float = 300.0

    @property
    def own_patience_ms(self) -> int:
        """What this broker began longer ago is no copy, and no record of one, in flight."""
        return round(1000 * (self.copy_deadline_seconds + self.delivery_timeout_seconds))
