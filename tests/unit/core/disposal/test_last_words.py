"""What a segment's events leave behind, besides its state: sizes, layout, times, holds."""

import pytest
from msgspec.structs import replace

from rlmm_daemon.core.disposal.history import Segment, Told, last_word
from rlmm_daemon.domain.segment import SegmentState as S

BEGUN = Told(
    offset=0,
    state=S.COPY_SEGMENT_STARTED,
    event_ms=10,
    log_size=100,
    start_offset=7,
    topic="orders",
)
DONE = Told(offset=1, state=S.COPY_SEGMENT_FINISHED, event_ms=20, layout=2, sizes={".index": 8})
DELETE = Told(offset=2, state=S.DELETE_SEGMENT_STARTED, event_ms=30, layout=2, sizes={".index": 8})
GONE = Told(offset=3, state=S.DELETE_SEGMENT_FINISHED, event_ms=40)
STUCK = Told(offset=2, state=S.DELETE_SEGMENT_STARTED, event_ms=30, only_if_started=True)


def test_a_finished_segment_is_as_both_of_its_events_say() -> None:
    assert last_word([BEGUN]) == Segment(
        state=S.COPY_SEGMENT_STARTED,
        named=True,
        event_ms=10,
        log_size=100,
        start_offset=7,
        topic="orders",
    )
    assert last_word([BEGUN, DONE]) == Segment(
        state=S.COPY_SEGMENT_FINISHED,
        named=True,
        event_ms=20,
        log_size=100,
        start_offset=7,
        topic="orders",
        layout=2,
        sizes={".index": 8},
    )
    assert last_word([]) == Segment()
    assert not last_word([]).named
    assert last_word([replace(BEGUN, start_offset=0)]).start_offset == 0


def test_an_update_without_custom_metadata_leaves_what_was_recorded() -> None:
    erased = Told(offset=2, state=S.DELETE_SEGMENT_STARTED, event_ms=30)
    found = last_word([BEGUN, DONE, erased])
    assert (found.layout, found.sizes, found.event_ms) == (2, {".index": 8}, 30)


@pytest.mark.parametrize(
    "refused",
    [
        Told(offset=5, state=S.COPY_SEGMENT_FINISHED, event_ms=99, log_size=5, topic="other"),
        Told(offset=5, state=S.COPY_SEGMENT_STARTED, event_ms=99),
        Told(offset=5, state=S.COPY_SEGMENT_STARTED, event_ms=99, log_size=5, topic="other"),
        Told(offset=5, state=S.DELETE_SEGMENT_FINISHED, event_ms=99),
    ],
    ids=["a record that is finished", "an update that begins", "a beginning", "an end"],
)
def test_an_event_that_is_refused_changes_nothing(refused: Told) -> None:
    known = [BEGUN, DONE]
    assert last_word([*known, refused]) == last_word(known)
    unknown = last_word([refused]) if refused.log_size is None else None
    assert unknown in (None, Segment(named=True)), "it is named all the same"


def test_a_segment_that_begins_anew_has_nothing_of_its_former_life() -> None:
    again = Told(
        offset=4, state=S.COPY_SEGMENT_STARTED, event_ms=50, log_size=200, start_offset=9, topic="o"
    )
    found = last_word([BEGUN, DONE, DELETE, GONE, again])
    assert (found.layout, found.sizes) == (None, {})
    assert (found.log_size, found.start_offset, found.topic, found.event_ms) == (200, 9, "o", 50)


def test_a_beginning_that_is_repeated_forgets_no_sizes() -> None:
    sized = Told(offset=0, state=S.COPY_SEGMENT_STARTED, event_ms=10, log_size=1, sizes={".x": 1})
    assert last_word([sized, BEGUN]).sizes == {".x": 1}


def test_a_finished_segment_that_was_deleted_as_stuck_is_held_until_it_is_finished_again() -> None:
    assert last_word([BEGUN, DONE, STUCK]).held
    assert last_word([BEGUN, DONE, STUCK, GONE]).held
    assert last_word([BEGUN, DONE, STUCK, GONE, BEGUN]).held
    assert not last_word([BEGUN, DONE, STUCK, GONE, BEGUN, DONE]).held
    assert not last_word([BEGUN, STUCK]).held, "as it was meant"
    assert not last_word([BEGUN, DONE, DELETE]).held
