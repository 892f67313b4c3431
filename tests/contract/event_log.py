"""The promises of `ports.event_log`, held by every adapter.

An adapter brings a harness: how to open its log again, and how to do to it what a bad day does.
What a log cannot suffer is named in the harness's `cannot`, and the test is skipped with that
reason, never silently.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Protocol, final

import pytest

from rlmm_daemon.domain.errors import OutcomeUnknown, RlmmError, UnavailableError
from rlmm_daemon.domain.ids import MetadataPartition
from rlmm_daemon.ports.event_log import (
    NO_EPOCH,
    EventLog,
    LogBatch,
    LogMissing,
    LogRange,
    LogTrimmed,
    LogTruncated,
    TopicIdChanged,
    ranges_joined,
)

P0, P1 = MetadataPartition(0), MetadataPartition(1)
WAIT_SECONDS = 60


class LogHarness(Protocol):
    """One log under test. `log` is open; the bad days may replace it by a reopened one."""

    log: EventLog
    #: Method name -> why this log cannot suffer it.
    cannot: dict[str, str]

    async def restart(self) -> None: ...

    async def second(self) -> EventLog:
        """Return another manager's open connection, or raise UnavailableError if there is none."""
        ...

    def absent(self) -> EventLog:
        """Return a connection, not yet open, to a log that does not exist."""
        ...

    async def truncate(self, partition: MetadataPartition, end: int) -> None: ...

    async def trim(self, partition: MetadataPartition) -> int:
        """Lose some of the head, not all; return the new start."""
        ...

    async def recreate(self) -> None: ...

    async def put_tombstone(self, partition: MetadataPartition) -> int: ...

    async def lose(self, partition: MetadataPartition, offset: int) -> None:
        """Let one record of several, each appended alone, be gone while its offset stays."""
        ...

    async def pass_over(self, partition: MetadataPartition) -> None:
        """Use up an offset or more for what was never an event, and is known to be none."""
        ...

    async def fail_next_append(self, partition: MetadataPartition) -> None:
        """Let the outcome of the next append be unknown."""
        ...


async def read(log: EventLog, partition: MetadataPartition, begin: int, end: int) -> list[Any]:
    """Return what a follower is given until its position reaches `end`."""
    records: list[Any] = []
    if begin >= end:
        return records
    async with (
        asyncio.timeout(WAIT_SECONDS),
        aclosing(log.follow(partition, begin, epoch=NO_EPOCH)) as batches,
    ):
        async for batch in batches:
            records.extend(batch.records)
            if batch.next_offset >= end:
                return records
    raise AssertionError("a follower never ends by itself")


async def unvouched(
    log: EventLog, partition: MetadataPartition, begin: int, end: int
) -> tuple[LogRange, ...]:
    """Return the gaps that a follower is told of until its position reaches `end`."""
    found: list[LogRange] = []
    async with (
        asyncio.timeout(WAIT_SECONDS),
        aclosing(log.follow(partition, begin, epoch=NO_EPOCH)) as batches,
    ):
        async for batch in batches:
            found += batch.unvouched
            if batch.next_offset >= end:
                return ranges_joined(found)
    raise AssertionError("a follower never ends by itself")


async def first(batches: AsyncGenerator[LogBatch, None]) -> LogBatch:
    async with asyncio.timeout(WAIT_SECONDS):
        return await anext(batches)


async def exhaust(batches: AsyncGenerator[LogBatch, None]) -> None:
    while True:
        await first(batches)


def values(count: int, begin: int = 0) -> list[bytes]:
    return [f"record {number}".encode() for number in range(begin, begin + count)]


class EventLogContract:
    """Subclass it and bring the fixture `harness`."""

    @pytest.fixture
    def harness(self) -> LogHarness:
        raise NotImplementedError

    def need(self, harness: LogHarness, hook: str) -> None:
        if hook in harness.cannot:
            pytest.skip(harness.cannot[hook])

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not holds():  # noqa: ASYNC110  # whoever makes it true rings no bell
                await asyncio.sleep(0.005)

    async def fill(self, log: EventLog, count: int, begin: int = 0) -> list[tuple[int, bytes]]:
        return [(await log.append(P0, value), value) for value in values(count, begin)]

    @final
    async def test_open_returns_the_identity_and_again_the_same(self, harness: LogHarness) -> None:
        identity = harness.log.identity
        assert identity is not None
        assert len(identity.topic_id) == 16
        assert identity.partition_count >= 2
        assert await harness.log.open(create=False) == identity

    @final
    async def test_a_log_that_is_absent_is_made_only_on_request(self, harness: LogHarness) -> None:
        self.need(harness, "absent")
        log = harness.absent()
        with pytest.raises(LogMissing):
            await log.open(create=False)
        made = await log.open(create=True)
        assert made == log.identity
        assert await log.append(P0, b"first") == 0
        await log.close()

    @final
    async def test_appends_are_given_dense_offsets_from_zero(self, harness: LogHarness) -> None:
        filled = await self.fill(harness.log, 5)
        assert [offset for offset, _ in filled] == [0, 1, 2, 3, 4]

    @final
    async def test_a_follower_sees_every_append_in_order(self, harness: LogHarness) -> None:
        filled = await self.fill(harness.log, 20)
        assert await read(harness.log, P0, 0, 20) == filled
        assert await read(harness.log, P0, 7, 20) == filled[7:]

    @final
    async def test_partitions_are_apart(self, harness: LogHarness) -> None:
        await harness.log.append(P0, b"zero")
        await harness.log.append(P1, b"one")
        assert await read(harness.log, P1, 0, 1) == [(0, b"one")]

    @final
    async def test_a_follower_is_woken_by_an_append(self, harness: LogHarness) -> None:
        async with aclosing(harness.log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            assert not (await first(batches)).records
            async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as tasks:
                tasks.create_task(harness.log.append(P0, b"woken"))
                async for batch in batches:
                    if batch.records:
                        assert list(batch.records) == [(0, b"woken")]
                        break

    @final
    async def test_an_empty_partition_beats_without_records(self, harness: LogHarness) -> None:
        async with aclosing(harness.log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            for _ in range(3):
                batch = await first(batches)
                assert (batch.next_offset, batch.leader_epoch) == (0, -1)
                assert not batch.records
                assert (batch.range.start, batch.range.end) == (0, 0)

    @final
    async def test_heartbeats_keep_position_and_epoch(self, harness: LogHarness) -> None:
        await self.fill(harness.log, 3)
        async with aclosing(harness.log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            batch = await first(batches)
            last = batch
            while batch.records:
                last, batch = batch, await first(batches)
            assert batch.next_offset == last.next_offset == 3
            assert batch.leader_epoch == last.leader_epoch >= 0
            assert batch.range.end == 3

    @final
    async def test_end_offsets_know_what_is_there_and_omit_what_is_not(
        self, harness: LogHarness
    ) -> None:
        await self.fill(harness.log, 4)
        unknown = MetadataPartition(999)
        ranges = await harness.log.end_offsets([P0, P1, unknown])
        assert (ranges[P0].start, ranges[P0].end) == (0, 4)
        assert (ranges[P1].start, ranges[P1].end) == (0, 0)
        assert unknown not in ranges

    @final
    async def test_a_closed_log_knows_no_end_offsets(self, harness: LogHarness) -> None:
        await harness.log.close()
        assert await harness.log.end_offsets([P0]) == {}

    @final
    async def test_close_is_idempotent_and_refuses_appends(self, harness: LogHarness) -> None:
        await harness.log.close()
        await harness.log.close()
        with pytest.raises(UnavailableError):
            await harness.log.append(P0, b"late")

    @final
    async def test_what_is_asked_while_the_log_closes_is_unavailable(
        self, harness: LogHarness
    ) -> None:
        await self.fill(harness.log, 1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(harness.log.close())
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError):
                await harness.log.append(P0, b"late")
            assert await harness.log.end_offsets([P0]) == {}

    @final
    async def test_close_ends_followers_as_unavailable(self, harness: LogHarness) -> None:
        async with aclosing(harness.log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            await first(batches)
            await harness.log.close()
            with pytest.raises(UnavailableError):
                await first(batches)

    @final
    async def test_an_epoch_that_wrote_nothing_here_ends_nowhere(self, harness: LogHarness) -> None:
        answer = await harness.log.epoch_end(P0, 0)
        assert (answer.epoch, answer.end_offset) == (-1, -1)

    @final
    async def test_the_last_epoch_ends_at_the_end(self, harness: LogHarness) -> None:
        await self.fill(harness.log, 3)
        epoch = await self.epoch_of(harness.log, 3)
        answer = await harness.log.epoch_end(P0, epoch)
        assert (answer.epoch, answer.end_offset) == (epoch, 3)

    @final
    async def test_an_epoch_never_heard_of_is_not_confirmed(self, harness: LogHarness) -> None:
        await self.fill(harness.log, 3)
        asked = await self.epoch_of(harness.log, 3) + 100
        with suppress(UnavailableError):  # its leader may be one that has not heard of it yet
            assert (await harness.log.epoch_end(P0, asked)).epoch != asked

    @final
    async def test_everything_is_there_after_a_restart(self, harness: LogHarness) -> None:
        identity = harness.log.identity
        filled = await self.fill(harness.log, 30)
        epoch = await self.epoch_of(harness.log, 30)
        await harness.restart()
        assert harness.log.identity == identity
        assert await read(harness.log, P0, 0, 30) == filled
        assert (await harness.log.end_offsets([P0]))[P0].end == 30
        answer = await harness.log.epoch_end(P0, epoch)
        assert (answer.epoch, answer.end_offset) == (epoch, 30)
        more = await self.fill(harness.log, 5, begin=30)
        assert await read(harness.log, P0, 0, 35) == filled + more

    @final
    async def test_epochs_stay_apart_over_a_restart(self, harness: LogHarness) -> None:
        await self.fill(harness.log, 3)
        before = await self.epoch_of(harness.log, 3)
        await harness.restart()
        await self.fill(harness.log, 2)
        after = await self.epoch_of(harness.log, 5)
        assert after >= before
        expected = 5 if after == before else 3
        assert (await harness.log.epoch_end(P0, before)).end_offset == expected
        assert (await harness.log.epoch_end(P0, after)).end_offset == 5

    @final
    async def test_sixty_four_appends_at_once_are_all_there_in_their_order(
        self, harness: LogHarness
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(harness.log.append(P0, value)) for value in values(64)]
        offsets = [answer.result() for answer in answers]
        assert sorted(offsets) == list(range(64))
        expected = sorted(zip(offsets, values(64), strict=True))
        assert await read(harness.log, P0, 0, 64) == expected
        await harness.restart()
        assert await read(harness.log, P0, 0, 64) == expected

    @final
    async def test_a_begun_append_is_told_once_its_offset_and_not_at_once(
        self, harness: LogHarness
    ) -> None:
        heard: list[tuple[bytes, int | RlmmError]] = []
        for value in values(64):

            def told(outcome: int | RlmmError, value: bytes = value) -> None:
                heard.append((value, outcome))

            harness.log.begin_append(P0, value, told)
        assert not heard, "told from within the call"
        await self.until(lambda: len(heard) == 64)
        offsets = {outcome: value for value, outcome in heard}
        assert sorted(offsets.values()) == sorted(values(64))
        assert await read(harness.log, P0, 0, 64) == sorted(offsets.items())
        assert len(heard) == 64, "told twice"

    @final
    async def test_a_begun_append_is_told_of_an_unknown_outcome(self, harness: LogHarness) -> None:
        self.need(harness, "fail_next_append")
        await self.fill(harness.log, 1)
        await harness.fail_next_append(P0)
        heard: list[int | RlmmError] = []
        harness.log.begin_append(P0, b"perhaps", heard.append)
        await self.until(lambda: bool(heard))
        assert [type(each) for each in heard] == [OutcomeUnknown]

    @final
    async def test_a_closed_log_refuses_to_begin_and_tells_nothing(
        self, harness: LogHarness
    ) -> None:
        await harness.log.close()
        heard: list[int | RlmmError] = []
        with pytest.raises(UnavailableError):
            harness.log.begin_append(P0, b"late", heard.append)
        await asyncio.sleep(0)
        assert not heard

    @final
    async def test_what_was_begun_is_finished_by_close(self, harness: LogHarness) -> None:
        await self.fill(harness.log, 1)
        heard: list[int | RlmmError] = []
        for value in values(8):
            harness.log.begin_append(P0, value, heard.append)
        await harness.log.close()
        await self.until(lambda: len(heard) == 8)
        assert heard == list(range(1, 9))

    @final
    async def test_a_cancelled_append_is_not_taken_back_nor_stops_others(
        self, harness: LogHarness
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            left = tasks.create_task(harness.log.append(P0, b"left"))
            others = [tasks.create_task(harness.log.append(P0, value)) for value in values(3)]
            await asyncio.sleep(0)
            left.cancel()
        offsets = [other.result() for other in others]
        records = await read(harness.log, P0, 0, max(offsets) + 1)
        assert [dict(records)[offset] for offset in offsets] == values(3)
        assert len(records) == max(offsets) + 1

    @final
    async def test_a_cancelled_follower_delivers_nothing_more(self, harness: LogHarness) -> None:
        seen: list[LogBatch] = []
        begun = asyncio.Event()

        async def follow() -> None:
            async for batch in harness.log.follow(P0, 0, epoch=NO_EPOCH):
                seen.append(batch)
                begun.set()

        async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as tasks:
            follower = tasks.create_task(follow())
            await begun.wait()
            follower.cancel()
        count = len(seen)
        await self.fill(harness.log, 3)
        assert len(seen) == count

    @final
    async def test_two_followers_see_the_same(self, harness: LogHarness) -> None:
        async with asyncio.TaskGroup() as tasks:
            first_reader = tasks.create_task(read(harness.log, P0, 0, 50))
            second_reader = tasks.create_task(read(harness.log, P0, 0, 50))
            filled = await self.fill(harness.log, 50)
        assert first_reader.result() == second_reader.result() == filled

    @final
    async def test_a_second_writer_shares_the_log_or_is_kept_out(self, harness: LogHarness) -> None:
        await harness.log.append(P0, b"first")
        try:
            second = await harness.second()
        except UnavailableError:
            await harness.log.append(P0, b"still mine")
            assert len(await read(harness.log, P0, 0, 2)) == 2
            return
        assert await second.append(P0, b"second") == 1
        assert await harness.log.append(P0, b"third") == 2
        expected = [(0, b"first"), (1, b"second"), (2, b"third")]
        assert await read(harness.log, P0, 0, 3) == expected
        assert await read(second, P0, 0, 3) == expected
        await second.close()

    @final
    async def test_a_position_beyond_the_end_is_truncated(self, harness: LogHarness) -> None:
        await self.fill(harness.log, 2)
        with pytest.raises(LogTruncated):
            await read(harness.log, P0, 3, 4)

    @final
    async def test_a_lost_tail_is_told_and_its_epoch_ends_earlier(
        self, harness: LogHarness
    ) -> None:
        self.need(harness, "truncate")
        filled = await self.fill(harness.log, 10)
        epoch = await self.epoch_of(harness.log, 10)
        await harness.truncate(P0, 6)
        with pytest.raises(LogTruncated):
            await read(harness.log, P0, 10, 11)
        more = await self.fill(harness.log, 6, begin=100)
        assert [offset for offset, _ in more] == [6, 7, 8, 9, 10, 11]
        assert (await harness.log.epoch_end(P0, epoch)).end_offset == 6
        assert await self.epoch_of(harness.log, 12) > epoch
        assert await read(harness.log, P0, 0, 12) == filled[:6] + more

    @final
    async def test_a_tail_overwritten_while_nobody_followed_is_told_to_whoever_names_the_epoch(
        self, harness: LogHarness
    ) -> None:
        self.need(harness, "truncate")
        await self.fill(harness.log, 10)
        epoch = await self.epoch_of(harness.log, 10)
        await harness.truncate(P0, 6)
        await self.fill(harness.log, 6, begin=100)
        await harness.restart()
        for position in (7, 10, 12):
            async with aclosing(harness.log.follow(P0, position, epoch=epoch)) as batches:
                with pytest.raises(LogTruncated):
                    await first(batches)
        async with aclosing(harness.log.follow(P0, 6, epoch=epoch)) as batches:
            assert (await first(batches)).next_offset > 6, "up to there it is the same log"

    @final
    async def test_who_names_an_epoch_that_the_log_never_had_is_told(
        self, harness: LogHarness
    ) -> None:
        await self.fill(harness.log, 3)
        epoch = await self.epoch_of(harness.log, 3)
        async with aclosing(harness.log.follow(P0, 3, epoch=epoch + 100)) as batches:
            with pytest.raises(LogTruncated):
                await first(batches)

    @final
    async def test_nothing_was_read_before_the_first_offset_in_any_epoch(
        self, harness: LogHarness
    ) -> None:
        async with aclosing(harness.log.follow(P0, 0, epoch=100)) as batches:
            assert (await first(batches)).leader_epoch == NO_EPOCH

    @final
    async def test_the_first_heartbeat_keeps_the_epoch_that_was_named(
        self, harness: LogHarness
    ) -> None:
        await self.fill(harness.log, 3)
        epoch = await self.epoch_of(harness.log, 3)
        async with aclosing(harness.log.follow(P0, 3, epoch=epoch)) as batches:
            batch = await first(batches)
        assert (batch.next_offset, batch.leader_epoch, list(batch.records)) == (3, epoch, [])

    @final
    async def test_a_lost_head_is_told_before_what_its_epoch_was(self, harness: LogHarness) -> None:
        self.need(harness, "trim")
        await self.fill(harness.log, 40)
        epoch = await self.epoch_of(harness.log, 40)
        start = await harness.trim(P0)
        async with aclosing(harness.log.follow(P0, start - 1, epoch=epoch)) as batches:
            with pytest.raises(LogTrimmed):
                await first(batches)

    @final
    async def test_a_lost_head_is_told_with_the_new_start(self, harness: LogHarness) -> None:
        self.need(harness, "trim")
        filled = await self.fill(harness.log, 40)
        start = await harness.trim(P0)
        assert 0 < start < 40
        with pytest.raises(LogTrimmed) as raised:
            await read(harness.log, P0, 0, 40)
        assert raised.value.start == start
        assert (await harness.log.end_offsets([P0]))[P0].start == start
        assert await read(harness.log, P0, start, 40) == filled[start:]

    @final
    async def test_a_recreated_log_is_told(self, harness: LogHarness) -> None:
        self.need(harness, "recreate")
        await self.fill(harness.log, 2)
        before = harness.log.identity
        assert before is not None
        async with aclosing(harness.log.follow(P0, 0, epoch=NO_EPOCH)) as batches:
            await first(batches)
            await harness.recreate()
            with pytest.raises(TopicIdChanged) as raised:
                await exhaust(batches)
        assert raised.value.topic_id != before.topic_id
        after = await harness.log.open(create=False)
        assert after.topic_id == raised.value.topic_id
        assert (await harness.log.end_offsets([P0]))[P0].end == 0

    @final
    async def test_a_tombstone_is_delivered_as_none(self, harness: LogHarness) -> None:
        self.need(harness, "put_tombstone")
        await harness.log.append(P0, b"value")
        offset = await harness.put_tombstone(P0)
        assert await read(harness.log, P0, 0, offset + 1) == [(0, b"value"), (offset, None)]

    @final
    async def test_a_lost_record_leaves_a_gap_that_nobody_vouches_for(
        self, harness: LogHarness
    ) -> None:
        self.need(harness, "lose")
        filled = await self.fill(harness.log, 12)
        assert await unvouched(harness.log, P0, 0, 12) == ()
        await harness.lose(P0, 4)
        assert await read(harness.log, P0, 0, 12) == filled[:4] + filled[5:]
        for begin in (0, 3, 4):
            assert await unvouched(harness.log, P0, begin, 12) == (LogRange(start=4, end=5),)
        assert (await harness.log.end_offsets([P0]))[P0] == LogRange(start=0, end=12)

    @final
    async def test_what_was_never_an_event_is_vouched_for(self, harness: LogHarness) -> None:
        self.need(harness, "pass_over")
        await self.fill(harness.log, 2)
        await harness.pass_over(P0)
        after = await harness.log.append(P0, b"after")
        assert after > 2
        assert await unvouched(harness.log, P0, 0, after + 1) == ()

    @final
    async def test_an_append_of_unknown_outcome_is_never_answered_and_appears_at_most_once(
        self, harness: LogHarness
    ) -> None:
        self.need(harness, "fail_next_append")
        await harness.log.append(P0, b"before")
        await harness.fail_next_append(P0)
        with pytest.raises(OutcomeUnknown):
            await harness.log.append(P0, b"unknown")
        after = await self.append_soon(harness.log, b"after")
        records = await read(harness.log, P0, 0, after + 1)
        assert records[0] == (0, b"before")
        assert records[-1] == (after, b"after")
        assert [value for _, value in records].count(b"unknown") <= 1
        await harness.restart()
        assert await read(harness.log, P0, 0, after + 1) == records

    async def append_soon(self, log: EventLog, value: bytes) -> int:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    return await log.append(P0, value)
                except RlmmError:
                    await asyncio.sleep(0.01)

    async def epoch_of(self, log: EventLog, end: int) -> int:
        async with (
            asyncio.timeout(WAIT_SECONDS),
            aclosing(log.follow(P0, 0, epoch=NO_EPOCH)) as batches,
        ):
            async for batch in batches:
                if batch.next_offset >= end:
                    return batch.leader_epoch
        raise AssertionError


@asynccontextmanager
async def spawning() -> AsyncIterator[asyncio.TaskGroup]:
    """Give a task group as the daemon would, which must be idle at the end."""
    async with asyncio.TaskGroup() as tasks:
        yield tasks
