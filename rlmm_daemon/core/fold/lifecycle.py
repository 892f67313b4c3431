"""Legal transitions of segments and of partition deletes: KIP-405's life cycles, as tables.

A state may also stay as it is (Kafka's `isValidTransition` says so): a retried event is harmless.
Source: RemoteLogSegmentState, RemotePartitionDeleteState.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from rlmm_daemon.domain.errors import IllegalTransition
from rlmm_daemon.domain.ids import SegmentId, uuid_text
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

S = SegmentState
#: From a state (None: no such segment) to the states that may be new after it.
SEGMENT_TRANSITIONS: Final[Mapping[SegmentState | None, frozenset[SegmentState]]] = (
    MappingProxyType({
        None:                      frozenset({S.COPY_SEGMENT_STARTED}),
        S.COPY_SEGMENT_STARTED:    frozenset({S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED}),
        S.COPY_SEGMENT_FINISHED:   frozenset({S.DELETE_SEGMENT_STARTED}),
        S.DELETE_SEGMENT_STARTED:  frozenset({S.DELETE_SEGMENT_FINISHED}),
        S.DELETE_SEGMENT_FINISHED: frozenset(),
    })
)  # fmt: skip
assert SEGMENT_TRANSITIONS.keys() == {None, *S}, "every segment state has a row"

P = PartitionDeleteState
#: From a state (None: nobody asked for the partition's deletion). Kafka never enforces this table.
PARTITION_DELETE_TRANSITIONS: Final[
    Mapping[PartitionDeleteState | None, frozenset[PartitionDeleteState]]
] = MappingProxyType({
    None:                        frozenset({P.DELETE_PARTITION_MARKED}),
    P.DELETE_PARTITION_MARKED:   frozenset({P.DELETE_PARTITION_STARTED}),
    P.DELETE_PARTITION_STARTED:  frozenset({P.DELETE_PARTITION_FINISHED}),
    P.DELETE_PARTITION_FINISHED: frozenset(),
})  # fmt: skip
assert PARTITION_DELETE_TRANSITIONS.keys() == {None, *P}, "every partition delete state has a row"

_State = TypeVar("_State", SegmentState, PartitionDeleteState)


def legal(before: SegmentState | None, after: SegmentState) -> bool:
    """Return Kafka's `RemoteLogSegmentState.isValidTransition(before, after)`."""
    return _legal(SEGMENT_TRANSITIONS, before, after)


def legal_partition_delete(
    before: PartitionDeleteState | None, after: PartitionDeleteState
) -> bool:
    """Return Kafka's `RemotePartitionDeleteState.isValidTransition(before, after)`."""
    return _legal(PARTITION_DELETE_TRANSITIONS, before, after)


def _legal(
    table: Mapping[_State | None, frozenset[_State]], before: _State | None, after: _State
) -> bool:
    return before is after or after in table[before]


#: The same answers by number, for the fold: `LEGAL_BY_NUMBER[before][after]`.
LEGAL_BY_NUMBER: Final = tuple(tuple(legal(a, b) for b in SegmentState) for a in SegmentState)


def illegal(segment_id: SegmentId, before: SegmentState, after: SegmentState) -> IllegalTransition:
    """Return the error for a step that the life cycle does not have."""
    return IllegalTransition(
        f"segment {uuid_text(segment_id)} is {before.name}; {after.name} cannot follow",
        segment_id=uuid_text(segment_id),
        before=before.name,
        after=after.name,
    )


def illegal_partition_delete(
    before: PartitionDeleteState | None, after: PartitionDeleteState
) -> IllegalTransition:
    """Return the error for a step that the partition delete machine does not have."""
    now = "not marked for deletion" if before is None else before.name
    return IllegalTransition(
        f"the partition is {now}; {after.name} cannot follow",
        before=None if before is None else before.name,
        after=after.name,
    )
