"""Reads whose answer begins well and ends badly: what the counters say of them."""

import asyncio
import random
from typing import Any

import aiohttp
import pytest

from rlmm_daemon.adapters.storage.s3 import Rates, S3Storage
from rlmm_daemon.adapters.storage.s3.options import MIB
from rlmm_daemon.domain.errors import StorageUnavailable
from tests.simulation.loop import SimLoop, ended
from tests.unit.adapters.storage.s3.scripted_s3 import ScriptedS3, ok, storage_on


class Body:
    """Brings a piece every `seconds`; after `cut` of them the connection ends."""

    def __init__(self, seconds: float, cut: int, piece: bytes = b"x") -> None:
        self._seconds, self._left, self._piece = seconds, cut, piece
        self.raw_stream = self.content = self

    async def readany(self) -> bytes:
        await asyncio.sleep(self._seconds)
        self._left -= 1
        if self._left < 0:
            raise aiohttp.ClientPayloadError("cut")
        return self._piece

    def close(self) -> None:
        pass


def test_readers_that_share_a_rate_are_not_silent_for_long():
    """Silence is what ends a read: it has to be the storage's, not a wait for all the others."""
    readers, rate = 16, MIB // 4

    async def read(storage: S3Storage) -> None:
        loop, before, got = asyncio.get_running_loop(), None, 0
        async for piece in storage.fetch("a.log", 0, 4 * MIB):
            assert before is None or loop.time() - before < 10
            before, got = loop.time(), got + len(piece)
        assert got == 4 * MIB

    async def main() -> None:
        s3 = ScriptedS3(
            get_object=lambda **_: ok(ETag="e", ContentLength=4 * MIB, Body=Body(0, 4, bytes(MIB)))
        )
        storage = storage_on(s3, rates=Rates(fetch_bytes_per_second=rate))
        async with asyncio.TaskGroup() as group:
            for _ in range(readers):
                group.create_task(read(storage))
        assert asyncio.get_running_loop().time() >= readers * 4 * MIB / rate - 10
        await storage.close()

    with ended(SimLoop(rng=random.Random(0))) as loop:
        loop.run_until_complete(main())


def nine_bytes(bodies: list[Body]) -> ScriptedS3:
    """Return an S3 whose one object has nine bytes; each answer brings the next of the bodies."""

    def answer(*, Range: str, **_: Any) -> Any:
        start = int(Range.removeprefix("bytes=").partition("-")[0])
        found = ok(
            ETag="e", ContentLength=9 - start, ContentRange=f"bytes {start}-8/9", Body=bodies.pop(0)
        )
        found["ResponseMetadata"]["HTTPStatusCode"] = 206
        return found

    return ScriptedS3(get_object=answer)


def test_a_body_that_ends_badly_is_counted_under_its_reason_too():
    async def main() -> None:
        storage = storage_on(nine_bytes(bodies), call_timeout=10.0)
        assert b"".join([piece async for piece in storage.fetch("a.log", 0, 9)]) == b"x" * 9
        assert storage.stats.calls == {("GetObject", "ok"): 2, ("GetObject", "connection"): 1}
        with pytest.raises(StorageUnavailable) as failure:
            _ = [piece async for piece in storage.fetch("a.log", 0, 9)]
        assert failure.value.fields["reason"] == "slow"
        assert storage.stats.calls["GetObject", "slow"] == 1
        await storage.close()

    bodies = [Body(0.1, 4), Body(0.1, 9), Body(6.0, 9)]
    with ended(SimLoop(rng=random.Random(0))) as loop:
        loop.run_until_complete(main())


def test_a_resume_that_the_budget_refuses_is_counted_as_a_call_is():
    async def main() -> None:
        storage = storage_on(nine_bytes([Body(0.1, 4), Body(0.1, 2), Body(0.1, 9)]))
        storage._client.rim.budget._left = 1.0
        with pytest.raises(StorageUnavailable) as failure:
            _ = [piece async for piece in storage.fetch("a.log", 0, 9)]
        assert failure.value.fields["reason"] == "connection"
        assert (storage.stats.retries, storage.stats.retries_refused) == (1, 1)
        await storage.close()

    with ended(SimLoop(rng=random.Random(0))) as loop:
        loop.run_until_complete(main())
