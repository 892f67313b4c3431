"""A controllers' log that tests write: records by Kafka's names, in batches as they are fetched."""

from typing import Any

from rlmm_daemon.codec import batches
from rlmm_daemon.codec.kraft import cluster_records, log_batches
from rlmm_daemon.codec.kraft.cluster_records import TABLES, Kind, Record
from rlmm_daemon.core.raft.log_facts import Batch
from rlmm_daemon.domain.ids import TopicId


def record(kind: Kind, **fields: Any) -> Record:
    return Record(kind, TABLES[kind].fields.full(fields, TABLES[kind].newest))


def topic(topic_id: TopicId, name: str = "orders") -> Record:
    return record(Kind.TOPIC, TopicId=topic_id, Name=name)


def partition(topic_id: TopicId, number: int = 0, leader: int = 1) -> Record:
    return record(Kind.PARTITION, TopicId=topic_id, PartitionId=number, Leader=leader)


def removed(topic_id: TopicId) -> Record:
    return record(Kind.REMOVE_TOPIC, TopicId=topic_id)


BEGIN = record(Kind.BEGIN_TRANSACTION, Name="topics")
END = record(Kind.END_TRANSACTION)
ABORT = record(Kind.ABORT_TRANSACTION, Reason="a new leader")


def value(each: Record) -> bytes:
    return cluster_records.pack(each, TABLES[each.kind].newest)


def packed(*records: Record | bytes, base: int, epoch: int = 1) -> bytes:
    pairs = [(None, each if isinstance(each, bytes) else value(each)) for each in records]
    return batches.build_keyed(pairs, base_offset=base, leader_epoch=epoch, timestamp_ms=0)


def batch(*records: Record | bytes, base: int, epoch: int = 1) -> Batch:
    (found,) = log_batches.read(packed(*records, base=base, epoch=epoch))
    return found
