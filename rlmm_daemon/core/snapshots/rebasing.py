"""Rebasing of a fold onto the next snapshot: overlays go, user partition by user partition.

A snapshot holds what was applied until it was drawn. Once it is safely written, each user partition
is made to stand on its table there, and what was applied since is applied again. Each step is one
user partition, so that readers never meet anything half done. One that was written to so much
meanwhile that its step would hold the loop stays as it is, until the next snapshot.
"""

from collections.abc import Callable, Iterator
from typing import Final

from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.fold.user_partitions import Image, Sleeping
from rlmm_daemon.domain.ids import TopicIdPartition

#: Events that are applied again in one step: a few milliseconds.
SINCE_MAX: Final = 256


def rebase(fold: Fold, image: Image, stays: Callable[[TopicIdPartition], bool]) -> Iterator[None]:
    """Move a fold onto `image`, a step at a time; the caller may apply events in between.

    `fold.journal` has everything that was applied since the image was drawn. `stays` says which
    user partitions are in use: they stay awake, as do those with events in the journal. Where the
    journal was full it ends: who has not moved yet stays on the snapshot before.
    """
    for number, entry in enumerate(image.entries):
        if fold.journal is None:
            return
        partition = entry.user_partition
        present = fold.partitions.peek(partition)
        assert present is not None, "what a snapshot has is never forgotten"
        since = fold.journal.pop(partition, [])
        if isinstance(present, Sleeping):
            sleeping = fold.partitions.sleep(image, number)
            for offset, value in since:
                fold.partitions.put_aside(sleeping, offset, value)
        elif not (since or entry.held or stays(partition)):
            fold.partitions.sleep(image, number)
        elif len(since) <= SINCE_MAX:
            present.rebase(image.table(number))
            fold.again(present, since)
        yield
    fold.image = image
    fold.journal = None
