"""A page over a manager in this process, with whatever names its folds are given."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from rlmm_daemon.adapters.peers import ask
from rlmm_daemon.config.model import Prices
from rlmm_daemon.core.explain.facts import CopyFailure
from rlmm_daemon.core.fold.cache import PartitionCache
from rlmm_daemon.daemon.copying.progress import RunningCopy
from rlmm_daemon.daemon.metadata.manager import Manager
from rlmm_daemon.daemon.operator.admin import AdminServer, PageRoom, Ready
from rlmm_daemon.daemon.operator.forecasting import Forecasts
from rlmm_daemon.daemon.operator.page.answers import Answers
from rlmm_daemon.daemon.operator.page.events import EventAnswers
from rlmm_daemon.daemon.operator.page.files import files
from rlmm_daemon.daemon.operator.page.fleet import Fleet, FleetAnswers
from rlmm_daemon.daemon.operator.page.forecast import ForecastAnswers
from rlmm_daemon.daemon.operator.standing import Standing
from rlmm_daemon.daemon.operator.topics import Topics
from rlmm_daemon.domain.ids import TopicId, TopicIdPartition
from rlmm_daemon.observability.metrics import Metrics
from rlmm_daemon.observability.recent import Line

#: What a topic may be called in a log that somebody else wrote to.
HOSTILE = (
    "<img src=x onerror=document.title='owned'>",
    "<script>document.title='owned'</script>",
    "\"><svg onload=document.title='owned'>",
    "javascript:document.title='owned'",
    "\u202egnp.sredro\u202c",
    "line\nbreak\ttab\x00nul\x1b[2J",
    "a" * 249,
    "&lt;b&gt;&amp;",
    "'; DROP TABLE topics; --",
    "`rlmm purge`",
    "日本語-тема-🙂",
    "__proto__",
)


#: Facts of a replica that leads, and of one that follows, as `OwnReplica` tells them.
LEADS = {
    "replica": 1,
    "role": "leader",
    "epoch": 7,
    "leader": 1,
    "voters": [1, 2, 3],
    "heard": [1, 3],
    "needed": 2,
    "end": 12_345_678,
    "committed": 12_345_670,
    "checkpoint": {"epoch": 6, "end": 12_000_000},
    "why": None,
}
FOLLOWS = {**LEADS, "replica": 2, "role": "follower", "heard": [1, 2], "checkpoint": None}


def lines(names: Iterable[str] = HOSTILE) -> list[Line]:
    """Return a line of the log for each name, the newest first."""
    levels = ("error", "warning", "info")
    return [
        Line(number=-at, at_ms=1_000 + at, level=levels[at % 3], text=f"said {name}", count=at + 1)
        for at, name in enumerate(names)
    ]


def copy_of(partition: TopicIdPartition, number: int = 1) -> RunningCopy:
    return RunningCopy(
        partition=str(partition),
        segment_id=f"{number:022d}",
        kind="copy_segment",
        phase="upload",
        bytes_done=3_000_000,
        bytes_total=10_000_000,
        parts_done=1,
        call="UploadPart",
        age_seconds=75.5,
        waiters=1,
    )


class Copies:
    """A copier, as far as a page asks it."""

    def __init__(self) -> None:
        self.running: list[RunningCopy] = []
        self.failed: dict[str, CopyFailure] = {}
        self.bytes_copied = 0
        self.bytes_by_topic: dict[str, int] = {}
        self.failed_by_topic: dict[str, int] = {}

    def jobs(self) -> list[RunningCopy]:
        return self.running

    def failures(self) -> dict[str, CopyFailure]:
        return self.failed

    def unsettled(self) -> list[Any]:
        return []


def fill(manager: Manager, names: Iterable[str]) -> list[TopicIdPartition]:
    """Put an empty user partition of each name into the first fold."""
    found, follower, follow_set = [], manager.followed()[0], manager.fleet.follow_set
    assert follow_set is not None
    for number, name in enumerate(names):
        topic_id = TopicId(number.to_bytes(16, "big"))
        partition = next(
            each
            for at in range(100)
            if follow_set.of(each := TopicIdPartition(topic_id, name, at)) == follower.partition
        )
        follower.fold.partitions.add(PartitionCache(partition))
        found.append(partition)
    return found


@asynccontextmanager
async def served(
    manager: Manager,
    copies: Copies | None = None,
    *,
    names: tuple[str, ...] = (),
    log_facts: Mapping[str, Any] | None = None,
    recent: Sequence[Line] = (),
    peers: Sequence[str] = (),
    prices: Prices | None = None,
) -> AsyncIterator[Any]:
    """Serve the page of a manager; yields the server, and what it was made of."""
    copier: Any = Copies() if copies is None else copies
    topics = Topics(manager)
    await topics.take()
    standing = Standing(manager, copier=copier, log_facts=lambda: log_facts or {})
    forecasts = Forecasts(manager, copier=copier, prices=prices or Prices())
    fleet = Fleet(peers, ask, manager.clock, manager.bugs)
    now_ms = manager.clock.now_ms
    answers = Answers(
        manager,
        standing,
        topics,
        copier=copier,
        metrics=Metrics(),
    )
    async with asyncio.TaskGroup() as jobs:
        room = PageRoom(
            answers={
                **files(),
                **answers.paths(),
                **EventAnswers(lambda: recent, now_ms).paths(),
                **FleetAnswers(answers.own, fleet, now_ms).paths(),
                **ForecastAnswers(forecasts, topics, manager.clock).paths(),
            },
            spawn=lambda work, name: jobs.create_task(work, name=name),
            names=names,
        )
        async with AdminServer(
            "127.0.0.1:0", Metrics(), lambda: Ready(ready=True), manager.bugs, page=room
        ) as server:
            await server.serve()
            asking = jobs.create_task(fleet.run())
            yield SimpleNamespace(server=server, topics=topics, address=server.address)
            asking.cancel()
