"""Following controllers that a test plays: what is taken in, what is believed, what is not."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlmm_daemon.adapters.controllers import observer as module
from rlmm_daemon.adapters.controllers.observer import ControllersObserver
from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.quorum.links import Unreachable
from rlmm_daemon.codec.kraft import checkpoint
from rlmm_daemon.codec.kraft.cluster_records import Record
from rlmm_daemon.core.cluster_image.word import ControllersState
from rlmm_daemon.core.raft.log_facts import Batch, LogPoint
from rlmm_daemon.core.raft.messages import (
    Answer,
    Code,
    FetchAnswer,
    FetchRequest,
    FetchSnapshotAnswer,
    FetchSnapshotRequest,
    Request,
)
from rlmm_daemon.core.raft.voters import Endpoint, VotersAt, VoterSet
from rlmm_daemon.domain.backoff import Backoff
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.domain.ids import TopicId
from tests.support import cluster_log
from tests.support.cluster_log import BEGIN, END, partition, removed, topic

A, B = TopicId(b"a" * 16), TopicId(b"b" * 16)
FIRST, SECOND = Endpoint("", "first", 1), Endpoint("", "second", 2)
AT = LogPoint(epoch=2, end=100)


def snapshot(*records: Record, point: LogPoint = AT) -> bytes:
    pairs = [(None, cluster_log.value(each)) for each in records]
    built = checkpoint.build(
        point, VotersAt(-1, VoterSet(), 0), pairs, timestamp_ms=0, last_timestamp_ms=0
    )
    return b"".join(built)


@dataclass
class Controllers:
    """Two of them; the first leads."""

    epoch: int = 3
    leader: Endpoint = FIRST
    snapshot: bytes = field(default_factory=lambda: snapshot(topic(A), partition(A)))
    point: LogPoint = AT
    batches: list[Batch] = field(default_factory=list)
    high_watermark: int = AT.end
    piece: int = 40
    #: Answered instead of the next ones.
    instead: list[Answer | Unreachable] = field(default_factory=list)
    asked: list[tuple[Endpoint, Request]] = field(default_factory=list)
    closed: bool = False

    async def ask(self, request: Request, endpoints: Sequence[Endpoint]) -> Answer:
        self.asked.append((endpoints[0], request))
        await asyncio.sleep(0)
        if self.instead:
            answer = self.instead.pop(0)
            if isinstance(answer, Unreachable):
                raise answer
            return answer
        assert isinstance(request, FetchRequest | FetchSnapshotRequest)
        led: dict[str, Any] = {"epoch": self.epoch, "leader": 1, "endpoints": (self.leader,)}
        kind = FetchAnswer if isinstance(request, FetchRequest) else FetchSnapshotAnswer
        if endpoints[0] != self.leader:
            return kind(error=Code.NOT_LEADER_OR_FOLLOWER, **led)
        if request.epoch != self.epoch:
            return kind(error=Code.FENCED_LEADER_EPOCH, **led)
        if isinstance(request, FetchSnapshotRequest):
            assert request.snapshot == self.point
            return FetchSnapshotAnswer(
                error=Code.NONE,
                snapshot=self.point,
                size=len(self.snapshot),
                position=request.position,
                piece=self.snapshot[request.position :][: self.piece],
                **led,
            )
        if request.point.end < self.point.end:
            return FetchAnswer(error=Code.NONE, snapshot=self.point, **led)
        follow = tuple(each for each in self.batches if each.base >= request.point.end)
        return FetchAnswer(
            error=Code.NONE, batches=follow, high_watermark=self.high_watermark, **led
        )

    def close(self) -> None:
        self.closed = True


def following(controllers: Controllers) -> ControllersObserver:
    async def ours() -> str:
        return "ours"

    return ControllersObserver(
        (SECOND, FIRST), lambda _: controllers, ours, clock=SystemClock(), rng=random.Random(1)
    )


async def turned(observer: ControllersObserver, times: int = 8) -> float:
    """Let it fetch; return how long it would wait now."""
    backoff = Backoff(0.1, 1.0, random.Random(1).random)
    pauses = [await observer._turn(backoff) for _ in range(times)]
    return pauses[-1]


def standing(observer: ControllersObserver) -> ControllersState:
    return observer.following.standing


def topics(observer: ControllersObserver) -> set[TopicId]:
    image = observer.following.image
    return set() if image is None else set(image.topics)


async def test_a_snapshot_comes_first_and_then_what_follows_it():
    controllers = Controllers(batches=[cluster_log.batch(topic(B), removed(A), base=100, epoch=3)])
    controllers.high_watermark = 102
    observer = following(controllers)
    assert await turned(observer) == module.POLL_SECONDS
    assert (standing(observer), topics(observer)) == (ControllersState.CURRENT, {B})
    assert observer.observed().at == LogPoint(epoch=3, end=102)
    assert controllers.asked[0][0] == SECOND, "who does not lead names who does"


async def test_what_is_not_committed_is_not_taken_in():
    first = cluster_log.batch(topic(B), base=100, epoch=3)
    second = cluster_log.batch(removed(A), base=101, epoch=3)
    controllers = Controllers(batches=[first, second], high_watermark=101)
    observer = following(controllers)
    await turned(observer)
    assert (standing(observer), topics(observer)) == (ControllersState.CURRENT, {A, B})
    controllers.high_watermark = 102
    await turned(observer, 1)
    assert topics(observer) == {B}


async def test_a_leader_that_knows_not_what_is_committed_confirms_nothing():
    observer = following(Controllers(high_watermark=-1))
    await turned(observer)
    assert standing(observer) is not ControllersState.CURRENT
    assert await observer.word([A], 0.0, cluster_id="ours") is None


async def test_a_transaction_over_several_batches_counts_at_its_end():
    controllers = Controllers(
        batches=[
            cluster_log.batch(BEGIN, topic(B), base=100, epoch=3),
            cluster_log.batch(removed(A), END, base=102, epoch=3),
        ],
        high_watermark=102,
    )
    observer = following(controllers)
    await turned(observer)
    assert topics(observer) == {A}
    controllers.high_watermark = 104
    await turned(observer, 1)
    assert topics(observer) == {B}


async def test_another_leader_is_followed_where_the_old_one_names_it():
    controllers = Controllers()
    observer = following(controllers)
    await turned(observer)
    controllers.leader, controllers.epoch = SECOND, 4
    await turned(observer, 3)
    assert standing(observer) is ControllersState.CURRENT
    assert controllers.asked[-1][0] == SECOND


async def test_while_nobody_answers_the_image_is_stale_and_no_word_is_waited_for():
    controllers = Controllers()
    observer = following(controllers)
    await turned(observer)
    controllers.instead = [Unreachable("nobody listens")]
    await turned(observer, 1)
    assert standing(observer) is ControllersState.STALE
    async with asyncio.timeout(1):
        assert await observer.word([A], 0.0, cluster_id="ours") is None
    await turned(observer, 3)
    assert standing(observer) is ControllersState.CURRENT


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (Code.INCONSISTENT_CLUSTER_ID, ControllersState.OTHER_CLUSTER),
        (Code.CLUSTER_AUTHORIZATION_FAILED, ControllersState.UNAUTHORIZED),
        (Code.UNKNOWN_SERVER_ERROR, ControllersState.STALE),
        (Code.UNKNOWN_LEADER_EPOCH, ControllersState.STALE),
    ],
)
async def test_whatever_is_refused_ends_its_word(code, wanted):
    controllers = Controllers()
    observer = following(controllers)
    await turned(observer)
    controllers.instead = [FetchAnswer(error=code, epoch=3)]
    pause = await turned(observer, 1)
    assert standing(observer) is wanted
    assert (pause >= 30) == (wanted is not ControllersState.STALE)
    assert await observer.word([A], 0.0, cluster_id="ours") is None


async def test_a_log_that_is_another_one_is_read_anew():
    controllers = Controllers()
    observer = following(controllers)
    await turned(observer)
    controllers.snapshot = snapshot(topic(B), point=LogPoint(3, 120))
    controllers.point, controllers.high_watermark = LogPoint(3, 120), 120
    cut = FetchAnswer(error=Code.NONE, epoch=3, leader=1, diverging=LogPoint(2, 50))
    controllers.instead = [cut]
    await turned(observer, 1)
    assert (standing(observer), topics(observer)) == (ControllersState.LOADING, set())
    await turned(observer, 3)
    assert (standing(observer), topics(observer)) == (ControllersState.CURRENT, {B})


async def test_controllers_that_began_anew_at_lower_epochs_are_read_anew():
    controllers = Controllers(epoch=7)
    observer = following(controllers)
    await turned(observer)
    controllers.snapshot = snapshot(topic(B), point=LogPoint(1, 120))
    controllers.epoch, controllers.point, controllers.high_watermark = 1, LogPoint(1, 120), 120
    ahead = FetchAnswer(error=Code.UNKNOWN_LEADER_EPOCH, epoch=1)
    controllers.instead = [ahead] * (module._AHEAD_MAX - 1)
    await turned(observer, module._AHEAD_MAX - 1)
    assert (standing(observer), topics(observer)) == (ControllersState.STALE, {A}), (
        "one may be behind"
    )
    controllers.instead = [ahead]
    await turned(observer)
    assert (standing(observer), topics(observer)) == (ControllersState.CURRENT, {B})


async def test_a_gap_in_the_log_is_no_log():
    controllers = Controllers(batches=[cluster_log.batch(topic(B), base=101, epoch=3)])
    controllers.high_watermark = 102
    observer = following(controllers)
    await turned(observer, 5)
    assert standing(observer) is ControllersState.UNREADABLE
    assert "offset 101" in (observer.observed().trouble or "")


async def test_an_older_epoch_behind_a_newer_one_is_no_log():
    controllers = Controllers(batches=[cluster_log.batch(topic(B), base=100, epoch=1)])
    controllers.high_watermark = 101
    observer = following(controllers)
    await turned(observer, 5)
    assert standing(observer) is ControllersState.UNREADABLE


async def test_a_record_of_a_newer_version_ends_the_word_and_is_named():
    newer = b"\x01\x02\x01\x07orders" + B + b"\x00"
    controllers = Controllers(batches=[cluster_log.batch(newer, base=100, epoch=3)])
    controllers.high_watermark = 101
    observer = following(controllers)
    await turned(observer, 5)
    assert standing(observer) is ControllersState.UNREADABLE
    assert "TOPIC of version 1" in (observer.observed().trouble or "")


@pytest.mark.parametrize("cut", [1, 60])
async def test_a_snapshot_that_is_cut_short_is_none(cut):
    controllers = Controllers()
    controllers.snapshot = controllers.snapshot[:-cut]
    observer = following(controllers)
    await turned(observer, 4)
    assert standing(observer) is ControllersState.UNREADABLE
    assert observer.following.image is None


@pytest.mark.parametrize(
    "changed",
    [{"size": 1_000}, {"position": 3}, {"snapshot": LogPoint(2, 99)}, {"piece": b""}],
)
async def test_pieces_of_another_snapshot_are_thrown_away(changed):
    controllers = Controllers(piece=1 << 20)
    observer = following(controllers)
    while not isinstance(controllers.asked and controllers.asked[-1][1], FetchSnapshotRequest):
        await turned(observer, 1)
    observer._begin_anew()
    whole = FetchAnswer(error=Code.NONE, epoch=3, leader=1, snapshot=AT)
    half = len(controllers.snapshot) // 2
    told: dict[str, Any] = {"snapshot": AT, "size": len(controllers.snapshot), "position": half}
    told |= {"piece": controllers.snapshot[half:]} | changed
    first: dict[str, Any] = {"snapshot": AT, "size": len(controllers.snapshot), "position": 0}
    controllers.instead = [
        whole,
        FetchSnapshotAnswer(
            error=Code.NONE, epoch=3, leader=1, piece=controllers.snapshot[:half], **first
        ),
        FetchSnapshotAnswer(error=Code.NONE, epoch=3, leader=1, **told),
    ]
    await turned(observer, 1)
    assert observer.following.image is None
    await turned(observer, 3)
    assert (standing(observer), topics(observer)) == (ControllersState.CURRENT, {A})


async def test_a_snapshot_that_is_gone_meanwhile_is_asked_for_anew():
    controllers = Controllers()
    observer = following(controllers)
    offered = FetchAnswer(error=Code.NONE, epoch=3, leader=1, snapshot=LogPoint(1, 50))
    gone = FetchSnapshotAnswer(error=Code.UNKNOWN_SERVER_ERROR, epoch=3)
    controllers.instead = [offered, gone]
    await turned(observer)
    assert standing(observer) is ControllersState.CURRENT


async def test_before_the_brokers_named_their_cluster_nobody_is_asked():
    async def nobody() -> str:
        raise StorageUnavailable("no broker answers")

    controllers = Controllers()
    observer = ControllersObserver(
        (FIRST,), lambda _: controllers, nobody, clock=SystemClock(), rng=random.Random(1)
    )
    await turned(observer, 2)
    assert (standing(observer), controllers.asked) == (ControllersState.LOADING, [])


async def test_a_word_is_of_a_fetch_that_was_sent_after_the_question():
    controllers = Controllers()
    observer = following(controllers)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(observer.run())
        async with asyncio.timeout(10):
            while standing(observer) is not ControllersState.CURRENT:
                await observer._next_answer()
        controllers.batches = [cluster_log.batch(removed(A), base=100, epoch=3)]
        controllers.high_watermark = 101
        # The next fetch that nobody asks for is seconds away: this one is sent for the question.
        async with asyncio.timeout(module.POLL_SECONDS / 2):
            word = await observer.word([A], SystemClock().monotonic(), cluster_id="ours")
        task.cancel()
    assert word is not None
    assert (dict(word.removed), word.at) == ({A: 100}, LogPoint(3, 101))
    assert not word.known
    assert controllers.closed
