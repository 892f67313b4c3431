"""What grows with the segments of one user partition: the fold alone, without a daemon."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rlmm_daemon.core.fold import walks
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.walks import Walk
from rlmm_daemon.domain.ids import LeaderEpoch, Offset
from tests.benchmarks import growth_events as events
from tests.benchmarks.growth_curves import Growth, Watch
from tests.benchmarks.growth_events import PARTITION, Segment

Shape = Callable[[int], list[Segment]]
Made = Callable[[], Fold]
SIZES: Final = (100, 1_000, 10_000, 100_000)
QUICK: Final = (50, 500, 5_000)


def answers(fold: Fold, segments: Sequence[Segment]) -> Iterator[None]:
    """Look each segment up."""
    cache = fold.partitions[PARTITION]
    for each in segments:
        assert cache.lookup(LeaderEpoch(each.epoch), Offset(each.start + 17)) is not None
        yield


def drawn(walk: Callable[[], Walk[Any]]) -> Iterator[None]:
    """Draw a listing or a sum, as somebody who asks for it does."""
    for _ in walk().pieces:
        yield


def removals(watch: Watch, segments: list[Segment], made: Made) -> None:
    """Delete all segments of a fold in several orders."""
    shuffled = random.Random(7).sample(segments, len(segments))
    watch.steps("delete from the front", events.applied(made(), events.deletes(segments)))
    watch.steps("delete at random", events.applied(made(), events.deletes(shuffled)))
    watch.steps("delete all", events.applied(made(), events.all_deletes(segments)))


def live(shape: Shape) -> Callable[[int, Watch], None]:
    """Everything on a fold that has no snapshot below it."""

    def workload(size: int, watch: Watch) -> None:
        segments = shape(size)
        fold = events.new_fold()
        watch.steps("add", events.applied(fold, events.copies(segments)))
        watch.steps("find", answers(fold, segments))
        cache, epoch = fold.partitions[PARTITION], LeaderEpoch(segments[0].epoch)
        watch.steps("list an epoch", drawn(lambda: walks.listing(cache, epoch)))
        watch.steps("list all", drawn(lambda: walks.listing(cache, None)))
        watch.steps("sum an epoch", drawn(lambda: walks.size(cache, epoch)))
        removals(watch, segments, lambda: events.filled(segments))

    return workload


def over_snapshot(shape: Shape) -> Callable[[int, Watch], None]:
    """The same over a snapshot, and what that costs to write and to start from."""

    def workload(size: int, watch: Watch) -> None:
        segments = shape(size)
        fold = events.filled(segments)
        pieces = list[bytes | memoryview]()
        watch.steps("write the snapshot", map(pieces.append, events.snapshot_pieces(fold)))
        snapshot = b"".join(pieces)
        watch.once(
            "restart, to the first answer",
            lambda: next(answers(events.restarted(snapshot), segments[-1:])),
        )
        again = events.restarted(snapshot)
        watch.steps("find", answers(again, segments))
        removals(watch, segments, lambda: events.restarted(snapshot))

    return workload


def replay(shape: Shape) -> Callable[[int, Watch], None]:
    """A start without a snapshot: copies, and then deletes in each order."""

    def workload(size: int, watch: Watch) -> None:
        segments = shape(size)
        copied = events.encoded(events.copies(segments))
        watch.steps("replay copies", events.replayed(copied))
        gone = [*events.copies(segments), *events.all_deletes(segments)]
        watch.steps("replay copies and deletes", events.replayed(events.encoded(gone)))

    return workload


def epochs(size: int, watch: Watch) -> None:
    """A leader epoch for each segment."""
    segments = events.by_epoch(size)
    fold = events.new_fold()
    watch.steps("add", events.applied(fold, events.copies(segments)))
    watch.steps("find", answers(fold, segments))
    cache = fold.partitions[PARTITION]
    each_epoch = [LeaderEpoch(each.epoch) for each in segments]
    watch.steps("list each", (list(walks.listing(cache, epoch).pieces) for epoch in each_epoch))
    watch.steps("highest offset of each", (cache.highest_offset(epoch) for epoch in each_epoch))
    removals(watch, segments, lambda: events.filled(segments))


def epochs_of_one_segment(size: int, watch: Watch) -> None:
    """One segment of many leader epochs, copied and deleted."""
    one = events.of_many_epochs(size)
    fold = events.new_fold()
    watch.steps("add", events.applied(fold, one[2:4]))
    watch.steps("delete", events.applied(fold, one[4:]))


SHAPES: Final = (
    ("segments", events.in_a_row),
    ("segments in pairs", events.in_pairs),
    ("segments in chains", events.in_chains),
)
GROWTHS: Final = (
    *(Growth(of=of, workload=live(shape), sizes=SIZES, quick=QUICK) for of, shape in SHAPES),
    *(
        Growth(of=f"{of}, over a snapshot", workload=over_snapshot(shape), sizes=SIZES, quick=QUICK)
        for of, shape in SHAPES
    ),
    *(
        Growth(of=f"{of}, replayed", workload=replay(shape), sizes=SIZES, quick=QUICK, holds=False)
        for of, shape in SHAPES
    ),
    Growth(of="leader epochs", workload=epochs, sizes=SIZES, quick=QUICK),
    Growth(
        of="leader epochs of one segment", workload=epochs_of_one_segment,
        sizes=(10, 100, 1_000, 10_000), quick=(30, 200, 3_000),
    ),
)  # fmt: skip
