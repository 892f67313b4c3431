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
        params = api.RecordParams(records.encode(segment))
        self._ask("add_remote_log_segment_metadata", params, timeout_seconds)

    def update_remote_log_segment_metadata(
        self, update: SegmentUpdate, *, timeout_seconds: float | None = None
    ) -> None:
        """Append an update; returns once the daemon itself has applied it."""
        params = api.RecordParams(records.encode(update))
        self._ask("update_remote_log_segment_metadata", params, timeout_seconds)

    def put_remote_partition_delete_metadata(
        self, mark: PartitionDelete, *, timeout_seconds: float | None = None
    ) -> None:
        """Append a step of a user partition's removal."""
        params = api.RecordParams(records.encode(mark))
        self._ask("put_remote_partition_delete_metadata", params, timeout_seconds)

    def on_partition_leadership_changes(
        self,
        leaders: Iterable[TopicIdPartition],
        followers: Iterable[TopicIdPartition],
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Announce user partitions in addition to those announced before."""
        params = api.AssignmentParams(wire_of(leaders), wire_of(followers))
        self._ask("on_partition_leadership_changes", params, timeout_seconds)

    def on_stop_partitions(
        self, partitions: Iterable[TopicIdPartition], *, timeout_seconds: float | None = None
    ) -> None:
        """Take announced user partitions back."""
        params = api.PartitionsParams(wire_of(partitions))
        self._ask("on_stop_partitions", params, timeout_seconds)

    def replace_assignment(
        self,
        leaders: Iterable[TopicIdPartition],
        followers: Iterable[TopicIdPartition],
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Announce exactly these user partitions."""
        params = api.AssignmentParams(wire_of(leaders), wire_of(followers))
        self._ask("replace_assignment", params, timeout_seconds)

    def remote_log_segment_metadata(
        self,
        partition: TopicIdPartition,
        epoch: int,
        offset: int,
        *,
        timeout_seconds: float | None = None,
    ) -> SegmentMetadata | None:
        """Return the finished segment that holds an offset in a leader epoch."""
        params = api.EpochOffsetParams(api.Partition.of(partition), epoch, offset)
        return maybe_segment(self._ask("remote_log_segment_metadata", params, timeout_seconds))

    def highest_offset_for_epoch(
        self, partition: TopicIdPartition, epoch: int, *, timeout_seconds: float | None = None
    ) -> int | None:
        """Return the highest offset that was copied in a leader epoch."""
        params = api.EpochParams(api.Partition.of(partition), epoch)
        result: int | None = self._ask("highest_offset_for_epoch", params, timeout_seconds)
        return result

    def list_remote_log_segments(
        self,
        partition: TopicIdPartition,
        epoch: int | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> list[SegmentMetadata]:
        """Return the segments in Kafka's order; of all epochs when none is given."""
        params = api.EpochParams(api.Partition.of(partition), epoch)
        pages = self._pages("list_remote_log_segments", params, timeout_seconds)
        return [segment_of(record) for page in pages for record in page.records]

    def remote_log_size(
        self, partition: TopicIdPartition, epoch: int, *, timeout_seconds: float | None = None
    ) -> int:
        """Return the bytes of all segments of a leader epoch."""
        params = api.EpochParams(api.Partition.of(partition), epoch)
        result: int = self._ask("remote_log_size", params, timeout_seconds)
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
        params = api.EpochOffsetParams(api.Partition.of(partition), epoch, offset)
        return maybe_segment(self._ask("next_segment_with_txn_index", params, timeout_seconds))

    def is_ready(
        self, partition: TopicIdPartition, *, timeout_seconds: float | None = None
    ) -> bool:
        """Return whether look-ups of this partition are answered right now."""
        params = api.PartitionParams(api.Partition.of(partition))
        result: bool = self._ask("is_ready", params, timeout_seconds)
        return result

    def copy_log_segment_data(
        self,
        segment: SegmentMetadata,
        files: api.SegmentFiles,
        *,
        timeout_seconds: float | None = None,
    ) -> bytes | None:
        """Copy a segment whose COPY_SEGMENT_STARTED was added; returns its custom metadata."""
        params = api.CopyParams(records.encode(segment), files)
        result: bytes | None = self._ask(
            "copy_log_segment_data", params, timeout_seconds, JOB_SECONDS
        )
        return result

    def delete_log_segment_data(
        self, segment: SegmentMetadata, *, timeout_seconds: float | None = None
    ) -> None:
        """Delete the objects of a segment that is in DELETE_SEGMENT_STARTED."""
        params = api.RecordParams(records.encode(segment))
        self._ask("delete_log_segment_data", params, timeout_seconds, JOB_SECONDS)

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
        params = api.WholeCopyParams(records.encode(segment), files, repeats=repeats)
        return segment_of(self._ask("copy_segment", params, timeout_seconds, JOB_SECONDS))

    def delete_segment(
        self,
        partition: TopicIdPartition,
        segment_id: SegmentId,
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        """Do the whole job: DELETE_SEGMENT_STARTED, objects, DELETE_SEGMENT_FINISHED."""
        params = api.SegmentParams(api.Partition.of(partition), segment_id)
        self._ask("delete_segment", params, timeout_seconds, JOB_SECONDS)

    def resolve(
        self, selector: str, *, timeout_seconds: float | None = None
    ) -> list[TopicIdPartition]:
        """Return the user partitions that `topic-partition`, a topic id or Kafka's form names."""
        params = api.SelectorParams(selector, None)
        found = self._ask("resolve", params, timeout_seconds)
        return [partition.to_domain() for partition in found]

    def status(self, *, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Return what the daemon says of itself."""
        result: dict[str, Any] = self._ask("status", api.NoParams(), timeout_seconds)
        return result

    def partitions(self, *, timeout_seconds: float | None = None) -> list[dict[str, Any]]:
        """Return one row for each followed metadata partition."""
        result: list[dict[str, Any]] = self._ask("partitions", api.NoParams(), timeout_seconds)
        return result

    def user_partitions(
        self, topic: str | None = None, *, timeout_seconds: float | None = None
    ) -> Generator[api.UserPartition, None, None]:
        """Yield the user partitions that are known, of one topic or all."""
        params = api.TopicParams(topic)
        with closing(self._pages("user_partitions", params, timeout_seconds)) as pages:
            for page in pages:
                yield from page.partitions

    def segments(
        self, selector: str, epoch: int | None = None, *, timeout_seconds: float | None = None
    ) -> Generator[SegmentMetadata, None, None]:
        """Yield the segments of the partitions that a selector names."""
        params = api.SelectorParams(selector, epoch)
        with closing(self._pages("segments", params, timeout_seconds, JOB_SECONDS)) as pages:
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
        params = api.ExplainParams(selector, epoch, offset)
        result: dict[str, Any] = self._ask("explain", params, timeout_seconds)
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
        params = api.TailParams(metadata_partition, from_offset, follow)
        with closing(
            self._pages("tail", params, timeout_seconds, FOREVER if follow else None)
        ) as pages:
            for page in pages:
                yield from page.events

    def export(
        self, selector: str | None = None, *, timeout_seconds: float | None = None
    ) -> Generator[SegmentMetadata, None, None]:
        """Yield every live segment of the followed partitions, or of some."""
        params = api.ExportParams(selector)
        with closing(self._pages("export", params, timeout_seconds, JOB_SECONDS)) as pages:
            for page in pages:
                for record in page.records:
                    yield segment_of(record)

    def snapshot_now(
        self, metadata_partition: int | None = None, *, timeout_seconds: float | None = None
    ) -> list[dict[str, Any]]:
        """Write a snapshot now, of one metadata partition or all."""
        params = api.MetadataPartitionParams(metadata_partition)
        result: list[dict[str, Any]] = self._ask(
            "snapshot_now", params, timeout_seconds, JOB_SECONDS
        )
        return result

    def cleanup(self, *, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Return where removals stand, and what is stuck."""
        result: dict[str, Any] = self._ask("cleanup", api.NoParams(), timeout_seconds)
        return result

    def forecast(
        self, topic: str | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Return what a topic, or each, holds, and its next thirty days: bytes, requests, cost."""
        params = api.TopicParams(topic)
        result: dict[str, Any] = self._ask("forecast", params, timeout_seconds, JOB_SECONDS)
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
        params = api.PurgeParams(topic_id, execute, existing)
        result: dict[str, Any] = self._ask("purge", params, timeout_seconds, JOB_SECONDS)
        return result

    def topic_pause(
        self, topic: str, *, execute: bool = False, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Return what a pause of a topic's copies is about; with `execute` none begins any more."""
        params = api.PauseParams(topic, execute)
        result: dict[str, Any] = self._ask("topic_pause", params, timeout_seconds)
        return result

    def topic_resume(
        self, topic: str, *, execute: bool = False, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Return what ending a pause is about; with `execute` copies begin again."""
        params = api.PauseParams(topic, execute)
        result: dict[str, Any] = self._ask("topic_resume", params, timeout_seconds)
        return result

    def drain(self, *, timeout_seconds: float | None = None) -> None:
        """Let the daemon finish what it does and end."""
        self._ask("drain", api.NoParams(), timeout_seconds)

    def partition_retry(
        self, metadata_partition: int | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Try a failed metadata partition again."""
        params = api.MetadataPartitionParams(metadata_partition)
        result: dict[str, Any] = self._ask("partition_retry", params, timeout_seconds)
        return result

    def partition_rebuild(
        self, metadata_partition: int | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Replay a metadata partition from its log's start."""
        params = api.MetadataPartitionParams(metadata_partition)
        result: dict[str, Any] = self._ask(
            "partition_rebuild", params, timeout_seconds, JOB_SECONDS
        )
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
        params = api.AcceptLossParams(
            metadata_partition, everything, without_looking=without_looking
        )
        result: dict[str, Any] = self._ask("partition_accept_loss", params, timeout_seconds)
        return result

    def partition_end_hold(
        self,
        metadata_partition: int | None = None,
        *,
        execute: bool = False,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Return what accepted losses keep from being deleted; with `execute` that ends."""
        params = api.EndHoldParams(metadata_partition, execute)
        result: dict[str, Any] = self._ask("partition_end_hold", params, timeout_seconds)
        return result

    def log_recover(
        self,
        metadata_partition: int,
        *,
        execute: bool = False,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Return which segments that the log lost are there; with `execute` put them back."""
        params = api.RecoverParams(metadata_partition, execute)
        result: dict[str, Any] = self._ask("log_recover", params, timeout_seconds, JOB_SECONDS)
        return result

    def log_repair(
        self, metadata_partition: int | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """Set a corrupt log file aside and re-append what is known."""
        params = api.MetadataPartitionParams(metadata_partition)
        result: dict[str, Any] = self._ask("log_repair", params, timeout_seconds, JOB_SECONDS)
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
        params = api.FetchParams(records.encode(segment), start, end_inclusive)
        return self.open_bulk("fetch_log_segment", *self._within(params, timeout_seconds))

    def fetch_index(
        self, segment: SegmentMetadata, index: str, *, timeout_seconds: float | None = None
    ) -> BulkReader:
        """Return a reader of one index; its name is one of `codec.api.FetchIndexParams`."""
        params = api.FetchIndexParams(records.encode(segment), index)
        return self.open_bulk("fetch_index", *self._within(params, timeout_seconds))
