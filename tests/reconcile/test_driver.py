"""What the driver takes of frames of any size: no more than it needs, and never less."""

from typing import Any

import pytest

from rlmm_daemon.reconcile import evidence
from rlmm_daemon.reconcile.schema import EVENTS, Kind, ddl

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_an_unreadable_record_counts_behind_any_number_of_accepted_ones(spark) -> None:
    def unreadable(offset: int) -> dict[str, Any]:
        odd = {"metadata_partition": 3, "offset": offset, "kind": int(Kind.UNREADABLE)}
        return {**dict.fromkeys(EVENTS.names), **odd, "detail": f"{offset:064} garbage"}

    many = evidence.UNREADABLE_MAX + 1
    rows = [tuple(unreadable(offset).values()) for offset in range(many)]
    events = spark.createDataFrame(rows, ddl(EVENTS))
    accepted = {(3, offset, f"{offset:064}") for offset in range(many - 1)}
    (found,) = evidence.unaccepted(spark, events, accepted)
    assert (found.metadata_partition, found.offset, found.reason) == (3, many - 1, "garbage")
    other = {(3, many - 1, "ab" * 32), (2, many - 1, found.sha256), (3, many, found.sha256)}
    assert len(evidence.unaccepted(spark, events, accepted | other)) == 1, "not this very record"
    assert evidence.unaccepted(spark, events, {*accepted, (3, many - 1, found.sha256)}) == []
    assert len(evidence.unaccepted(spark, events, set())) == evidence.UNREADABLE_MAX
