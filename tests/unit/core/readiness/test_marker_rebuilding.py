"""Layouts of a lost marker, worked out of its copy, the log and a listing."""

from collections import Counter

import pytest

from rlmm_daemon.core.readiness.marker_rebuilding import (
    LAYOUTS_MAX,
    Evidence,
    rebuilt,
    require_some_seen,
)
from rlmm_daemon.core.readiness.marker_verdict import LogHistory, why_not_made, why_remade
from rlmm_daemon.core.storage.layout import Layout, object_key
from rlmm_daemon.domain.errors import InvalidArgument
from rlmm_daemon.domain.ids import Offset, SegmentId, TopicId, TopicIdPartition

PARTITION = TopicIdPartition(TopicId(bytes(range(16))), "orders", 7)
KIND = "local-tiered-storage"


def segment(number: int) -> SegmentId:
    return SegmentId(number.to_bytes(16, "big"))


def key(number: int, prefix: str) -> str:
    return object_key(Layout(prefix), PARTITION, Offset(number), segment(number), suffix=".log")


def of(*needs: tuple[int | None, str], kept: tuple[str, ...] = (), **told: str) -> Evidence:
    """Segments 0, 1, ... with the layout that the log says and the prefix where they lie."""
    evidence = Evidence(kept=kept, told={int(n[1:]): prefix for n, prefix in told.items()})
    wanted = {segment(at): number for at, (number, _) in enumerate(needs)}
    for at, (_, prefix) in enumerate(needs):
        evidence.take(wanted, key(at, prefix))
    evidence.named.update(number for number, _ in needs if number is not None)
    return evidence


def prefixes(evidence: Evidence) -> list[str]:
    return [row.prefix for row in rebuilt(evidence)]


def test_numbers_and_prefixes_are_told_by_segments_alone():
    rows = rebuilt(of((1, ""), (1, ""), (2, "moved/here"), (2, "moved/here")))
    assert [(row.number, row.prefix, row.named, row.found) for row in rows] == [
        (1, "", 2, 2),
        (2, "moved/here", 2, 2),
    ]
    assert {row.sources for row in rows} == {("listing",)}


def test_a_hashed_prefix_is_told_from_plain_ones_by_several_segments():
    for bits in (4, 16, 32):
        hashed = f"{{hash:{bits}}}/tier"
        assert prefixes(of(*[(1, hashed)] * 8)) == [hashed]
    hashed = "{hash:16}/tier"
    with pytest.raises(InvalidArgument, match="--layout 1=PREFIX"):
        rebuilt(of((1, hashed)))  # one segment may be read both ways
    assert prefixes(of((1, hashed), kept=(hashed,))) == [hashed]


def test_a_copy_that_the_listing_contradicts_is_for_an_operator_to_judge():
    with pytest.raises(InvalidArgument, match="'old', and its segments lie under 'new'"):
        rebuilt(of((1, "new"), (1, "new"), kept=("old",)))
    assert prefixes(of((1, "new"), (1, "new"), kept=("old",), _1="new")) == ["new"]


def test_an_operator_whom_the_listing_contradicts_is_refused():
    for kept in ((), ("old",)):
        with pytest.raises(InvalidArgument, match=r"'nwe', and all 2 segments .* under 'new'"):
            rebuilt(of((1, "new"), (1, "new"), kept=kept, _1="nwe"))
    assert prefixes(of((1, "a"), (1, "b"), _1="b")) == ["b"], "one of two is the operator's choice"
    assert prefixes(of(_2="gone")) == ["unused-layout-1", "gone"], "nothing of it is there"


def test_a_prefix_has_one_number_alone():
    with pytest.raises(InvalidArgument, match="layouts 1 and 2 would both be 'a'"):
        rebuilt(of((1, "a"), (1, "a"), _2="a"))


def test_a_number_that_live_segments_name_is_never_guessed():
    evidence = of((2, "b"), (2, "b"))
    assert prefixes(evidence) == ["unused-layout-1", "b"]
    evidence.named[1] = 3
    with pytest.raises(InvalidArgument, match="3 live segments name it and lie nowhere"):
        rebuilt(evidence)
    with pytest.raises(InvalidArgument, match="beyond"):
        rebuilt(Evidence(named=Counter({LAYOUTS_MAX + 1: 1})))
    last = rebuilt(Evidence(told={LAYOUTS_MAX: "last"}))[-1]
    assert (last.number, last.prefix) == (LAYOUTS_MAX, "last")
    assert rebuilt(Evidence()) == []


def test_segments_of_one_number_under_two_prefixes_are_for_an_operator_to_judge():
    with pytest.raises(InvalidArgument, match="lie 'a', 'b'"):
        rebuilt(of((1, "a"), (1, "b")))


def test_copies_that_never_ended_name_no_number_and_are_told_apart():
    evidence = of((1, "a"), (1, "a"), (None, "b"))
    assert prefixes(evidence) == ["a"]
    assert evidence.unnumbered.explained == Counter({"b": 1})


def test_keys_of_nobodys_segments_say_nothing():
    evidence = Evidence()
    evidence.take({}, key(1, "a"))
    evidence.take({segment(1): 1}, key(1, "a").replace(".log", ".index"))
    evidence.take({segment(1): 1}, "README.log")
    assert evidence.found == {}


def test_a_marker_is_made_only_where_the_whole_log_names_no_layout():
    assert why_not_made(LogHistory()) is None
    assert "layout 3" in (why_not_made(LogHistory(named=frozenset({3}))) or "")
    assert "partition 4" in (why_not_made(LogHistory(unread={4: "trimmed"})) or "")


@pytest.mark.parametrize(
    ("known", "present", "word"),
    [
        ((), (), None),
        (("a",), ("a", "b"), None),
        (("a",), ("b",), "'a'"),
        (("a", "b"), ("b",), "'a'"),
        (("a", "b"), ("a",), "2 layouts"),
    ],
)
def test_a_marker_may_only_be_appended_to(known, present, word):
    why = why_remade([(KIND, each) for each in known], [(KIND, each) for each in present])
    assert why is None if word is None else word in (why or "")


@pytest.mark.parametrize(
    ("finished", "listed", "refused"),
    [([], [], False), ([1, 2], [], True), ([1, 2], [3], True), ([1, 2], [2], False)],
)
@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_a_storage_that_has_nothing_of_any_finished_segment_is_another_one(
    finished, listed, refused, suffix
):
    evidence = Evidence(finished=set(map(segment, finished)))
    for number in listed:
        evidence.take({}, key(number, "a").removesuffix(".log") + suffix)
    if not refused:
        require_some_seen(evidence, "bukcet")
        return
    with pytest.raises(InvalidArgument, match=r"2 finished.*bukcet.*right bucket.*--objects-are"):
        require_some_seen(evidence, "bukcet")


def test_what_the_log_lost_names_a_layout_where_anything_of_it_is_left():
    evidence = of((2, "moved"))
    evidence.take({segment(7): 1}, key(7, "former"))
    assert prefixes(evidence) == ["former", "moved"]
    evidence = of((1, "now"))
    evidence.take({segment(7): 2}, key(7, "later"))
    assert prefixes(evidence) == ["now", "later"], "beyond what live ones name"
    evidence.take({segment(8): 2}, key(8, "elsewhere"))
    with pytest.raises(InvalidArgument, match=r"2 lost segments name it and lie '"):
        rebuilt(evidence)


def test_the_youngest_object_is_known_whatever_names_it_and_nothing_but_a_segments_counts():
    """A rebuilt marker's hold keeps all that is not younger."""
    evidence = Evidence()
    evidence.take({}, "README.log", 9_000)
    assert evidence.newest_ms == 0, "none is there"
    evidence.take({}, key(1, "a"))
    assert evidence.newest_ms == 0
    for modified_ms in (5, 7, 6):
        evidence.take({}, key(2, "a").replace(".log", ".index"), modified_ms)
    assert evidence.newest_ms == 7
