"""Announced user partitions: set operations in memory that never wait for the log.

A full announcement makes the announced partitions exactly its own; until one was applied the gate
is closed. The gate is the daemon's, not a connection's: it closes when another broker incarnation
says hello, and stays open when the same one reconnects.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from rlmm_daemon.codec.state_files import Announced, AnnouncedPartition
from rlmm_daemon.daemon.base.announcing import pieces
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition, uuid_bytes, uuid_text

#: Rows of what is persisted that are made in one go, in about 0.2 ms.
ROWS_AT_ONCE: Final = 256


class Assignment:
    """The announced user partitions, each with whether this broker leads it."""

    def __init__(self, on_change: Callable[[Collection[TopicIdPartition]], None]) -> None:
        #: Called with the partitions that were added or removed, after the fact.
        self._on_change = on_change
        self._leads: dict[TopicIdPartition, bool] = {}
        #: How many of the announced partitions this broker leads.
        self.leads = 0
        self.gate_open = False
        self.incarnation_ms: int | None = None
        #: Whether the metadata manager of an incarnation is connected; whoever serves it knows.
        self.is_connected: Callable[[int], bool] = lambda _: True
        #: Whether the storage manager of an incarnation was heard: its objects are in our storage.
        self.is_stored_for: Callable[[int], bool] = lambda _: True
        #: Counts changes, so that whoever persists them knows whether anything is new.
        self.version = 0

    @property
    def announced(self) -> Mapping[TopicIdPartition, bool]:
        """User partition -> whether the broker's last word made it the leader."""
        return self._leads

    @property
    def has_manager(self) -> bool:
        """Whether the broker's metadata manager is ours, as far as can be told: it is connected.

        One that is not may be away for a moment, or its broker may run another one by now.
        """
        return self.incarnation_ms is not None and self.is_connected(self.incarnation_ms)

    @property
    def has_storage(self) -> bool:
        """Whether the broker's storage manager is ours too."""
        return self.incarnation_ms is not None and self.is_stored_for(self.incarnation_ms)

    def hello(self, incarnation_ms: int) -> None:
        """A broker's metadata manager connected; another incarnation closes the gate."""
        if self.incarnation_ms != incarnation_ms:
            self.incarnation_ms = incarnation_ms
            self.gate_open = False

    def replace(
        self, leaders: Sequence[TopicIdPartition], followers: Sequence[TopicIdPartition]
    ) -> None:
        """Make the announced partitions exactly these, none included, and open the gate."""
        for _ in self.replacing(leaders, followers, self.incarnation_ms):
            pass

    def replacing(
        self,
        leaders: Sequence[TopicIdPartition],
        followers: Sequence[TopicIdPartition],
        incarnation_ms: int | None,
    ) -> Iterator[None]:
        """Do what `replace` does in steps between which others may have a turn, the gate last.

        First what is new comes, then what is left out goes: no metadata partition that has user
        partitions before and after is without any in between. `incarnation_ms` is whose words these
        are: the gate stays closed for another one that has said hello since.
        """
        announced = set[TopicIdPartition]()
        for leads, partitions in ((False, followers), (True, leaders)):
            for some in pieces(partitions):
                announced.update(some)
                self.add(*((some, ()) if leads else ((), some)))
                yield
        gone = list[TopicIdPartition]()
        for few in pieces(list(self._leads)):
            gone += [each for each in few if each not in announced]
            yield
        for some in pieces(gone):
            self.remove(some)
            yield
        if self.incarnation_ms == incarnation_ms:
            self.gate_open = True
            self._changed(())

    def add(
        self, leaders: Iterable[TopicIdPartition], followers: Iterable[TopicIdPartition]
    ) -> None:
        """Announce these besides what is announced; a repeat may change the role."""
        roles = _roles(leaders, followers)
        # Not a difference of key views: that walks all that is announced.
        added = [partition for partition in roles if partition not in self._leads]
        self.leads += sum(roles.values()) - sum(self._leads.get(each, False) for each in roles)
        self._leads.update(roles)
        self._changed(added)

    def remove(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Stop these; unknown ones are fine."""
        roles = {each: self._leads.pop(each) for each in partitions if each in self._leads}
        self.leads -= sum(roles.values())
        self._changed(roles)

    def _changed(self, partitions: Collection[TopicIdPartition]) -> None:
        self.version += 1
        self._on_change(partitions)

    def rows(self) -> Iterator[list[AnnouncedPartition]]:
        """Yield what is persisted, as of now, in steps between which others may have a turn."""
        rows = iter(list(self._leads.items()))
        while some := list(islice(rows, ROWS_AT_ONCE)):
            yield [
                AnnouncedPartition(uuid_text(p.topic_id), p.topic, p.partition, leads)
                for p, leads in some
            ]


def from_file(announced: Announced | None) -> list[TopicIdPartition]:
    """Return the partitions that an earlier process had been told of; damaged rows are left out."""
    partitions = []
    for row in announced.partitions if announced else []:
        try:
            topic_id = TopicId(uuid_bytes(row.topic_id))
        except InvalidArgument:
            continue
        partitions.append(TopicIdPartition(topic_id, row.topic, row.partition))
    return partitions


def _roles(
    leaders: Iterable[TopicIdPartition], followers: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, bool]:
    roles = dict.fromkeys(followers, False)
    roles.update(dict.fromkeys(leaders, True))
    return roles
