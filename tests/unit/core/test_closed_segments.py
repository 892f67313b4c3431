"""What a broker closed and the tier does not have, by offsets alone."""

from rlmm_daemon.core.closed_segments import ClosedSegment, closed, waiting


def test_all_but_the_newest_file_are_closed_and_end_where_the_next_begins():
    assert closed([(20, 3), (0, 7), (10, 5)]) == [ClosedSegment(0, 9, 7), ClosedSegment(10, 19, 5)]
    assert closed([(0, 7)]) == closed([]) == []


def test_what_ends_beyond_that_waits():
    segments = closed([(0, 1), (10, 2), (20, 3), (30, 4)])
    assert waiting(segments, -1) == segments
    assert waiting(segments, 9) == segments[1:]
    assert waiting(segments, 8) == segments
    assert waiting(segments, 29) == []
