# Made of ../_async/client.py by `make client`: change that one.
"""The blocking client: one method for each method of the socket."""

from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Any

from rlmm_daemon.client._common import (
    FOREVER,
    JOB_SECONDS,
    maybe_segment,
    segment_of,
    wire_of,
)
from rlmm_daemon.client._sync.caller import Caller
from rlmm_daemon.client._sync.connection import BulkReader
from rlmm_daemon.codec import api, records
from rlmm_daemon.domain.ids import SegmentId, TopicId, TopicIdPartition
from rlmm_daemon.domain.partition_delete import PartitionDelete
from rlmm_daemon.domain.segment import SegmentMetadata, SegmentUpdate


class Client(Caller):
    """The daemon's socket as blocking calls.

    Segments come and go in the domain's words. For Kafka's record bytes use `call`, `stream` and
    `open_bulk` with the structs of `codec.api`. Every call ends in bounded time: `timeout_seconds`,
    else the options' default (an hour for whole jobs). Errors are those of `domain.errors`.
    """

    def add_remote_log_segment_metadata(
        self, segment: SegmentMetadata, *, timeout_seconds: float | None = None
    ) -> None:
        """Append a COPY_SEGMENT_STARTED; returns once the daemon itself has applied it."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.RecordParams(records.encode(segment), ms)
        self.call("add_remote_log_segment_metadata", params, seconds)

    def update_remote_log_segment_metadata(
        self, update: SegmentUpdate, *, timeout_seconds: float | None = None
    ) -> None:
        """Append an update; returns once the daemon itself has applied it."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.RecordParams(records.encode(update), ms)
        self.call("update_remote_log_segment_metadata", params, seconds)

    def put_remote_partition_delete_metadata(
        self, mark: PartitionDelete, *, timeout_seconds: float | None = None
    ) -> None:
        """Append a step of a user partition's removal."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.RecordParams(records.encode(mark), ms)
        self.call("put_remote_partition_delete_metadata", params, seconds)

    def on_partition_leadership_changes(
        self,
        leaders: Iterable[TopicIdPartition],
        followers: Iterable[TopicIdPartition],
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Announce user partitions in addition to those announced before."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.AssignmentParams(wire_of(leaders), wire_of(followers), ms)
        self.call("on_partition_leadership_changes", params, seconds)

    def on_stop_partitions(
        self, partitions: Iterable[TopicIdPartition], *, timeout_seconds: float | None = None
    ) -> None:
        """Take announced user partitions back."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.PartitionsParams(wire_of(partitions), ms)
        self.call("on_stop_partitions", params, seconds)

    def replace_assignment(
        self,
        leaders: Iterable[TopicIdPartition],
        followers: Iterable[TopicIdPartition],
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Announce exactly these user partitions."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.AssignmentParams(wire_of(leaders), wire_of(followers), ms)
        self.call("replace_assignment", params, seconds)

    def remote_log_segment_metadata(
        self,
        partition: TopicIdPartition,
        epoch: int,
        offset: int,
        *,
        timeout_seconds: float | None = None,
    ) -> SegmentMetadata | None:
        """Return the finished segment that holds an offset in a leader epoch."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.EpochOffsetParams(api.Partition.of(partition), epoch, offset, ms)
        return maybe_segment(self.call("remote_log_segment_metadata", params, seconds))

    def highest_offset_for_epoch(
        self, partition: TopicIdPartition, epoch: int, *, timeout_seconds: float | None = None
    ) -> int | None:
        """Return the highest offset that was copied in a leader epoch."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.EpochParams(api.Partition.of(partition), epoch, ms)
        result: int | None = self.call("highest_offset_for_epoch", params, seconds)
        return result

    def list_remote_log_segments(
        self,
        partition: TopicIdPartition,
        epoch: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> list[SegmentMetadata]:
        """Return the segments in Kafka's order; of all epochs when none is given."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.EpochParams(api.Partition.of(partition), epoch, ms)
        pages = self.stream("list_remote_log_segments", params, seconds)
        return [segment_of(record) for page in pages for record in page.records]

    def remote_log_size(
        self, partition: TopicIdPartition, epoch: int, *, timeout_seconds: float | None = None
    ) -> int:
        """Return the bytes of all segments of a leader epoch."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.EpochParams(api.Partition.of(partition), epoch, ms)
        result: int = self.call("remote_log_size", params, seconds)
        return result

    def next_segment_with_txn_index(
        self,
        partition: TopicIdPartition,
        epoch: int,
        offset: int,
        *,
        timeout_seconds: float | None = None,
    ) -> SegmentMetadata | None:
        """Return the next segment at or behind an offset that has a transaction index."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.EpochOffsetParams(api.Partition.of(partition), epoch, offset, ms)
        return maybe_segment(self.call("next_segment_with_txn_index", params, seconds))

    def is_ready(
        self, partition: TopicIdPartition, *, timeout_seconds: float | None = None
    ) -> bool:
        """Return whether look-ups of this partition are answered right now."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.PartitionParams(api.Partition.of(partition), ms)
        result: bool = self.call("is_ready", params, seconds)
        return result

    def copy_log_segment_data(
        self,
        segment: SegmentMetadata,
        files: api.SegmentFiles,
        *,
        timeout_seconds: float | None = None,
    ) -> bytes | None:
        """Copy a segment whose COPY_SEGMENT_STARTED was added; returns its custom metadata."""
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.CopyParams(records.encode(segment), files, ms)
        result: bytes | None = self.call("copy_log_segment_data", params, seconds)
        return result

    def delete_log_segment_data(
        self, segment: SegmentMetadata, *, timeout_seconds: float | None = None
    ) -> None:
        """Delete the objects of a segment that is in DELETE_SEGMENT_STARTED."""
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.RecordParams(records.encode(segment), ms)
        self.call("delete_log_segment_data", params, seconds)

    def copy_segment(
        self,
        segment: SegmentMetadata,
        files: api.SegmentFiles,
        *,
        repeats: bool = False,
        timeout_seconds: float | None = None,
    ) -> SegmentMetadata:
        """Do the whole job: STARTED, copy, FINISHED; returns the finished segment.

        Each copy takes an id of its own, also after one that failed. `repeats`: begin nothing, wait
        for the copy that runs under this id, or return what was finished under it.
        """
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.WholeCopyParams(records.encode(segment), files, ms, repeats)
        return segment_of(self.call("copy_segment", params, seconds))

    def delete_segment(
        self,
        partition: TopicIdPartition,
        segment_id: SegmentId,
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Do the whole job: DELETE_SEGMENT_STARTED, objects, DELETE_SEGMENT_FINISHED."""
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.SegmentParams(api.Partition.of(partition), segment_id, ms)
        self.call("delete_segment", params, seconds)

    def resolve(
        self, selector: str, *, timeout_seconds: float | None = None
    ) -> list[TopicIdPartition]:
        """Return the user partitions that `topic-partition`, a topic id or Kafka's form names."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.SelectorParams(selector, None, ms)
        found = self.call("resolve", params, seconds)
        return [partition.to_domain() for partition in found]

    def status(self, *, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Return what the daemon says of itself."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.NoParams(ms)
        result: dict[str, Any] = self.call("status", params, seconds)
        return result

    def partitions(self, *, timeout_seconds: float | None = None) -> list[dict[str, Any]]:
        """Return one row for each followed metadata partition."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.NoParams(ms)
        result: list[dict[str, Any]] = self.call("partitions", params, seconds)
        return result

    def user_partitions(
        self, topic: str | None = None, *, timeout_seconds: float | None = None
    ) -> Generator[api.UserPartition, None, None]:
        """Yield the user partitions that are known, of one topic or all."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.TopicParams(topic, ms)
        with closing(self.stream("user_partitions", params, seconds)) as pages:
            for page in pages:
                yield from page.partitions

    def segments(
        self, selector: str, epoch: int | None = None, *, timeout_seconds: float | None = None
    ) -> Generator[SegmentMetadata, None, None]:
        """Yield the segments of the partitions that a selector names."""
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.SelectorParams(selector, epoch, ms)
        with closing(self.stream("segments", params, seconds)) as pages:
            for page in pages:
                for record in page.records:
                    yield segment_of(record)

    def explain(
        self,
        selector: str,
        epoch: int | None = None,
        offset: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Return verdict, cause, evidence and next step; for one offset too, if one is given."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.ExplainParams(selector, epoch, offset, ms)
        result: dict[str, Any] = self.call("explain", params, seconds)
        return result

    def tail(
        self,
        metadata_partition: int | None = None,
        from_offset: int | None = None,
        *,
        follow: bool = False,
        timeout_seconds: float | None = None,
    ) -> Generator[api.TailEvent, None, None]:
        """Yield records of the metadata topic and what became of them."""
        seconds, ms = self._deadline(timeout_seconds, FOREVER if follow else None)
        params = api.TailParams(metadata_partition, from_offset, follow, ms)
        with closing(self.stream("tail", params, seconds)) as pages:
            for page in pages:
                yield from page.events

    def export(
        self, selector: str | None = None, *, timeout_seconds: float | None = None
    ) -> Generator[SegmentMetadata, None, None]:
        """Yield every live segment of the followed partitions, or of some."""
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.ExportParams(selector, ms)
        with closing(self.stream("export", params, seconds)) as pages:
            for page in pages:
                for record in page.records:
                    yield segment_of(record)

    def snapshot_now(
        self, metadata_partition: int | None = None, *, timeout_seconds: float | None = None
    ) -> list[dict[str, Any]]:
        """Write a snapshot now, of one metadata partition or all."""
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.MetadataPartitionParams(metadata_partition, ms)
        result: list[dict[str, Any]] = self.call("snapshot_now", params, seconds)
        return result

    def cleanup(self, *, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Return where removals stand, and what is stuck."""
        seconds, ms = self._deadline(timeout_seconds)
        result: dict[str, Any] = self.call("cleanup", api.NoParams(ms), seconds)
        return result

    def purge(
        self,
        topic_id: TopicId,
        *,
        execute: bool = False,
        existing: bool = False,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Return what there is of a topic; with `execute` its remote data is to go."""
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.PurgeParams(topic_id, execute, existing, ms)
        result: dict[str, Any] = self.call("purge", params, seconds)
        return result

    def drain(self, *, timeout_seconds: float | None = None) -> None:
        """Let the daemon finish what it does and end."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.NoParams(ms)
        self.call("drain", params, seconds)

    def partition_retry(
        self, metadata_partition: int | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Try a failed metadata partition again."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.MetadataPartitionParams(metadata_partition, ms)
        result: dict[str, Any] = self.call("partition_retry", params, seconds)
        return result

    def partition_rebuild(
        self, metadata_partition: int | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Replay a metadata partition from its log's start."""
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.MetadataPartitionParams(metadata_partition, ms)
        result: dict[str, Any] = self.call("partition_rebuild", params, seconds)
        return result

    def partition_accept_loss(
        self,
        metadata_partition: int | None = None,
        *,
        everything: bool = False,
        without_looking: bool = False,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Give up events that are missing from the log, for good."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.AcceptLossParams(metadata_partition, everything, ms, without_looking)
        result: dict[str, Any] = self.call("partition_accept_loss", params, seconds)
        return result

    def partition_end_hold(
        self,
        metadata_partition: int | None = None,
        *,
        execute: bool = False,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Return what accepted losses keep from being deleted; with `execute` that ends."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.EndHoldParams(metadata_partition, execute, ms)
        result: dict[str, Any] = self.call("partition_end_hold", params, seconds)
        return result

    def log_recover(
        self,
        metadata_partition: int,
        *,
        execute: bool = False,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Return which segments that the log lost are there; with `execute` put them back."""
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.RecoverParams(metadata_partition, execute, ms)
        result: dict[str, Any] = self.call("log_recover", params, seconds)
        return result

    def log_repair(
        self, metadata_partition: int | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Set a corrupt log file aside and re-append what is known."""
        seconds, ms = self._deadline(timeout_seconds, JOB_SECONDS)
        params = api.MetadataPartitionParams(metadata_partition, ms)
        result: dict[str, Any] = self.call("log_repair", params, seconds)
        return result

    def fetch_log_segment(
        self,
        segment: SegmentMetadata,
        start: int = 0,
        end_inclusive: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> BulkReader:
        """Return a reader of a range of a segment's log."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.FetchParams(records.encode(segment), start, end_inclusive, ms)
        return self.open_bulk("fetch_log_segment", params, seconds)

    def fetch_index(
        self, segment: SegmentMetadata, index: str, *, timeout_seconds: float | None = None
    ) -> BulkReader:
        """Return a reader of one index; its name is one of `codec.api.FetchIndexParams`."""
        seconds, ms = self._deadline(timeout_seconds)
        params = api.FetchIndexParams(records.encode(segment), index, ms)
        return self.open_bulk("fetch_index", params, seconds)
