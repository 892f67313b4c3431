"""Orders on failed partitions: retry, repair, acceptance; what each appends and answers."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from rlmm_daemon.codec import records
from rlmm_daemon.codec.custom_metadata import ONLY_IF_STARTED
from rlmm_daemon.core.fold.fold import Fold
from rlmm_daemon.core.readiness.states import Failure, FailureReason, PartitionState
from rlmm_daemon.daemon.base.broadcast import Broadcast
from rlmm_daemon.daemon.operator import mending
from rlmm_daemon.daemon.operator.mending import Mending
from rlmm_daemon.daemon.operator.recovering import Look
from rlmm_daemon.domain.errors import (
    ChecksumMismatch,
    HistoryLost,
    InvalidArgument,
    NotReady,
    OutcomeUnknown,
    StorageUnavailable,
    UnsupportedProtocol,
)
from rlmm_daemon.domain.segment import SegmentState, SegmentUpdate
from tests.unit.daemon.events import COUNT, TP, of, updated
from tests.unit.daemon.operator.test_recovering import Follower, begun, facts_of, finished

S = SegmentState
NUMBER = of(TP)


def lost(reason: FailureReason = FailureReason.HISTORY_LOST) -> Failure:
    return Failure(reason=reason, evidence="the evidence", at_ms=1)


@dataclass
class Failed(Follower):
    """A follower that is judged again as soon as it is started over: `verdicts` says how."""

    state: PartitionState = PartitionState.FAILED
    restarting: bool = False
    head_alone: bool = False
    went_on_from: int = 0
    read_to_end: bool = True
    waits_for_order: bool = False
    lag: int = 5
    verdicts: list[Failure | None] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    @property
    def missing_count(self) -> int:
        return len(self.missing)

    def __hash__(self) -> int:
        return id(self)

    def retry(self) -> None:
        self.done.append("retry")
        self.failure = self.verdicts.pop(0) if self.verdicts else None
        self.state = PartitionState.FAILED if self.failure else PartitionState.READY

    async def known_to_snapshot(self) -> list[bytes]:
        self.done.append("written down")
        return []

    async def append(self, partition: int, record: bytes) -> int:
        self.done.append("append")
        return await super().append(partition, record)


class Guard:
    def __init__(self, done: list[str]) -> None:
        self.done = done

    def forgive(self, partition: int) -> None:
        self.done.append(f"forgive {partition}")


@dataclass
class FakeRecovery:
    """Finds what it is told."""

    found: Look
    fault: Exception | None = None
    asked: list[int] = field(default_factory=list)
    told_to_put_back: bool = False

    async def look(self, _: Follower, candidates: list[Any]) -> Look:
        self.asked = [each.segment.start_offset // 10 for each in candidates]
        if self.fault is not None:
            raise self.fault
        return self.found

    async def put_back(self, _: Follower, whole: Any) -> int:
        self.told_to_put_back = True
        return 2 * len(whole)


NOTHING = Look(whole=[], lacking=[], left=0)


@dataclass
class FakeFleet:
    """Notes what is accepted; its only follower is the log too."""

    only: Any
    accepted: list[Any] = field(default_factory=list)
    #: The log is gone, and there are snapshots of it.
    restorable: bool = False
    #: Whether the last acceptance was one without a look.
    given_up: bool | None = None

    @property
    def fleet(self) -> "FakeFleet":
        return self

    @property
    def acceptance(self) -> "FakeFleet":
        return self

    @property
    def log(self) -> Any:
        return self.only

    def released(self, partition: int) -> None:
        self.only.done.append(f"released {partition}")

    def followed(self) -> list[Any]:
        return [self.only]

    async def accept(self, follower: Any, *, without_looking: bool) -> None:
        self.accepted.append(follower.partition)
        self.given_up = without_looking
        follower.retry()
        follower.missing = []

    async def can_be_restored(self) -> bool:
        return self.restorable

    async def accept_all(self, *, without_looking: bool) -> None:
        self.accepted.append("all")
        self.given_up = without_looking
        self.only.retry()
        self.only.missing = []


def ordered(
    follower: Failed, *, recovery: FakeRecovery | None = None, repair: Any = None
) -> tuple[Mending, FakeFleet]:
    fleet = FakeFleet(follower)
    guard = Guard(follower.done)
    given = cast("Any", recovery)
    return (
        Mending(cast("Any", fleet), guard=cast("Any", guard), repair=repair, recovery=given),
        fleet,
    )


async def test_a_retry_starts_those_over_that_failed_and_no_other():
    failed, well = Failed(failure=lost()), Failed(state=PartitionState.READY)
    mending_of, _ = ordered(failed)
    answer = await mending_of.retry(cast("Any", [failed, well]))
    assert answer == {"retried": [NUMBER], "failed": [], "next": []}
    assert failed.done == [f"released {NUMBER}", f"forgive {NUMBER}", "retry"]
    assert well.done == []
    again = Failed(failure=lost(), verdicts=[lost()])
    answer = await ordered(again)[0].retry(cast("Any", [again]))
    assert (answer["failed"], answer["next"]) == ([NUMBER], [lost().command(NUMBER)])


async def test_a_retry_where_none_has_failed_starts_nothing_over():
    well = Failed(state=PartitionState.READY)
    answer = await ordered(well)[0].retry(cast("Any", [well]))
    assert (answer["retried"], well.done) == ([], [])


async def test_a_retry_of_a_failed_one_does_not_wait_for_another_that_is_not_judged():
    failed, unknown = Failed(failure=lost()), Failed(state=PartitionState.REPLAYING)
    answer = await ordered(failed)[0].retry(cast("Any", [failed, unknown]))
    assert answer["retried"] == [NUMBER]


@pytest.mark.parametrize("reason", [FailureReason.CRASH_LOOP, FailureReason.HISTORY_LOST])
async def test_a_repair_forgives_crashes_or_the_next_start_would_hold_it_back(reason):
    follower = Failed(failure=lost(reason))
    await ordered(follower)[0].repair(cast("Any", [follower]))
    forgiven = [f"released {NUMBER}", f"forgive {NUMBER}"] * (reason is FailureReason.CRASH_LOOP)
    assert follower.done[:2] == (forgiven or ["retry"])


@pytest.mark.parametrize("everything", [False, True])
async def test_nothing_is_accepted_before_somebody_looked_for_the_objects(everything):
    follower = Failed(failure=lost(), missing=[records.encode(finished(1))])
    mend, fleet = ordered(follower, recovery=FakeRecovery(NOTHING))

    async def accept(*, without_looking: bool) -> dict[str, Any]:
        if everything:
            return await mend.accept_everything(without_looking=without_looking)
        return await mend.accept(cast("Any", follower), without_looking=without_looking)

    for uncertain, command in (
        (False, f"rlmm log repair {NUMBER} "),
        (True, f"rlmm log recover {NUMBER} --execute "),
    ):
        follower.uncertain = uncertain
        with pytest.raises(InvalidArgument, match=rf"1 finished segment .* run: {command}"):
            await accept(without_looking=False)
        assert (fleet.accepted, follower.done) == ([], [])
    answer = await accept(without_looking=True)
    assert answer == {"accepted": "all" if everything else [NUMBER], "missing": 1, "next": []}
    assert fleet.given_up is True
    assert fleet.accepted == ["all" if everything else NUMBER]


@pytest.mark.parametrize("why", ["looked for", "nothing is missing", "no storage"])
async def test_what_nobody_can_look_for_is_accepted_at_once(why):
    follower = Failed(failure=lost(), missing=[records.encode(finished(1))])
    follower.looked_for = why == "looked for"
    if why == "nothing is missing":
        follower.missing = []
    recovery = None if why == "no storage" else FakeRecovery(NOTHING)
    mend, fleet = ordered(follower, recovery=recovery)
    missing = follower.missing_count
    answer = await mend.accept(cast("Any", follower), without_looking=False)
    assert answer == {"accepted": [NUMBER], "missing": missing, "next": []}
    assert fleet.given_up is False
    assert fleet.accepted == [NUMBER]
    follower.missing = []
    assert (await mend.accept_everything(without_looking=False))["accepted"] == "all"


@pytest.mark.parametrize("why", ["lacks nothing", "lost its head alone"])
async def test_what_is_known_of_one_partition_hides_no_other_that_was_not_looked_for(
    monkeypatch, why
):
    well, lacking = Failed(failure=lost()), Failed(failure=lost())
    if why == "lost its head alone":
        well.missing, well.head_alone = [records.encode(finished(2))], True
    lacking.missing = [records.encode(finished(1))]
    mend, fleet = ordered(lacking, recovery=FakeRecovery(NOTHING))
    monkeypatch.setattr(fleet, "followed", lambda: [well, lacking])
    with pytest.raises(InvalidArgument, match="nobody has looked"):
        await mend.accept_everything(without_looking=False)
    assert fleet.accepted == []


@pytest.mark.parametrize("failure", [None, lost()])
@pytest.mark.parametrize("error", [ChecksumMismatch("damaged"), UnsupportedProtocol("newer")])
async def test_no_fold_is_dropped_whose_list_of_what_it_missed_cannot_be_read(
    monkeypatch, failure, error
):
    follower: Any = Failed(failure=failure)

    async def load() -> None:
        raise error

    monkeypatch.setattr(follower, "load", load, raising=False)
    monkeypatch.setattr(follower, "rebuild", lambda: pytest.fail("dropped"), raising=False)
    with pytest.raises(type(error) if failure is None else HistoryLost):
        await ordered(follower)[0].rebuild(follower)


async def test_no_log_is_given_up_that_snapshots_bring_back():
    follower = Failed(failure=lost())
    mend, fleet = ordered(follower, recovery=FakeRecovery(NOTHING))
    fleet.restorable = True
    with pytest.raises(InvalidArgument, match="rlmm log restore"):
        await mend.accept_everything(without_looking=False)
    assert fleet.accepted == []
    await mend.accept_everything(without_looking=True)
    assert fleet.accepted == ["all"]


async def test_a_damaged_log_is_mended_once_what_was_known_is_written_down():
    follower = Failed(failure=lost(FailureReason.LOG_CORRUPT))

    async def repair(partition: int, given: Any) -> dict[str, Any]:
        follower.done.append(f"repair {partition}")
        assert not given, "what the log still says has to be read first"
        follower.missing = [records.encode(finished(1))]
        return {"set_aside": ["a file"]}

    mend, _ = ordered(follower, repair=repair)
    (row,) = (await mend.repair(cast("Any", [follower])))["repaired"]
    order = ["written down", f"repair {NUMBER}", "retry", "append", "append", "retry"]
    assert follower.done == order
    assert row == {
        "metadata_partition": NUMBER, "reason": "log_corrupt", "set_aside": ["a file"],
        "appended": 2, "state": "ready",
    }  # fmt: skip
    assert follower.state is PartitionState.READY


async def test_a_log_that_was_mended_is_read_before_anything_is_appended_to_it(monkeypatch):
    follower = Failed(failure=lost(FailureReason.LOG_CORRUPT))
    follower.missing = [records.encode(finished(1))]

    async def repair(*_: Any) -> dict[str, Any]:
        return {}

    async def judged(followers: Any) -> None:
        assert list(followers) == [follower]
        follower.done.append("judged")

    monkeypatch.setattr(mending, "_judged", judged)
    await ordered(follower, repair=repair)[0].repair(cast("Any", [follower]))
    assert follower.done == [
        "written down", "retry", "judged", "append", "append", "retry", "judged",
    ]  # fmt: skip


@pytest.mark.parametrize("everything", [False, True])
async def test_an_acceptance_is_answered_once_its_partitions_were_judged(monkeypatch, everything):
    follower = Failed(failure=lost())
    seen: list[Any] = []

    async def judged(followers: Any) -> None:
        seen.extend(followers)

    monkeypatch.setattr(mending, "_judged", judged)
    mend, _ = ordered(follower)
    if everything:
        await mend.accept_everything(without_looking=False)
    else:
        await mend.accept(cast("Any", follower), without_looking=False)
    assert seen[-1] is follower


async def test_an_acceptance_of_everything_names_what_fails_of_what_is_followed_since(monkeypatch):
    """The whole log is followed anew by it, and what failed meanwhile has a command."""
    before, since = Failed(failure=lost()), Failed(failure=lost())
    mend, fleet = ordered(before)
    monkeypatch.setattr(fleet, "followed", lambda: [since] if fleet.accepted else [before])
    answer = await mend.accept_everything(without_looking=True)
    assert (before.failure, answer["next"]) == (None, [lost().command(NUMBER)])


@pytest.mark.parametrize("reason", [FailureReason.CRASH_LOOP, FailureReason.HISTORY_LOST])
async def test_a_rebuild_forgives_crashes_or_the_next_start_would_hold_it_back(monkeypatch, reason):
    follower: Any = Failed(failure=lost(reason))

    async def load() -> None:
        follower.done.append("load")

    monkeypatch.setattr(follower, "load", load, raising=False)
    monkeypatch.setattr(follower, "rebuild", follower.retry, raising=False)
    await ordered(follower)[0].rebuild(follower)
    forgiven = [f"released {NUMBER}", f"forgive {NUMBER}"] * (reason is FailureReason.CRASH_LOOP)
    assert follower.done == ["load", "retry", *forgiven]


async def test_a_retry_is_answered_once_what_it_started_over_is_judged_anew(monkeypatch):
    follower = Failed(failure=lost())

    def retry() -> None:
        follower.failure, follower.state = None, PartitionState.REPLAYING

    class Judging(Broadcast):
        async def wait(self, *_: Broadcast) -> None:
            follower.failure, follower.state = lost(), PartitionState.FAILED

    monkeypatch.setattr(follower, "retry", retry)
    follower.changed = Judging()
    answer = await ordered(follower)[0].retry(cast("Any", [follower]))
    assert (answer["failed"], answer["next"]) == ([NUMBER], [lost().command(NUMBER)])


async def test_an_acceptance_right_after_a_start_waits_for_what_is_not_judged_yet():
    follower = Failed(state=PartitionState.REPLAYING)
    mend, fleet = ordered(follower)
    accepted_at_the_wait: list[list[Any]] = []

    class Judging(Broadcast):
        async def wait(self, *_: Broadcast) -> None:
            accepted_at_the_wait.append([*fleet.accepted])
            follower.failure, follower.state = lost(), PartitionState.FAILED

    follower.changed = Judging()
    await mend.accept(cast("Any", follower), without_looking=True)
    assert accepted_at_the_wait == [[]]
    assert fleet.accepted == [NUMBER]


async def test_a_retry_right_after_a_start_waits_for_what_is_not_judged_yet():
    follower = Failed(state=PartitionState.REPLAYING)

    class Judging(Broadcast):
        async def wait(self, *_: Broadcast) -> None:
            follower.failure, follower.state = lost(), PartitionState.FAILED

    follower.changed = Judging()
    answer = await ordered(follower)[0].retry(cast("Any", [follower]))
    assert answer["retried"] == [NUMBER]


async def test_a_repair_right_after_a_start_waits_for_what_is_not_judged_yet():
    follower = Failed(state=PartitionState.REPLAYING)

    class Judging(Broadcast):
        async def wait(self, *_: Broadcast) -> None:
            follower.failure, follower.state = lost(), PartitionState.FAILED

    follower.changed = Judging()
    (row,) = (await ordered(follower)[0].repair(cast("Any", [follower])))["repaired"]
    assert (row["metadata_partition"], row["state"]) == (NUMBER, "ready")


async def test_what_is_not_judged_in_time_is_told_as_not_known(monkeypatch):
    monkeypatch.setattr(mending, "JUDGED_SECONDS", 0.01)
    follower = Failed(state=PartitionState.REPLAYING)
    with pytest.raises(NotReady, match="replaying, 5 events behind"):
        await ordered(follower)[0].retry(cast("Any", [follower]))
    answer = await ordered(follower)[0].repair(cast("Any", [follower]))
    assert answer == {"repaired": [], "not_known": [NUMBER], "not_read": []}


async def test_what_serves_from_a_snapshot_is_told_to_be_read_before_it_is_repaired():
    follower = Failed(state=PartitionState.READY, went_on_from=7)
    answer = await ordered(follower, repair=object())[0].repair(cast("Any", [follower]))
    row = {"metadata_partition": NUMBER, "before_offset": 7}
    assert answer == {"repaired": [], "not_known": [], "not_read": [row]}
    answer = await ordered(follower)[0].repair(cast("Any", [follower]))
    assert answer["not_read"] == [], "the brokers' log is theirs to mend"


THEIRS = "others have this log, too: it is theirs to mend"


async def test_a_log_that_others_have_too_is_only_read_again():
    again = lost(FailureReason.LOG_CORRUPT)
    follower = Failed(failure=again, verdicts=[again])
    (row,) = (await ordered(follower)[0].repair(cast("Any", [follower])))["repaired"]
    assert follower.done == ["retry"]
    assert (row["error"], row["state"]) == (THEIRS, "failed")
    assert row["next"] == again.command(NUMBER)


async def test_files_that_a_repair_does_not_mend_are_left_alone():
    """Directories that changed places: each lacks what is in the other."""
    failure = Failure(FailureReason.LOG_CORRUPT, "mixed up", 1, instead="rlmm doctor")
    follower = Failed(failure=failure, verdicts=[failure])

    async def repair(*_: Any) -> dict[str, Any]:
        raise AssertionError("nothing is to be mended")

    (row,) = (await ordered(follower, repair=repair)[0].repair(cast("Any", [follower])))["repaired"]
    assert follower.done == ["retry"], "what is known is not given up either"
    assert (row["error"], row["next"]) == ("mixed up", "rlmm doctor")


async def test_a_repair_says_what_it_failed_of_again_and_the_next_command():
    follower = Failed(failure=lost(), verdicts=[lost()])
    (row,) = (await ordered(follower)[0].repair(cast("Any", [follower])))["repaired"]
    assert (row["state"], row["error"]) == ("failed", "the evidence")
    assert row["next"] == lost().command(NUMBER)
    assert row["appended"] == 0


async def test_without_a_storage_what_is_missing_is_finished_again_from_what_was_known():
    follower = Failed(failure=lost(), missing=[records.encode(finished(n)) for n in (1, 2)])
    follower.apply(records.encode(begun(2)))
    (row,) = (await ordered(follower)[0].repair(cast("Any", [follower])))["repaired"]
    assert row["appended"] == 3, "the beginning of the second is in the log"
    assert [follower.state_of(n) for n in (1, 2)] == [S.COPY_SEGMENT_FINISHED] * 2
    first, second, third = map(records.decode, follower.appended)
    assert cast("Any", first).state is S.COPY_SEGMENT_STARTED
    for update, number in ((second, 1), (third, 2)):
        assert isinstance(update, SegmentUpdate)
        assert update.custom_metadata == facts_of(begun(number))


@pytest.mark.parametrize("uncertain", [False, True])
async def test_where_an_end_may_be_lost_too_nothing_is_put_back_by_a_repair(uncertain):
    follower = Failed(failure=lost(), missing=[records.encode(finished(n)) for n in (1, 2, 3)])
    follower.uncertain = uncertain
    missing = [finished(n) for n in (1, 2, 3)]
    look = Look(
        whole=[cast("Any", (missing[0], b""))],
        lacking=[cast("Any", (missing[1], "why"))],
        left=0,
    )
    recovery = FakeRecovery(look)
    (row,) = (await ordered(follower, recovery=recovery)[0].repair(cast("Any", [follower])))[
        "repaired"
    ]
    if uncertain:
        assert (row["may_have_ended"], row["appended"], recovery.asked) == (3, 0, [])
        assert "not_whole" not in row
        assert not follower.looked_for
    else:
        assert (row["appended"], row["not_whole"], recovery.asked) == (2, 1, [1, 2, 3])
        assert not row.keys() & {"may_have_ended", "not_looked_at"}
        assert follower.looked_for


async def test_a_repair_that_could_not_look_at_all_says_how_many_are_left():
    follower = Failed(failure=lost())
    recovery = FakeRecovery(Look(whole=[], lacking=[], left=7))
    (row,) = (await ordered(follower, recovery=recovery)[0].repair(cast("Any", [follower])))[
        "repaired"
    ]
    assert (row["not_looked_at"], row["appended"]) == (7, 0)
    assert "not_whole" not in row
    assert not follower.looked_for


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (OutcomeUnknown("nobody knows"), "nobody knows"),
        (StorageUnavailable("away"), "objects could not be looked for: away"),
    ],
)
async def test_a_repair_that_fails_half_way_says_so_and_is_judged_anew(fault, told):
    follower = Failed(failure=lost(), missing=[records.encode(finished(1))], verdicts=[lost()])
    recovery = FakeRecovery(NOTHING, fault=fault)
    (row,) = (await ordered(follower, recovery=recovery)[0].repair(cast("Any", [follower])))[
        "repaired"
    ]
    assert (row["error"], row["appended"], follower.done) == (told, 0, ["retry"])


@pytest.mark.parametrize("step", ["look", "put_back"])
async def test_a_repair_of_which_the_log_is_read_anew_meanwhile_looked_for_nothing(
    monkeypatch, step
):
    follower = Failed(failure=lost(), missing=[records.encode(finished(1))], verdicts=[lost()])
    recovery = FakeRecovery(NOTHING)
    as_ever = getattr(recovery, step)

    async def read_anew(*given: Any) -> Any:
        follower.fold = Fold(NUMBER, COUNT)
        return await as_ever(*given)

    monkeypatch.setattr(recovery, step, read_anew)
    mend, _ = ordered(follower, recovery=recovery)
    (row,) = (await mend.repair(cast("Any", [follower])))["repaired"]
    assert row["error"].startswith("objects could not be looked for: metadata partition")
    assert not follower.looked_for
    assert recovery.told_to_put_back is (step == "put_back"), "what was found is of another fold"


@pytest.mark.parametrize("whole", [False, True])
async def test_a_held_segment_is_begun_and_finished_again_once_its_delete_is_over(whole):
    follower = Failed(failure=lost())
    custom = facts_of(begun(1))
    follower.apply(
        records.encode(begun(1)),
        updated(1, custom=custom),
        updated(1, S.DELETE_SEGMENT_STARTED, custom=ONLY_IF_STARTED),
    )
    if whole:
        follower.apply(updated(1, S.DELETE_SEGMENT_FINISHED, custom=ONLY_IF_STARTED))
    assert follower.fold.held_records()
    (row,) = (await ordered(follower)[0].repair(cast("Any", [follower])))["repaired"]
    assert row["appended"] == (2 if whole else 3)
    assert follower.state_of(1) is S.COPY_SEGMENT_FINISHED
    assert not follower.fold.held_records()
    assert cast("Any", records.decode(follower.appended[-1])).custom_metadata == custom


@pytest.mark.parametrize("how", ["read in time", "read too slowly", "stopped", "retired"])
async def test_nothing_is_put_back_of_a_log_that_is_not_read_to_its_end(monkeypatch, how):
    """What was not read yet holds the segment, its end, or that what was held was put back."""
    monkeypatch.setattr(mending, "JUDGED_SECONDS", 0.01 if how == "read too slowly" else 60)
    follower = Failed(failure=lost(), read_to_end=False, waits_for_order=how == "stopped")
    follower.retired = how == "retired"
    follower.missing = [records.encode(finished(1))]
    follower.verdicts = [lost()]
    custom = facts_of(begun(2))
    follower.apply(
        records.encode(begun(2)),
        updated(2, custom=custom),
        updated(2, S.DELETE_SEGMENT_STARTED, custom=ONLY_IF_STARTED),
    )

    class Reading(Broadcast):
        async def wait(self, *_: Broadcast) -> None:
            assert not follower.appended
            assert how.startswith("read"), "nobody will read on"
            if how == "read too slowly":
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            follower.missing, follower.read_to_end = [], True

    follower.changed = Reading()
    (row,) = (await ordered(follower)[0].repair(cast("Any", [follower])))["repaired"]
    if how == "read in time":
        assert (row["appended"], len(follower.appended)) == (3, 3), "what is held alone"
    else:
        assert (row["appended"], follower.appended) == (0, [])
        told = "the evidence" if how == "stopped" else "not read to the end yet"
        assert told in row["error"]


async def test_what_is_missing_of_a_log_that_is_being_read_is_not_given_up(monkeypatch):
    monkeypatch.setattr(mending, "JUDGED_SECONDS", 0.01)
    follower = Failed(state=PartitionState.REPLAYING, missing=[records.encode(finished(1))])
    mend, fleet = ordered(follower)
    with pytest.raises(NotReady, match="replaying, 5 events behind"):
        await mend.accept(cast("Any", follower), without_looking=True)
    assert fleet.accepted == []


async def test_two_repairs_of_one_log_come_one_after_the_other():
    follower = Failed(failure=lost(FailureReason.LOG_CORRUPT), verdicts=[lost()])
    at_work, most = 0, 0

    async def repair(*_: Any) -> dict[str, Any]:
        nonlocal at_work, most
        at_work, most = at_work + 1, max(most, at_work + 1)
        for _turn in range(5):
            await asyncio.sleep(0)
        at_work -= 1
        return {}

    mend, _ = ordered(follower, repair=repair)
    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(mend.repair(cast("Any", [follower]))) for _ in range(2)]
    assert most == 1
    reasons = [row["reason"] for each in both for row in each.result()["repaired"]]
    assert reasons[:1] == ["log_corrupt"]
    assert reasons.count("log_corrupt") == 1, "the other one finds what that led to"


async def test_an_order_waits_until_its_partitions_are_judged_or_gone(monkeypatch):
    follower = Failed(state=PartitionState.REPLAYING)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(mending._judged(cast("Any", [follower])))
        for state, restarting in (
            (PartitionState.STARTING, False),
            (PartitionState.READY, True),
        ):
            follower.state, follower.restarting = state, restarting
            follower.changed.ring()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done()
        follower.restarting = False
        follower.changed.ring()
    for state in (PartitionState.STALE, PartitionState.FAILED):
        follower.state = state
        await mending._judged(cast("Any", [follower]))
    follower.state, follower.retired = PartitionState.REPLAYING, True
    await mending._judged(cast("Any", [follower]))
    follower.retired = False
    monkeypatch.setattr(mending, "JUDGED_SECONDS", 0.01)
    await mending._judged(cast("Any", [follower]))


@pytest.mark.parametrize("everything", [False, True])
async def test_of_a_lost_head_and_a_list_the_head_goes_alone_and_what_still_fails_is_named(
    everything,
):
    follower = Failed(
        failure=lost(),
        verdicts=[lost()],
        head_alone=True,
        missing=[records.encode(finished(1))],
    )
    mend, fleet = ordered(follower, recovery=FakeRecovery(NOTHING))
    if everything:
        answer = await mend.accept_everything(without_looking=False)
    else:
        answer = await mend.accept(cast("Any", follower), without_looking=False)
    assert answer["missing"] == 0, "the list stays"
    assert answer["next"] == [f"rlmm log repair {NUMBER}"]
    assert fleet.given_up is False
