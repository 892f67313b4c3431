"""Collectors for the busiest paths: what they count costs a dictionary entry, and no lock."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class QuickCounter(Collector):
    """A counter with labels for the hottest path: one dictionary increment, no lock.

    Only the event loop's thread may count.
    """

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], into: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counts: defaultdict[tuple[str, ...], int] = defaultdict(int)
        into.register(self)

    def count(self, *labels: str, by: int = 1) -> None:
        """Count under these label values, in the declared order."""
        self._counts[labels] += by

    def value(self, *labels: str) -> int:
        """Return the count so far."""
        return self._counts.get(labels, 0)

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Yield the family without samples, so that registering reads nothing."""
        yield CounterMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the family as it stands."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in self._counts.items():
            family.add_metric(labels, count)
        yield family


class QuickHistogram(Collector):
    """A histogram for the path of every write: a bisection and two additions, no lock.

    Only the event loop's thread may observe.
    """

    def __init__(
        self, name: str, text: str, buckets: tuple[float, ...], into: CollectorRegistry
    ) -> None:
        self._name, self._text, self._bounds = name, text, buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        into.register(self)

    def observe(self, value: float) -> None:
        """Count a value in its bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family without samples, so that registering reads nothing."""
        yield HistogramMetricFamily(self._name, self._text)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the family as it stands."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        counted = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=counted, sum_value=self._sum)


class _WithoutCreated(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [each for each in family.samples if not each.name.endswith("_created")]
            yield family


def without_created(registry: CollectorRegistry) -> Collector:
    """Return what a registry has, but for the times at which its counters began.

    A third of all series would be theirs. The library's own switch is one for the whole process,
    which may be somebody else's (`rlmm_daemon.embed`).
    """
    return _WithoutCreated(registry)
