"""Metrics by topic, whose label is bounded: one topic more than fits is counted with the others."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

_LABELS: Final = ("topic",)


class TopicMetrics:
    """Topics.

    The `admin.topics_max` largest have a label of their own for as long as they are there; the
    rest are counted together as `(other)`. Segments and bytes are those that this daemon's log
    names: beside Kafka's log each broker's daemon knows the metadata partitions that it follows, so
    a topic's size in the cluster is a maximum over daemons by topic, not a sum.
    """

    def __init__(self, into: CollectorRegistry) -> None:
        #: By `rlmm pause`, at this daemon.
        self.paused = Gauge("rlmm_topics_paused", "Topics whose copies are paused.", registry=into)
        self.oldest_pause = Gauge(
            "rlmm_topics_paused_oldest_seconds",
            "How long copies of some topic have been paused here; 0: of none.",
            registry=into,
        )
        self.refused = Counter(
            "rlmm_copies_paused_total", "Copies refused by a pause.", registry=into
        )
        #: Of one that is followed in part, those of that part.
        self.segments = Gauge(
            "rlmm_topic_segments", "Segments in COPY_SEGMENT_FINISHED.", _LABELS, registry=into
        )
        self.size = Gauge(
            "rlmm_topic_bytes", "Size of COPY_SEGMENT_FINISHED segments.", _LABELS, registry=into
        )
        self.copied = Counter(
            "rlmm_topic_copied_bytes_total", "Bytes copied by this daemon.", _LABELS, registry=into
        )
        #: Cancelled ones are none.
        self.failed = Counter(
            "rlmm_topic_copies_failed_total", "Copies that failed here.", _LABELS, registry=into
        )
        #: Of logs; what a broker reads from a local file itself is not counted.
        self.fetched = Counter(
            "rlmm_topic_fetched_bytes_total", "Bytes sent to readers.", _LABELS, registry=into
        )
        #: 0 while none is under way.
        self.oldest_copy = Gauge(
            "rlmm_topic_oldest_copy_seconds",
            "Age of the oldest copy that runs or waits here.",
            _LABELS,
            registry=into,
        )

        #: Of the partitions that this daemon's broker leads, by the broker's own files.
        self.lag_segments = Gauge(
            "rlmm_topic_copy_lag_segments",
            "Closed segments on the broker's disk that the tier does not have.",
            _LABELS,
            registry=into,
        )
        self.lag_bytes = Gauge(
            "rlmm_topic_copy_lag_bytes", "And their size.", _LABELS, registry=into
        )
        self.lag_seconds = Gauge(
            "rlmm_topic_copy_lag_seconds",
            "How long this daemon has seen some of them wait; 0: none does.",
            _LABELS,
            registry=into,
        )

    def forget(self, topic: str) -> None:
        """Drop a label whose topic is gone."""
        for metric in (self.segments, self.size, self.copied, self.failed, self.fetched):
            metric.remove(topic)
        for gauge in (self.oldest_copy, self.lag_segments, self.lag_bytes, self.lag_seconds):
            gauge.remove(topic)
