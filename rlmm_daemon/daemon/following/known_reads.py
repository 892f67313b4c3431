"""Positions up to which metadata partitions had been read: by this daemon, earlier lives, others.

A log that ends before one of them has lost its tail. Each stays until the log has confirmed it, or
its loss was accepted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rlmm_daemon.codec.state_files import Position
from rlmm_daemon.daemon.following.history import beyond, furthest
from rlmm_daemon.domain.ids import MetadataPartition


class KnownReads:
    """What is known of one log, by metadata partition."""

    def __init__(self) -> None:
        #: As `positions.json` has it, or will.
        self.recorded: dict[int, Position] = {}
        #: As the presence file of an earlier life has it, until confirmed or accepted.
        self.present: dict[int, Position] = {}
        #: How far other daemons say that they had read, likewise, and in which file.
        self.others: dict[int, Mapping[Position, str]] = {}
        #: How far folds had read that were dropped and are compared: what they knew is on a list,
        #: so the log need not confirm it. Others have only our presence file.
        self.listed: dict[int, Position] = {}
        #: Whose loss was accepted in this life: daemons that did not accept it go on to say so.
        self._given_up: dict[int, Sequence[Position]] = {}
        #: Whose loss is being written down right now.
        self._being_given_up: frozenset[int] = frozenset()

    def forget_all(self) -> None:
        """Another log is followed from now on, or the loss of this one was accepted."""
        self.recorded, self.present, self.others = {}, {}, {}
        self.listed, self._given_up = {}, {}

    def give_up(self, partition: MetadataPartition) -> None:
        """The loss of all that is known of it was accepted; what is read beyond that is news."""
        given_up = self._given_up.get(partition, ())
        listed = [self.listed[partition]] if partition in self.listed else []
        self._given_up[partition] = furthest([*given_up, *listed, *self.of(partition)])
        self.forget(partition)

    def give_up_all(self) -> None:
        """The loss of all that is known was accepted."""
        for number in {*self.recorded, *self.present, *self.others, *self.listed}:
            self.give_up(MetadataPartition(number))

    def _is_news(self, partition: int, at: Position) -> bool:
        return not any(beyond(known, at) for known in self._given_up.get(partition, ()))

    def forget(self, partition: MetadataPartition) -> None:
        """The lineage that was recorded is accounted for: record the present one from now on."""
        self.recorded.pop(partition, None)
        self.present.pop(partition, None)
        self.others.pop(partition, None)
        self.listed.pop(partition, None)

    def written_down(self, partition: MetadataPartition, read: Sequence[Position]) -> None:
        """The lineage that was recorded is on a list, as far as dropped folds had read."""
        self.forget(partition)
        self.put_on_list(partition, read)

    def put_on_list(self, partition: int, read: Sequence[Position]) -> None:
        """Keep how far dropped folds had read, whose knowledge is compared with the log."""
        if read:
            self.listed[partition] = max(read, key=lambda at: (at.leader_epoch, at.next_offset))

    def keep(self, partition: MetadataPartition, position: Position) -> None:
        """A later life has to ask the log for it, too."""
        self.recorded.setdefault(partition, position)

    def hear_own(self, said: Mapping[int, Position]) -> None:
        """Take up what the presence file of an earlier life says."""
        self.present = {
            number: at
            for number, at in said.items()
            if number not in self._given_up
            and not (number in self.listed and beyond(self.listed[number], at))
        }

    def hear_others(self, said: Mapping[int, Mapping[Position, str]]) -> None:
        """Take up what other daemons' presence files say."""
        self.others = {
            number: {at: files for at, files in each.items() if self._is_news(number, at)}
            for number, each in said.items()
        }

    def said_of(self, partition: MetadataPartition) -> list[Position]:
        """Return how far a metadata partition had been read, as presence files have it."""
        own = self.present.get(partition)
        return [*([] if own is None else [own]), *self.others.get(partition, ())]

    def of(self, partition: MetadataPartition) -> list[Position]:
        """Return every position that the log has to confirm before it is believed."""
        recorded = self.recorded.get(partition)
        return [*([] if recorded is None else [recorded]), *self.said_of(partition)]

    def said_by_others(self, partition: MetadataPartition) -> Mapping[Position, str]:
        """Return what only other daemons' presence files say, and the files."""
        own = (self.present.get(partition), self.recorded.get(partition))
        others = self.others.get(partition, {})
        return {at: files for at, files in others.items() if at not in own}

    @contextmanager
    def giving_up(self, partitions: Iterable[int]) -> Iterator[None]:
        """Tell of no position of theirs while its loss is being written down.

        Behind the acceptance it would be taken for what was read since, and be missed anew.
        """
        before = self._being_given_up
        self._being_given_up = before | {*partitions}
        try:
            yield
        finally:
            self._being_given_up = before

    def furthest(
        self, is_confirmed: Callable[[MetadataPartition], bool]
    ) -> dict[MetadataPartition, Position]:
        """Return how far each partition is known to have been read, followed or not."""
        known = {**self.present, **self.recorded}
        for number, position in self.present.items():
            behind = number in self.recorded and position.next_offset > known[number].next_offset
            if behind and not is_confirmed(MetadataPartition(number)):
                known[number] = position
        for number, position in self.listed.items():
            if number not in known or position.next_offset > known[number].next_offset:
                known[number] = position
        return {
            MetadataPartition(number): position
            for number, position in known.items()
            if number not in self._being_given_up
        }
