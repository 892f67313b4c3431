"""The segments that a real Kafka tiered, put into a log directory; and larger ones like them."""

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from rlmm_daemon.codec import api
from rlmm_daemon.domain.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    SegmentId,
    TopicId,
    TopicIdPartition,
    uuid_bytes,
)
from rlmm_daemon.domain.segment import SegmentMetadata

DATA: Final = Path(__file__).resolve().parents[1] / "data" / "segments"
#: A file's suffix in the log directory, by the index name of `fetch_index`.
INDEX_SUFFIXES: Final[Mapping[str, str]] = {
    "OFFSET": ".index",
    "TIMESTAMP": ".timeindex",
    "TRANSACTION": ".txnindex",
    "PRODUCER_SNAPSHOT": ".snapshot",
    "LEADER_EPOCH": ".leader_epoch_checkpoint",
}
#: Of a batch's header: length, last offset delta, newest timestamp.
_HEADER: Final = struct.Struct(">8xi4xx4x2xi8xq")
_LENGTH_END: Final = 12
#: As `log.index.interval.bytes`.
_INDEX_INTERVAL: Final = 4096
_WRITE_BYTES: Final = 4 * 1024 * 1024


class KafkaSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment on the broker's disk: its COPY_SEGMENT_STARTED metadata and its files."""

    metadata: SegmentMetadata
    #: Path without suffix.
    stem: str
    checkpoint: bytes
    #: SHA-256 of each file, by suffix.
    sha256: Mapping[str, str]

    @property
    def files(self) -> api.SegmentFiles:
        transactions = None if self.metadata.txn_index_empty else f"{self.stem}.txnindex"
        return api.SegmentFiles(
            log=f"{self.stem}.log",
            offset_index=f"{self.stem}.index",
            time_index=f"{self.stem}.timeindex",
            producer_snapshot=f"{self.stem}.snapshot",
            leader_epoch_checkpoint=self.checkpoint,
            transaction_index=transactions,
        )

    @property
    def indexes(self) -> list[str]:
        """The names of its indexes; without TRANSACTION where it has none."""
        empty = self.metadata.txn_index_empty
        return [name for name in INDEX_SUFFIXES if not (empty and name == "TRANSACTION")]


def place(log_dir: Path) -> dict[TopicIdPartition, list[KafkaSegment]]:
    """Copy the recorded segments below a log directory; return them by partition, by offset."""
    manifest = json.loads((DATA / "manifest.json").read_text())
    placed = {}
    for row in manifest["partitions"]:
        partition = TopicIdPartition(
            TopicId(uuid_bytes(row["topicId"])), row["topic"], row["partition"]
        )
        name = f"{partition.topic}-{partition.partition}"
        shutil.copytree(DATA / name, log_dir / name, dirs_exist_ok=True)
        placed[partition] = [_segment(partition, log_dir / name, each) for each in row["segments"]]
    return placed


def lookups() -> Iterator[dict[str, Any]]:
    """Yield what Kafka's own metadata manager was asked about these segments, and answered."""
    with (DATA / "lookups.jsonl").open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _segment(partition: TopicIdPartition, directory: Path, row: dict[str, Any]) -> KafkaSegment:
    epochs = row["segmentLeaderEpochs"].items()
    stem = str(directory / f"{row['startOffset']:020}")
    return KafkaSegment(
        metadata=SegmentMetadata(
            partition=partition,
            segment_id=SegmentId(uuid_bytes(row["segmentId"])),
            start_offset=Offset(row["startOffset"]),
            end_offset=Offset(row["endOffset"]),
            broker_id=BrokerId(row["brokerId"]),
            max_timestamp_ms=row["maxTimestampMs"],
            event_timestamp_ms=row["eventTimestampMs"],
            segment_leader_epochs={LeaderEpoch(int(e)): Offset(o) for e, o in epochs},
            segment_size_bytes=row["segmentSizeInBytes"],
            txn_index_empty=row["txnIndexEmpty"],
        ),
        stem=stem,
        checkpoint=Path(f"{stem}.leader_epoch_checkpoint").read_bytes(),
        sha256={suffix: file["sha256"] for suffix, file in row["files"].items()},
    )


def enlarge(pattern: KafkaSegment, segment_id: SegmentId, size_bytes: int) -> KafkaSegment:
    """Write a valid segment of about that size behind a recorded one, from its batches repeated.

    Base offset and leader epoch stand outside a batch's CRC, so rewritten ones leave it valid.
    """
    (epoch,) = list(pattern.metadata.segment_leader_epochs)[-1:]
    start = pattern.metadata.end_offset + 1
    stem = str(Path(pattern.stem).with_name(f"{start:020}"))
    last, size, newest = _repeat(Path(f"{pattern.stem}.log").read_bytes(), stem, start, size_bytes)
    shutil.copyfile(f"{pattern.stem}.snapshot", f"{stem}.snapshot")
    suffixes = (".log", ".index", ".timeindex", ".snapshot")
    return KafkaSegment(
        metadata=replace(
            pattern.metadata,
            segment_id=segment_id,
            start_offset=Offset(start),
            end_offset=Offset(last),
            max_timestamp_ms=newest,
            segment_leader_epochs={epoch: Offset(start)},
            segment_size_bytes=size,
            txn_index_empty=True,
        ),
        stem=stem,
        checkpoint=pattern.checkpoint,
        sha256={suffix: sha256_of(f"{stem}{suffix}") for suffix in suffixes}
        | {".leader_epoch_checkpoint": hashlib.sha256(pattern.checkpoint).hexdigest()},
    )


def _repeat(pattern: bytes, stem: str, start: int, size_bytes: int) -> tuple[int, int, int]:
    """Write log and indexes; return last offset, size, and newest timestamp."""
    batches = list(_batches(pattern))
    offset, size, newest, indexed = start, 0, -1, 0
    pending = bytearray()
    offsets, times = bytearray(), bytearray()
    with Path(f"{stem}.log").open("wb") as log:
        while size < size_bytes:
            for delta, max_time, body in batches:
                if size - indexed > _INDEX_INTERVAL:
                    offsets += struct.pack(">ii", offset + delta - start, size)
                    times += struct.pack(">qi", max_time, offset + delta - start)
                    indexed = size
                pending += struct.pack(">q", offset) + body
                offset, size = offset + delta + 1, size + 8 + len(body)
                newest = max(newest, max_time)
            if len(pending) >= _WRITE_BYTES or size >= size_bytes:
                log.write(pending)
                pending.clear()
        log.flush()
        os.fsync(log.fileno())
    Path(f"{stem}.index").write_bytes(offsets)
    Path(f"{stem}.timeindex").write_bytes(times)
    return offset - 1, size, newest


def _batches(log: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield each batch's last offset delta, newest timestamp, and bytes behind the base offset."""
    at = 0
    while at < len(log):
        length, delta, newest = _HEADER.unpack_from(log, at)
        end = at + _LENGTH_END + length
        yield delta, newest, log[at + 8 : end]
        at = end


def sha256_of(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
