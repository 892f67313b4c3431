"""The cluster's image: what each record does to it, transactions, and what ends it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmm_daemon.codec.kraft.cluster_records import Kind, Passed, Record
from rlmm_daemon.core.cluster_image import image as rules
from rlmm_daemon.core.cluster_image.image import Broker, ClusterImage, Topic
from rlmm_daemon.domain.errors import LogCorrupt, Overloaded
from rlmm_daemon.domain.ids import TopicId
from tests.support.cluster_log import ABORT, BEGIN, END, partition, record, removed, topic

A, B = TopicId(b"a" * 16), TopicId(b"b" * 16)
REGISTERED = record(Kind.REGISTER_BROKER, BrokerId=1, BrokerEpoch=7, Fenced=True)


def folded(*records: Record | Passed) -> ClusterImage:
    image = ClusterImage()
    for offset, each in enumerate(records):
        image.apply(offset, each)
    return image


def test_a_topic_comes_with_its_partitions_and_goes_with_them():
    image = folded(topic(A), partition(A, 0, 3), partition(A, 1), topic(B, "other"))
    assert image.topics == {A: Topic("orders", {0: 3, 1: 1}), B: Topic("other")}
    assert image.partition_count == 2
    image.apply(9, removed(A))
    assert (list(image.topics), image.partition_count, dict(image.removed)) == ([B], 0, {A: 9})


def test_a_change_without_a_leader_leaves_it_as_it_is():
    same = record(Kind.PARTITION_CHANGE, TopicId=A, PartitionId=0, Isr=(1, 2))
    none = record(Kind.PARTITION_CHANGE, TopicId=A, PartitionId=0, Leader=-1)
    image = folded(topic(A), partition(A, 0, 3), same)
    assert image.topics[A].leaders == {0: 3}
    image.apply(3, none)
    assert image.topics[A].leaders == {0: -1}


@pytest.mark.parametrize(
    ("change", "fenced"),
    [
        (record(Kind.UNFENCE_BROKER, Id=1, Epoch=7), False),
        (record(Kind.FENCE_BROKER, Id=1, Epoch=7), True),
        (record(Kind.BROKER_REGISTRATION_CHANGE, BrokerId=1, BrokerEpoch=7, Fenced=-1), False),
        (record(Kind.BROKER_REGISTRATION_CHANGE, BrokerId=1, BrokerEpoch=7, Fenced=1), True),
        (record(Kind.BROKER_REGISTRATION_CHANGE, BrokerId=1, BrokerEpoch=7), True),
    ],
)
def test_brokers_are_fenced_and_unfenced(change, fenced):
    assert folded(REGISTERED, change).brokers == {1: Broker(7, fenced=fenced)}


def test_a_broker_goes_and_features_have_levels():
    gone = record(Kind.UNREGISTER_BROKER, BrokerId=1, BrokerEpoch=7)
    level = record(Kind.FEATURE_LEVEL, Name="metadata.version", FeatureLevel=29)
    off = record(Kind.FEATURE_LEVEL, Name="elr", FeatureLevel=0)
    image = folded(REGISTERED, gone, level, off)
    assert (image.brokers, image.features) == ({}, {"metadata.version": 29})


def test_a_transaction_counts_when_it_ended_and_not_before():
    image = folded(topic(B), BEGIN, topic(A), partition(A), removed(B))
    assert (list(image.topics), image.in_transaction) == ([B], True)
    assert image.known([A, B]) == {A, B}, "one that is coming is not gone"
    image.apply(9, END)
    assert (list(image.topics), image.in_transaction) == ([A], False)
    assert image.removed == {B: 4}, "where its record stands"


def test_an_aborted_transaction_never_counts():
    image = folded(topic(B), BEGIN, topic(A), removed(B), ABORT)
    assert (list(image.topics), image.in_transaction) == ([B], False)
    assert not image.known([A])


@pytest.mark.parametrize(
    "records",
    [
        (BEGIN, BEGIN),
        (END,),
        (ABORT,),
        (topic(A), topic(A)),
        (partition(A),),
        (removed(A),),
        (topic(A), record(Kind.PARTITION_CHANGE, TopicId=A, PartitionId=1)),
        (record(Kind.FENCE_BROKER, Id=1, Epoch=7),),
        (REGISTERED, record(Kind.FENCE_BROKER, Id=1, Epoch=6)),
        (REGISTERED, record(Kind.UNREGISTER_BROKER, BrokerId=1, BrokerEpoch=8)),
        (BEGIN, removed(A), END),
        (REGISTERED, record(
            Kind.BROKER_REGISTRATION_CHANGE, BrokerId=1, BrokerEpoch=7, Fenced=2)),
    ],
)  # fmt: skip
def test_a_contradiction_ends_the_image(records):
    with pytest.raises(LogCorrupt, match=f"offset {len(records) - 1}|offset 1 "):
        folded(*records)


@pytest.mark.parametrize(
    ("bound", "records"),
    [
        ("TOPICS_MAX", (topic(A), topic(B))),
        ("PARTITIONS_MAX", (topic(A), partition(A, 0), partition(A, 1))),
        ("PENDING_MAX", (BEGIN, topic(A), topic(B))),
        ("BROKERS_MAX", (REGISTERED, record(Kind.REGISTER_BROKER, BrokerId=2))),
        ("FEATURES_MAX", tuple(
            record(Kind.FEATURE_LEVEL, Name=name, FeatureLevel=1) for name in "ab")),
    ],
)  # fmt: skip
def test_beyond_a_bound_there_is_no_image(monkeypatch, bound, records):
    monkeypatch.setattr(rules, bound, 1)
    with pytest.raises(Overloaded, match="more than 1"):
        folded(*records)


def test_the_oldest_removals_are_forgotten(monkeypatch):
    monkeypatch.setattr(rules, "REMOVED_MAX", 1)
    image = folded(topic(A), topic(B), removed(A), removed(B))
    assert image.removed == {B: 3}


def test_types_that_are_not_known_are_named():
    assert folded(Passed(99, known=False), Passed(4, known=True)).unknown_kinds == {99}


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.booleans()), max_size=30))
def test_in_one_transaction_or_one_by_one_the_image_is_the_same(steps):
    there: set[TopicId] = set()
    records = []
    for topic_id, comes in steps:
        if comes and topic_id not in there:
            records += [topic(topic_id), partition(topic_id)]
            there.add(topic_id)
        elif not comes and topic_id in there:
            records.append(removed(topic_id))
            there.discard(topic_id)
    single, together = folded(*records), folded(BEGIN, *records, END)
    assert single.topics == together.topics
    assert single.topics.keys() == there
    assert single.partition_count == together.partition_count == len(there)
