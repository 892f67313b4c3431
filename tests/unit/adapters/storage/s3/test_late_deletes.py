"""Deletes that the storage carries out after their caller gave them up, beside a repeated copy."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from rlmm_daemon.adapters.storage.s3 import late_deletes
from rlmm_daemon.adapters.storage.s3.late_deletes import LATE_SECONDS, LateDeletes
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import Buffer
from tests.unit.adapters.storage.s3.scripted_s3 import StoringS3, ok, refusal, refuses, storage_on

SILENCE = ReadTimeoutError(endpoint_url="s3")


class Slow(StoringS3):
    """Does not answer the first delete, and carries it out when it is told to."""

    def __init__(self, failure: BaseException = SILENCE) -> None:
        super().__init__()
        self._failures = [failure]
        self.land: Callable[[], None] = lambda: None
        one = self.answers["delete_object"]
        self.answers |= {
            "delete_objects": lambda *, Delete, **_: self._first(
                lambda: self._gone([row["Key"] for row in Delete["Objects"]])
            ),
            "delete_object": lambda **given: self._first(lambda: one(**given)),
        }

    def _first(self, work: Callable[[], Any]) -> Any:
        if not self._failures:
            return work()
        self.land = lambda: work() and None
        raise self._failures.pop()

    def _gone(self, keys: list[str]) -> Any:
        for key in keys:
            self.objects.pop(key, None)
        return ok(Deleted=[{"Key": key} for key in keys])


def rows() -> list[Any]:
    return [
        (ObjectKind.OFFSET, "a.index", Buffer(b"index")),
        (ObjectKind.LOG, "a.log", Buffer(b"log")),
    ]


async def stored(storage: Any) -> None:
    await storage.put_segment(rows(), progress=Progress())


async def test_a_delete_that_comes_late_takes_nothing_that_was_stored_since():
    s3, now = Slow(), [0.0]
    storage = storage_on(s3)
    storage._client.late_deletes = LateDeletes(lambda: now[0])
    await stored(storage)
    assert set((await storage.delete(["a.log", "a.index"])).values()) == {None}
    assert s3.objects == {}
    for at in (0.0, LATE_SECONDS - 1):
        now[0] = at
        with pytest.raises(StorageUnavailable, match=r"a\.log got no answer") as refused:
            await stored(storage)
        assert refused.value.fields["reason"] == "late_delete"
        assert s3.objects == {}
    s3.land()
    now[0] = LATE_SECONDS
    await stored(storage)
    assert sorted(s3.objects) == ["a.index", "a.log"]
    await storage.close()


async def test_a_delete_that_was_cancelled_may_come_late():
    s3, sent = StoringS3(), asyncio.Event()

    async def silent(**_: Any) -> Any:
        sent.set()
        await asyncio.Event().wait()

    s3.answers["delete_objects"] = silent
    storage = storage_on(s3)
    async with asyncio.TaskGroup() as tasks:
        deleting = tasks.create_task(storage.delete(["a.log"]))
        await sent.wait()
        deleting.cancel()
    with pytest.raises(StorageUnavailable, match="may still carry it out"):
        await stored(storage)
    await storage.close()


async def test_an_unverified_log_whose_delete_got_no_answer_is_not_stored_anew_under_it():
    s3 = Slow()
    described = s3.answers["head_object"]
    denied = [refusal(403, "AccessDenied")]

    def head(*, Key: str, **given: Any) -> Any:
        if Key == "a.log" and denied:
            raise denied.pop()
        return described(Key=Key, **given)

    s3.answers |= {"head_object": head, "get_object": refuses(403, "AccessDenied")}
    storage = storage_on(s3)
    with pytest.raises(StorageUnavailable, match="denied"):
        await stored(storage)
    with pytest.raises(StorageUnavailable, match="may still carry it out"):
        await stored(storage)
    await storage.close()


@pytest.mark.parametrize(
    "failure",
    [
        refusal(503, "SlowDown"),
        refusal(500, "InternalError"),
        EndpointConnectionError(endpoint_url="s3"),
    ],
)
async def test_what_the_storage_answered_or_never_heard_of_keeps_no_copy_from_being_repeated(
    failure,
):
    storage = storage_on(Slow(failure))
    await storage.delete(["a.log"])
    await stored(storage)
    await storage.close()


async def test_the_status_of_a_gateway_alone_is_no_answer():
    storage = storage_on(Slow(refusal(504, "504")))
    await storage.delete(["a.log"])
    with pytest.raises(StorageUnavailable, match="may still carry it out"):
        await stored(storage)
    await storage.close()


def test_only_so_many_keys_are_remembered_and_those_that_are_over_go_first(monkeypatch):
    monkeypatch.setattr(late_deletes, "KEYS_MAX", 2)
    now = [0.0]
    late = LateDeletes(lambda: now[0])

    def lose(key: str) -> None:
        with pytest.raises(TimeoutError), late.sent([key]):
            raise TimeoutError

    for key in "abc":
        lose(key)
    late.require_none(["a"])
    for key in "bc":
        with pytest.raises(StorageUnavailable):
            late.require_none([key])
    now[0] = LATE_SECONDS
    lose("d")
    assert list(late._until) == ["d"]
