"""How copies share what there is: places for parts, the rate, the wait for both; a copy's order."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

from rlmm_daemon.adapters.storage.s3 import Rates, reading
from rlmm_daemon.adapters.storage.s3.options import MIB
from rlmm_daemon.adapters.storage.s3.rates import Both, TokenBucket, TopicRates
from rlmm_daemon.adapters.storage.s3.reading import Body
from rlmm_daemon.core.storage.calls import Calls
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import Buffer, segment
from tests.simulation.loop import SimLoop, ended
from tests.unit.adapters.storage.s3.scripted_s3 import StoringS3, storage_on

COPIES, SLOTS = 4, 4


@pytest.fixture
def no_threads(monkeypatch):
    """Sources are read at once, so that a run has one order."""

    async def at_once(_threads: Executor, work: Callable[[], Any]) -> Any:
        return work()

    monkeypatch.setattr(reading, "in_thread", at_once)


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    with ended(SimLoop(rng=random.Random(0))) as loop:
        loop.run_until_complete(main)


@pytest.mark.usefixtures("no_threads")
def test_copies_take_turns_at_the_places_for_parts():
    """A copy that got none while others filled all of them would be taken for a slow storage."""

    async def main() -> None:
        s3 = StoringS3()

        async def on_part(key: str, _: int) -> None:
            begun.append(key)
            await asyncio.sleep(1)

        s3.on_part = on_part
        storage = storage_on(
            s3, part_size_bytes=MIB, multipart_threshold_bytes=1, parts_in_flight_max=SLOTS
        )
        body = Buffer(bytes(8 * MIB))
        async with asyncio.TaskGroup() as group:
            for number in range(COPIES):
                rows = [(ObjectKind.LOG, f"{number}.log", body)]
                group.create_task(storage.put_segment(rows, progress=Progress()))
        await storage.close()

    begun: list[str] = []
    in_virtual_time(main())
    for key in set(begun):
        at = [n for n, other in enumerate(begun) if other == key]
        assert at[0] <= SLOTS + COPIES, "the first of all copies may fill the places once"
        waits = [after - before for before, after in itertools.pairwise(at)]
        assert max(waits) <= SLOTS + COPIES, begun


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("ours", [True, False], ids=["our rate", "a thin link"])
def test_no_copy_stands_still_while_others_use_all_there_is(ours):
    """Four at once on a sixteenth of a MiB per second: each has a quarter of its share at least."""
    rate = MIB // 16

    async def watched(progress: Progress, copy: asyncio.Task[Any]) -> None:
        before = 0
        while (await asyncio.wait([copy], timeout=60))[1]:
            # Whoever comes first has all places once; the others have not begun.
            assert not before or progress.bytes_moved - before >= 60 * rate / COPIES / 4
            before = progress.bytes_moved

    async def main() -> None:
        s3 = StoringS3()
        s3.link.set_rate(0 if ours else rate)
        storage = storage_on(
            s3,
            part_size_bytes=MIB,
            multipart_threshold_bytes=1,
            parts_in_flight_max=SLOTS,
            rates=Rates(copy_bytes_per_second=rate if ours else 0),
            call_timeout=600.0,
        )
        body = Buffer(bytes(16 * MIB))
        async with asyncio.TaskGroup() as group:
            for number in range(COPIES):
                rows = [(ObjectKind.LOG, f"{number}.log", body)]
                copy = group.create_task(storage.put_segment(rows, progress=(made := Progress())))
                group.create_task(watched(made, copy))
        await storage.close()

    in_virtual_time(main())


@pytest.mark.usefixtures("no_threads")
def test_a_copy_that_waits_for_a_place_waits_for_no_storage():
    async def main() -> None:
        s3, stuck = StoringS3(), asyncio.Event()

        async def on_part(key: str, number: int) -> None:
            if (key, number) == ("first.log", 1):
                await stuck.wait()

        s3.on_part = on_part
        storage = storage_on(
            s3, part_size_bytes=MIB, multipart_threshold_bytes=1, parts_in_flight_max=1
        )
        first, second = Progress(), Progress()
        async with asyncio.TaskGroup() as group:
            for key, progress in (("first.log", first), ("second.log", second)):
                rows = [(ObjectKind.LOG, key, Buffer(bytes(2 * MIB)))]
                group.create_task(storage.put_segment(rows, progress=progress))
            await asyncio.sleep(50)
            assert first.call_in_flight == "UploadPart 1 .log (50 s)"
            assert first.calls is not None
            assert first.calls.waited_seconds == pytest.approx(50, abs=0.1)
            assert second.call_in_flight == ""
            assert second.calls is not None
            assert second.calls.waited_seconds < 0.1
            stuck.set()
        assert (first.call_in_flight, second.call_in_flight) == ("", "")
        await storage.close()

    in_virtual_time(main())


@pytest.mark.usefixtures("no_threads")
def test_the_call_that_is_stuck_is_named_while_others_go_through():
    async def main() -> None:
        s3, stuck = StoringS3(), asyncio.Event()

        async def on_part(_: str, number: int) -> None:
            if number == 2:
                await stuck.wait()

        s3.on_part = on_part
        storage = storage_on(s3, part_size_bytes=MIB, multipart_threshold_bytes=1)
        progress = Progress()
        async with asyncio.TaskGroup() as group:
            rows = [(ObjectKind.LOG, "a.log", Buffer(bytes(9 * MIB)))]
            group.create_task(storage.put_segment(rows, progress=progress))
            await asyncio.sleep(41)
            assert progress.parts_done == 8
            assert progress.call_in_flight == "UploadPart 2 .log (41 s)"
            stuck.set()
        await storage.close()

    in_virtual_time(main())


@pytest.mark.usefixtures("no_threads")
def test_a_copy_that_waits_for_the_rate_waits_for_no_storage():
    async def main() -> None:
        storage = storage_on(StoringS3(), rates=Rates(copy_bytes_per_second=MIB // 64))
        progress = Progress()
        async with asyncio.TaskGroup() as group:
            rows = [(ObjectKind.LOG, "a.log", Buffer(bytes(MIB)))]
            group.create_task(storage.put_segment(rows, progress=progress))
            await asyncio.sleep(30)
            assert 0 < progress.bytes_done < MIB
            assert progress.call_in_flight == "PutObject .log (30 s)"
            assert progress.calls is not None
            assert progress.calls.waited_seconds < 0.1
        await storage.close()

    in_virtual_time(main())


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("threshold", [1, 9 * MIB], ids=["in parts", "in one"])
def test_a_wait_for_the_rate_is_no_time_of_a_calls_own(threshold):
    """The deadline is the storage's: a limit of ours, however low, must not make copies fail."""

    async def main() -> None:
        s3 = StoringS3()
        storage = storage_on(
            s3,
            part_size_bytes=MIB,
            multipart_threshold_bytes=threshold,
            rates=Rates(copy_bytes_per_second=2048),
            call_timeout=5.0,
            attempts_max=1,
        )
        rows = [(ObjectKind.LOG, "a.log", Buffer(bytes(4 * MIB)))]
        await storage.put_segment(rows, progress=Progress())
        assert asyncio.get_running_loop().time() > 1_000
        s3.link.set_rate(2048)
        storage.set_rates(Rates())
        with pytest.raises(StorageUnavailable) as failure:
            await storage.put_segment(rows, progress=Progress())
        assert failure.value.fields["reason"] == "timeout", "the storage's own time is bounded"
        await storage.close()

    in_virtual_time(main())


async def test_a_body_whose_call_is_over_takes_nothing_of_the_rate():
    """Its writer may still want a block, if the answer came before all were taken."""

    async def blocks() -> AsyncIterator[bytes]:
        yield bytes(MIB)

    loop, rate = asyncio.get_running_loop(), TokenBucket(MIB)
    body = Body(MIB, blocks, rate=rate, on_bytes=lambda _: None)
    with Calls(loop.time).made("PutObject .log") as call:
        async with asyncio.timeout(60) as deadline, asyncio.timeout(None) as patience:
            body.watch(call, patience, 60.0, deadline)
            await asyncio.sleep(0)
    body.end()
    with pytest.raises(ConnectionResetError):
        await anext(aiter(body))
    assert rate._tokens == MIB


def test_those_who_wait_for_the_rate_go_in_the_order_in_which_they_came():
    taken: list[int] = []

    async def taker(number: int, bucket: TokenBucket) -> None:
        for _ in range(20):
            await bucket.take(100)
            taken.append(number)

    async def main() -> None:
        bucket = TokenBucket(100)
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(taker(number, bucket))

    in_virtual_time(main())
    # Until the first of them has had all of its turns.
    for first in range(2, 60, 4):
        assert Counter(taken[first : first + 4]) == Counter(range(4)), taken


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("in_parts", [True, False], ids=["in parts", "in one"])
def test_the_log_appears_after_every_companion_was_stored_and_verified(in_parts):
    """The local storage gives the `.log` its name last; here one call shows it."""
    steps: list[tuple[str, str]] = []

    def noted(operation: str, work: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(*, Key: str, **parameters: Any) -> Any:
            step = operation, Path(Key).suffix
            if step[1] != ".log":
                # In virtual time: whoever does not wait for a companion's answer is first.
                await asyncio.sleep(1)
            steps.append(step)
            found = work(Key=Key, **parameters)
            return await found if hasattr(found, "__await__") else found

        return answer

    async def main() -> None:
        s3 = StoringS3()
        for operation in ("put_object", "head_object", "complete_multipart_upload"):
            s3.answers[operation] = noted(operation, s3.answers[operation])
        storage = storage_on(s3, multipart_threshold_bytes=1 if in_parts else 16 * MIB)
        await storage.put_segment(segment(), progress=Progress())
        await storage.close()

    in_virtual_time(main())
    shows = ("complete_multipart_upload" if in_parts else "put_object", ".log")
    companions = {Path(key).suffix for _, key, _ in segment()} - {".log"}
    wanted = {(call, each) for call in ("put_object", "head_object") for each in companions}
    assert companions
    assert set(steps[: steps.index(shows)]) == wanted
    assert steps[-2:] == [shows, ("head_object", ".log")]


def test_topics_of_a_pattern_share_its_limit_and_the_first_match_counts():
    rates = TopicRates({"clicks-eu": 100, "clicks-*": 1_000})
    assert rates.pattern_of("clicks-eu") == "clicks-eu"
    assert rates.pattern_of("clicks-us") == rates.pattern_of("clicks-asia") == "clicks-*"
    assert rates.pattern_of("Clicks-us") is rates.pattern_of("orders") is None
    whole = TokenBucket()
    assert rates.with_whole("orders", whole) is whole
    assert rates.with_whole("clicks-us", whole).bytes_per_second == 1_000


def test_a_limited_topic_keeps_both_limits_and_another_only_the_whole():
    took = dict[str, float]()

    async def taker(topic: str, rate: TokenBucket | Both) -> None:
        for _ in range(20):
            await rate.take(100)
        took[topic] = asyncio.get_running_loop().time()

    async def main() -> None:
        rates, whole = TopicRates({"clicks-*": 10}), TokenBucket(1_000)
        async with asyncio.TaskGroup() as group:
            for topic in ("clicks-eu", "clicks-us", "orders"):
                group.create_task(taker(topic, rates.with_whole(topic, whole)))

    in_virtual_time(main())
    assert took["orders"] < 10
    assert min(took["clicks-eu"], took["clicks-us"]) > 200, "4,000 bytes at 10 a second"


def test_a_limit_that_is_changed_or_taken_away_is_so_for_those_who_wait():
    async def main() -> None:
        rates, whole = TopicRates({"clicks-*": 1}), TokenBucket()
        both = rates.with_whole("clicks-eu", whole)
        async with asyncio.TaskGroup() as group:
            await both.take(1_000)
            waiting = group.create_task(both.take(1_000))
            await asyncio.sleep(100)
            assert not waiting.done()
            rates.set({})
        assert asyncio.get_running_loop().time() < 110

    in_virtual_time(main())


@pytest.mark.usefixtures("no_threads")
def test_a_copy_of_a_limited_topic_sends_a_part_at_a_time_and_others_go_on():
    """Whoever waits for a limit of its own takes no place from those who do not."""
    ended = dict[str, float]()

    async def main() -> None:
        storage = storage_on(
            StoringS3(),
            multipart_threshold_bytes=MIB,
            part_size_bytes=MIB,
            parts_in_flight_max=2,
            rates=Rates(copy_by_topic={"clicks": MIB // 64}),
        )

        async def copied(topic: str) -> None:
            rows = [(ObjectKind.LOG, f"{topic}.log", Buffer(bytes(4 * MIB)))]
            await storage.put_segment(rows, progress=Progress(topic=topic))
            ended[topic] = asyncio.get_running_loop().time()

        async with asyncio.TaskGroup() as group:
            for topic in ("clicks", "orders"):
                group.create_task(copied(topic))
        await storage.close()

    in_virtual_time(main())
    assert ended["orders"] < 60
    assert ended["clicks"] > 100
