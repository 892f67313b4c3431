"""A batch of deletes whose 200 says that some keys failed: each by its own code."""

from typing import Any

import pytest

from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from tests.unit.adapters.storage.s3.scripted_s3 import ScriptedS3, ok, refuses, storage_on

KEYS = ["a.index", "b.index", "c.index"]


class Deletes(ScriptedS3):
    """Answers each batch with the next rows of errors, and names what it deleted."""

    def __init__(self, *answers: list[dict[str, str]]) -> None:
        self.asked: list[list[str]] = []
        self._rows = list(answers)
        super().__init__(delete_objects=self._delete)

    def _delete(self, *, Delete: Any, **_: Any) -> Any:
        keys = [row["Key"] for row in Delete["Objects"]]
        self.asked.append(keys)
        failed = self._rows.pop(0) if self._rows else []
        gone = set(keys) - {row.get("Key", "") for row in failed}
        return ok(Errors=failed, Deleted=[{"Key": key} for key in sorted(gone)])


def row(code: str, key: str = "b.index") -> dict[str, str]:
    return {"Key": key, "Code": code, "Message": "no"}


def reasons(outcome: Any) -> dict[str, str]:
    return {key: error.fields["reason"] for key, error in outcome.items() if error is not None}


async def test_a_throttled_key_is_asked_for_again_and_fewer_calls_are_made_at_once():
    s3 = Deletes([row("SlowDown")])
    storage = storage_on(s3, writes_max=8)
    assert reasons(await storage.delete(KEYS)) == {}
    assert s3.asked == [KEYS, ["b.index"]]
    assert storage.stats.throttled == 1
    assert storage.stats.retries == 1
    assert storage._client.writes.limit == 4
    assert storage.stats.calls == {("DeleteObjects", "throttled"): 1, ("DeleteObjects", "ok"): 1}
    await storage.close()


async def test_a_key_that_goes_on_failing_fails_alone():
    s3 = Deletes(*[[row("InternalError"), row("AccessDenied", "c.index")]] * 9)
    storage = storage_on(s3, attempts_max=3)
    outcome = await storage.delete(KEYS)
    assert reasons(outcome) == {"b.index": "server_error", "c.index": "denied"}
    assert s3.asked == [KEYS, ["b.index"], ["b.index"]], "what is denied is not asked for again"
    denied = outcome["c.index"]
    assert isinstance(denied, StorageUnavailable)
    assert denied.fields["retry"] is False
    assert "c.index" in denied.message
    await storage.close()


async def test_a_key_that_is_absent_is_deleted_and_an_unknown_code_is_refused():
    storage = storage_on(Deletes([row("NoSuchKey"), row("Odd", "c.index")]))
    assert reasons(await storage.delete(KEYS)) == {"c.index": "refused"}
    await storage.close()


@pytest.mark.parametrize("stray", [{"Code": "InternalError"}, row("InternalError", "x.index")])
async def test_a_failure_of_nobodys_key_is_a_failure_of_the_batch(stray):
    s3 = Deletes([stray], [stray])
    storage = storage_on(s3, attempts_max=2)
    outcome = await storage.delete(KEYS)
    assert all(isinstance(error, RlmmError) for error in outcome.values())
    assert len(s3.asked) == 2
    assert reasons(await storage.delete(KEYS)) == {}
    await storage.close()


async def test_a_server_without_batches_is_asked_at_once_for_each_key():
    s3 = ScriptedS3(
        delete_objects=refuses(501, "NotImplemented"),
        delete_object=lambda **_: {"ResponseMetadata": {"HTTPStatusCode": 204}},
    )
    storage = storage_on(s3)
    assert reasons(await storage.delete(KEYS)) == {}
    assert s3.calls == ["delete_objects", *["delete_object"] * 3]
    await storage.close()
