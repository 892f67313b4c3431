"""The fold of a quorum's records, over logs as leaders that come and go may leave them."""

from collections import defaultdict
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmm_daemon.codec.kraft.record_key import FOUNDING, GRANT, RecordKey, pack_count
from rlmm_daemon.core.quorum_log import fold as folds
from rlmm_daemon.core.quorum_log.fold import AcceptedEvent, LogFold, Outcome, Passed

#: An epoch, a key and a value.
Entry: TypeAlias = tuple[int, RecordKey | None, bytes | None]

FOUNDED: Entry = (1, RecordKey(FOUNDING, 0, 0, 0), pack_count(2))


def nonce(name: str) -> bytes:
    return name.encode().ljust(16)


def granted(submitter: int, incarnation: int, name: str = "a", epoch: int = 1) -> Entry:
    return epoch, RecordKey(GRANT, submitter, incarnation, 0), nonce(name)


def written(
    incarnation: int,
    serial: int,
    value: bytes | None = b"x",
    *,
    submitter: int = 1,
    partition: int = 0,
    epoch: int = 1,
) -> Entry:
    return epoch, RecordKey(partition, submitter, incarnation, serial), value


def folded(entries: list[Entry]) -> tuple[LogFold, list[Outcome]]:
    fold = LogFold()
    return fold, [fold.apply(*entry) for entry in entries]


def outcomes(*entries: Entry) -> list[Outcome]:
    """Return what becomes of them behind the log's first record."""
    return folded([FOUNDED, *entries])[1][1:]


SOUP = st.lists(
    st.one_of(
        st.builds(granted, st.integers(1, 2), st.integers(1, 3), st.sampled_from("ab")),
        st.builds(
            written,
            st.integers(1, 3),
            st.integers(1, 4),
            st.sampled_from([b"x", b"y"]),
            submitter=st.integers(1, 2),
            partition=st.integers(0, 1),
        ),
        st.sampled_from(
            [(1, None, b"foreign"), FOUNDED, written(0, 0), written(1, 1, partition=2)]
        ),
    ),
    max_size=60,
).map(lambda entries: [granted(1, 1), *entries])


@settings(max_examples=300)
@given(SOUP, st.integers(0, 60))
def test_a_fold_is_a_function_of_the_prefix(entries: list[Entry], cut: int) -> None:
    whole, said = folded([FOUNDED, *entries])
    part, before = folded([FOUNDED, *entries[:cut]])
    after = [part.apply(*entry) for entry in entries[cut:]]
    assert before + after == said
    assert part.ends == whole.ends
    assert part.submitters == whole.submitters
    assert [each.entries for each in part.epochs] == [each.entries for each in whole.epochs]


@settings(max_examples=300)
@given(SOUP)
def test_each_serial_counts_once_in_its_order_and_of_the_newest_incarnation_alone(
    entries: list[Entry],
) -> None:
    _, said = folded([FOUNDED, *entries])
    offsets: dict[int, list[int]] = defaultdict(list)
    serials: dict[tuple[int, int], list[int]] = defaultdict(list)
    incarnations: dict[int, int] = defaultdict(int)
    for (_, key, _), outcome in zip(entries, said[1:], strict=True):
        if outcome is Passed.GRANTED:
            assert key is not None
            incarnations[key.submitter] += 1
            assert key.incarnation == incarnations[key.submitter]
        elif isinstance(outcome, AcceptedEvent):
            assert key is not None
            assert key.incarnation == incarnations[key.submitter]
            serials[key.submitter, key.incarnation].append(key.serial)
            offsets[key.partition].append(outcome.offset)
    for found in serials.values():
        assert found == list(range(1, len(found) + 1))
    for found in offsets.values():
        assert found == list(range(len(found)))


@settings(max_examples=300)
@given(SOUP, SOUP)
def test_what_a_submitter_gave_up_blocks_nothing_of_its_next_incarnation(
    before: list[Entry], late: list[Entry]
) -> None:
    """Whatever the log holds, and whatever of the older ones arrives late."""
    fold, _ = folded([FOUNDED, *before])
    known = fold.submitters.get(1)
    following = known.incarnation + 1 if known else 1
    assert fold.apply(*granted(1, following, "new")) is Passed.GRANTED
    for entry in late:
        key = entry[1]
        if key is None or key.incarnation < following or key.submitter != 1:
            outcome = fold.apply(*entry)
            assert key is None or key.submitter != 1 or not isinstance(outcome, AcceptedEvent)
    end = fold.ends[0]
    said = [fold.apply(*written(following, serial)) for serial in (1, 2, 3)]
    assert said == [AcceptedEvent(0, end), AcceptedEvent(0, end + 1), AcceptedEvent(0, end + 2)]


@given(st.lists(st.integers(1, 5), max_size=12), st.data())
def test_whoever_repeats_what_is_not_in_its_log_yet_has_it_there_once(
    cuts: list[int], data: st.DataObject
) -> None:
    """Each round sends on from what the submitter's own replica has folded, late or not."""
    values = [b"%d" % number for number in range(5)]
    log = [FOUNDED, granted(1, 1)]
    for size in cuts:
        seen = data.draw(st.integers(0, len(log)))
        fold, _ = folded(log[:seen])
        have = fold.submitters[1].serial if 1 in fold.submitters else 0
        epoch = log[-1][0] + 1
        sent = [written(1, have + n + 1, each, epoch=epoch) for n, each in enumerate(values[have:])]
        log += sent[:size]
    log += [written(1, n, each, epoch=99) for n, each in enumerate(values, 1)]
    _, said = folded(log)
    taken = [
        entry[2] for entry, one in zip(log, said, strict=True) if isinstance(one, AcceptedEvent)
    ]
    assert taken == values


def test_a_repeat_is_told_by_its_bytes() -> None:
    said = outcomes(granted(1, 1), written(1, 1, b"x"), written(1, 1, b"x"), written(1, 1, b"y"))
    assert said[1:] == [AcceptedEvent(0, 0), Passed.REPEATED, Passed.CONFLICTING]
    moved = outcomes(granted(1, 1), written(1, 1, b"x"), written(1, 1, b"x", partition=1))
    assert moved[-1] is Passed.CONFLICTING
    nothing = outcomes(granted(1, 1), written(1, 1, b""), written(1, 1, None))
    assert nothing[-1] is Passed.CONFLICTING


def test_one_before_is_awaited_and_one_of_another_incarnation_refused() -> None:
    said = outcomes(written(1, 1), granted(1, 1), written(1, 2), written(2, 1), written(1, 1))
    assert said == [
        Passed.FENCED,
        Passed.GRANTED,
        Passed.OUT_OF_ORDER,
        Passed.FENCED,
        AcceptedEvent(0, 0),
    ]


def test_so_many_are_known_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "REMEMBERED", 2)
    first = [granted(1, 1), *(written(1, serial) for serial in (1, 2, 3))]
    assert outcomes(*first, written(1, 1, b"other"))[-1] is Passed.REPEATED
    assert outcomes(*first, written(1, 2, b"other"))[-1] is Passed.CONFLICTING


def test_one_that_was_restored_from_a_backup_can_not_repeat_an_incarnation() -> None:
    """Its state, its clock, its replica: all are as they were, and the log is not."""
    before = [granted(1, 1, "then"), written(1, 1, b"then")]
    assert outcomes(*before, granted(1, 1, "now"))[-1] is Passed.FENCED
    assert outcomes(*before, written(1, 1, b"now"))[-1] is Passed.CONFLICTING
    assert outcomes(*before, granted(1, 2, "now"), written(2, 1, b"now"))[-1] == AcceptedEvent(0, 1)


def test_a_grant_that_is_late_takes_nothing_back() -> None:
    said = outcomes(
        granted(1, 1, "a"),
        granted(1, 1, "a"),
        granted(1, 2, "b"),
        granted(1, 1, "a"),
        written(2, 1),
    )
    assert said == [
        Passed.GRANTED,
        Passed.REPEATED,
        Passed.GRANTED,
        Passed.FENCED,
        AcceptedEvent(0, 0),
    ]


def test_a_log_is_founded_once() -> None:
    again = (1, FOUNDED[1], pack_count(3))
    fold, said = folded([(1, FOUNDED[1], b"none"), FOUNDED, again])
    assert said == [Passed.FOREIGN, Passed.FOUNDED, Passed.REPEATED]
    assert fold.partition_count == 2


def test_before_it_is_founded_it_has_no_partitions() -> None:
    assert folded([granted(1, 1), written(1, 1)])[1] == [Passed.GRANTED, Passed.FOREIGN]


def test_a_grant_needs_what_tells_it_from_another() -> None:
    for value in (None, b"short"):
        assert outcomes((1, RecordKey(GRANT, 1, 1, 0), value)) == [Passed.FOREIGN]


def test_epochs_are_those_that_wrote_to_the_partition() -> None:
    fold, _ = folded(
        [
            FOUNDED,
            granted(1, 1),
            written(1, 1, epoch=2),
            written(1, 2, epoch=3, partition=1),
            written(1, 2, epoch=4, partition=1),
            written(1, 3, epoch=7),
        ]
    )
    assert [each.entries for each in fold.epochs] == [[(2, 0), (7, 1)], [(3, 0)]]
    first = fold.epochs[0]
    assert [first.end_of(epoch, fold.ends[0]) for epoch in (1, 2, 5, 7, 9)] == [
        (-1, -1),
        (2, 1),
        (2, 1),
        (7, 2),
        (7, 2),
    ]
    assert [first.epoch_of(offset) for offset in (0, 1, 5)] == [2, 7, 7]
