"""Events that came since the log was read: a segment that they name again is left alone."""

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from rlmm_daemon.config import Config
from rlmm_daemon.domain.ids import uuid_text
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read import log_reading
from rlmm_daemon.reconcile.read.log_reading import LogSlice, LogView
from rlmm_daemon.reconcile.schema import RowKind

#: Ids of segments, as a frame.
TOUCHED: Final = pa.schema([pa.field("segment_id", pa.string())])


class Tail:
    """What the log has come to say since it was read."""

    def __init__(self, config: Config, view: LogView) -> None:
        """`view` is the log as it was read, to its ends."""
        self._config, self._identity = config, view.identity
        self._ends: Mapping[int, int] = {number: known.end for number, known in view.ranges.items()}
        self._touched: set[str] = set()

    def read(self) -> set[str]:
        """Return the ids of all segments that were named until now.

        Raises:
            Incomplete: it is another log by now, a partition did not answer or was cut.
        """
        now = log_reading.view(self._config)
        if now.identity != self._identity:
            raise Incomplete("the log was made anew, or got more partitions, while the run went on")
        touched, self._ends = tail(self._config, self._ends, now)
        self._touched |= touched
        return self._touched


def tail(
    config: Config, ends: Mapping[int, int], now: LogView
) -> tuple[set[str], Mapping[int, int]]:
    """Return the ids of segments that the log names behind `ends`, and where it ends.

    `now` is the log as it was just seen, the same log as the one of the `ends`.

    Raises:
        Incomplete: a partition did not answer, or was cut.
    """
    fresh = {number: now.ranges[number].end for number in ends if number in now.ranges}
    lost = sorted(number for number in ends if fresh.get(number, -1) < ends[number])
    if lost:
        raise Incomplete(f"metadata partitions {lost} end earlier than before, or don't answer")
    return {*_named(config, now, ends, fresh)}, fresh


def _named(
    config: Config,
    now: LogView,
    ends: Mapping[int, int],
    fresh: Mapping[int, int],
) -> Iterator[str]:
    for number, begin in ends.items():
        if fresh[number] == begin:
            continue
        part = LogSlice(
            number=number,
            begin=begin,
            end=fresh[number],
            partition_count=now.identity.partition_count,
            topic_id=uuid_text(now.identity.topic_id),
        )
        for batch in log_reading.read(config, part):
            kinds = batch["kind"].to_pylist()
            for kind, segment_id in zip(kinds, batch["segment_id"].to_pylist(), strict=True):
                if kind == RowKind.UNREADABLE:
                    raise Incomplete(f"metadata partition {number} has a record that is no event")
                if kind == RowKind.LOST:
                    raise Incomplete(f"metadata partition {number} has lost records behind {begin}")
                if segment_id is not None:
                    yield segment_id
