"""A cluster's image: the records of `__cluster_metadata`, folded up to an offset and epoch.

Records of a transaction count when it ended, all at once; of one that was aborted, never. What
contradicts the image (a partition of a topic that is not there) ends it: it is no image of this
log then, and the adapter begins anew with a snapshot.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from rlmm_daemon.codec.kraft.cluster_records import SAME_LEADER, Kind, Passed, Record
from rlmm_daemon.codec.kraft.schema import Message
from rlmm_daemon.core.raft.log_facts import BEGINNING, LogPoint
from rlmm_daemon.domain.errors import LogCorrupt, Overloaded
from rlmm_daemon.domain.ids import BrokerId, TopicId, uuid_text

#: More than any cluster has; beyond it there is no image rather than no memory.
TOPICS_MAX: Final = 1_000_000
PARTITIONS_MAX: Final = 5_000_000
#: Of one transaction that has not ended.
PENDING_MAX: Final = 1_000_000
BROKERS_MAX: Final = 100_000
FEATURES_MAX: Final = 1_000
#: Removed topics whose offset is remembered, for people; that they are gone needs no memory.
REMOVED_MAX: Final = 10_000


class Topic(msgspec.Struct):
    """A topic that is there."""

    name: str
    #: Partition -> broker that leads it, -1: none.
    leaders: dict[int, int] = msgspec.field(default_factory=dict)


class Broker(msgspec.Struct, frozen=True):
    """A registered broker: its registration's epoch, and whether it may serve."""

    epoch: int
    fenced: bool


class ClusterImage:
    """What the log says up to `at`; only whole batches are taken in."""

    def __init__(self, at: LogPoint = BEGINNING) -> None:
        """`at`: where the snapshot ends that is to be taken in first."""
        self.at = at
        self.topics: dict[TopicId, Topic] = {}
        self.partition_count = 0
        self.brokers: dict[BrokerId, Broker] = {}
        #: Feature -> its finalized level.
        self.features: dict[str, int] = {}
        #: Topic id -> where its RemoveTopicRecord stands; the oldest are forgotten.
        self.removed: OrderedDict[TopicId, int] = OrderedDict()
        #: Types that Kafka 4.3.1 has not: what they mean is not known.
        self.unknown_kinds: set[int] = set()
        self._pending: list[tuple[int, Record]] | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether records wait for their transaction's end."""
        return self._pending is not None

    def apply(self, offset: int, record: Record | Passed) -> None:
        """Take in the record at an offset.

        Raises:
            LogCorrupt: it contradicts what came before.
            Overloaded: the cluster is larger than an image may be.
        """
        if isinstance(record, Passed):
            if not record.known and len(self.unknown_kinds) < FEATURES_MAX:
                self.unknown_kinds.add(record.api_key)
            return
        match record.kind:
            case Kind.BEGIN_TRANSACTION:
                if self._pending is not None:
                    raise _contradiction("a transaction begins within another", offset)
                self._pending = []
            case Kind.END_TRANSACTION:
                for at, each in self._ended(offset):
                    self._fold(at, each)
            case Kind.ABORT_TRANSACTION:
                self._ended(offset)
            case _ if self._pending is not None:
                if len(self._pending) >= PENDING_MAX:
                    raise Overloaded(f"a transaction of more than {PENDING_MAX} records")
                self._pending.append((offset, record))
            case _:
                self._fold(offset, record)

    def known(self, topic_ids: Iterable[TopicId]) -> frozenset[TopicId]:
        """Return those ids that are there, or will be once their transaction ends."""
        coming = {
            each.fields["TopicId"] for _, each in self._pending or () if each.kind is Kind.TOPIC
        }
        return frozenset(each for each in topic_ids if each in self.topics or each in coming)

    def reached(self, at: LogPoint) -> None:
        """Say that all before this point was taken in."""
        self.at = at

    def _ended(self, offset: int) -> list[tuple[int, Record]]:
        if self._pending is None:
            raise _contradiction("a transaction ends that did not begin", offset)
        records, self._pending = self._pending, None
        return records

    def _fold(self, offset: int, record: Record) -> None:
        fields = record.fields
        match record.kind:
            case Kind.TOPIC:
                self._topic(offset, fields)
            case Kind.PARTITION:
                self._partition(offset, fields)
            case Kind.PARTITION_CHANGE:
                self._partition_change(offset, fields)
            case Kind.REMOVE_TOPIC:
                self._remove_topic(offset, fields)
            case Kind.REGISTER_BROKER:
                self._register_broker(fields)
            case Kind.UNREGISTER_BROKER:
                self._unregister_broker(offset, fields)
            case Kind.FENCE_BROKER | Kind.UNFENCE_BROKER:
                fenced = record.kind is Kind.FENCE_BROKER
                self._set_fenced(offset, fields["Id"], fields["Epoch"], fenced=fenced)
            case Kind.BROKER_REGISTRATION_CHANGE:
                self._change_registration(offset, fields)
            case Kind.FEATURE_LEVEL:
                self._feature_level(fields)
            case _:
                raise AssertionError(f"{record.kind.name} is read, and folded")

    def _topic(self, offset: int, fields: Message) -> None:
        topic_id = TopicId(fields["TopicId"])
        if topic_id in self.topics:
            raise _contradiction(f"topic {uuid_text(topic_id)} is created twice", offset)
        if len(self.topics) >= TOPICS_MAX:
            raise Overloaded(f"a cluster of more than {TOPICS_MAX} topics")
        self.topics[topic_id] = Topic(fields["Name"])

    def _existing(self, offset: int, fields: Message) -> Topic:
        topic = self.topics.get(TopicId(fields["TopicId"]))
        if topic is None:
            named = uuid_text(fields["TopicId"])
            raise _contradiction(f"topic {named} is not there", offset)
        return topic

    def _partition(self, offset: int, fields: Message) -> None:
        leaders = self._existing(offset, fields).leaders
        if fields["PartitionId"] not in leaders:
            if self.partition_count >= PARTITIONS_MAX:
                raise Overloaded(f"a cluster of more than {PARTITIONS_MAX} partitions")
            self.partition_count += 1
        leaders[fields["PartitionId"]] = fields["Leader"]

    def _partition_change(self, offset: int, fields: Message) -> None:
        leaders = self._existing(offset, fields).leaders
        if fields["PartitionId"] not in leaders:
            raise _contradiction(f"partition {fields['PartitionId']} is not there", offset)
        if fields["Leader"] != SAME_LEADER:
            leaders[fields["PartitionId"]] = fields["Leader"]

    def _remove_topic(self, offset: int, fields: Message) -> None:
        self.partition_count -= len(self._existing(offset, fields).leaders)
        topic_id = TopicId(fields["TopicId"])
        del self.topics[topic_id]
        self.removed[topic_id] = offset
        while len(self.removed) > REMOVED_MAX:
            self.removed.popitem(last=False)

    def _register_broker(self, fields: Message) -> None:
        broker_id = BrokerId(fields["BrokerId"])
        if broker_id not in self.brokers and len(self.brokers) >= BROKERS_MAX:
            raise Overloaded(f"a cluster of more than {BROKERS_MAX} brokers")
        self.brokers[broker_id] = Broker(fields["BrokerEpoch"], fenced=fields["Fenced"])

    def _registered(self, offset: int, broker_id: int, epoch: int) -> Broker:
        broker = self.brokers.get(BrokerId(broker_id))
        if broker is None or broker.epoch != epoch:
            raise _contradiction(f"broker {broker_id} has no registration {epoch}", offset)
        return broker

    def _unregister_broker(self, offset: int, fields: Message) -> None:
        self._registered(offset, fields["BrokerId"], fields["BrokerEpoch"])
        del self.brokers[BrokerId(fields["BrokerId"])]

    def _set_fenced(self, offset: int, broker_id: int, epoch: int, *, fenced: bool) -> None:
        self._registered(offset, broker_id, epoch)
        self.brokers[BrokerId(broker_id)] = Broker(epoch, fenced=fenced)

    def _change_registration(self, offset: int, fields: Message) -> None:
        # 1 fences, -1 unfences, 0 leaves it as it is (BrokerRegistrationFencingChange).
        broker_id, epoch, change = fields["BrokerId"], fields["BrokerEpoch"], fields["Fenced"]
        broker = self._registered(offset, broker_id, epoch)
        if change not in (-1, 0, 1):
            raise _contradiction(f"a change of fencing of {change}", offset)
        fenced = broker.fenced if change == 0 else change == 1
        self._set_fenced(offset, broker_id, epoch, fenced=fenced)

    def _feature_level(self, fields: Message) -> None:
        name, level = fields["Name"], fields["FeatureLevel"]
        if level == 0:
            self.features.pop(name, None)
            return
        if name not in self.features and len(self.features) >= FEATURES_MAX:
            raise Overloaded(f"a cluster of more than {FEATURES_MAX} features")
        self.features[name] = level


def _contradiction(what: str, offset: int) -> LogCorrupt:
    return LogCorrupt(f"{what} (offset {offset} of the controllers' log)")
