"""One epoch's pieces: what is left of them does not show how it came about."""

import random

import pytest

from rlmm_daemon.core.fold.cover import Cover
from rlmm_daemon.domain.ids import SegmentId

PIECES = 40


def covered(rows) -> Cover:
    cover = Cover()
    for piece, segment_end, has_txn_index in rows:
        cover.append(piece, segment_end, has_txn_index=has_txn_index)
    return cover


@pytest.mark.parametrize("seed", range(20))
def test_pieces_with_nothing_beneath_leave_what_those_left_would_have_made(seed):
    luck = random.Random(seed)
    rows, start = [], 0
    for n in range(PIECES):
        start += luck.choice([0, 0, 5])
        end = start + luck.randrange(3)
        piece = (start, end, SegmentId(n.to_bytes(16, "big")))
        rows.append((piece, end + luck.choice([0, 0, 5]), luck.random() < 0.3))
        start = end + 1
    facts = {piece[2]: (segment_end, has_txn) for piece, segment_end, has_txn in rows}
    cover = covered(rows)
    asked = []

    def asking(segment_id):
        asked.append(segment_id)
        return facts[segment_id]

    while rows:
        gone = rows.pop(luck.randrange(len(rows)))
        asked.clear()
        cover.lift(gone[0], (), asking)
        assert len(asked) <= 1  # nearly every delete is one of these, and a neighbour is no news
        left = covered(rows)
        for column in ("starts", "ends", "ids", "txn", "breaks"):
            assert getattr(cover, column) == getattr(left, column), (column, gone)
