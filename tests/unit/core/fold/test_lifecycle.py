"""Kafka's two tables, pair by pair."""

import itertools

import pytest

from rlmm_daemon.core.fold.lifecycle import legal, legal_partition_delete
from rlmm_daemon.domain.partition_delete import PartitionDeleteState
from rlmm_daemon.domain.segment import SegmentState

SEGMENT = {None: "Y...", 0: "YYY.", 1: ".YY.", 2: "..YY", 3: "...Y"}
PARTITION = {None: "Y..", 0: "YY.", 1: ".YY", 2: "..Y"}


@pytest.mark.parametrize(
    ("before", "after"), [*itertools.product((None, *SegmentState), SegmentState)]
)
def test_a_segment_may_step_as_is_valid_transition_says(before, after):
    assert legal(before, after) == (SEGMENT[before][after] == "Y")


@pytest.mark.parametrize(
    ("before", "after"), [*itertools.product((None, *PartitionDeleteState), PartitionDeleteState)]
)
def test_a_partition_delete_may_step_as_is_valid_transition_says(before, after):
    assert legal_partition_delete(before, after) == (PARTITION[before][after] == "Y")
