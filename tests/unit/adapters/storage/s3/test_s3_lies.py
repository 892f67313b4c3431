"""Answers that are well formed and not true: deletes, listings and descriptions of objects."""

import contextlib
import itertools
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from rlmm_daemon.adapters.storage.s3 import listing
from rlmm_daemon.domain.errors import StorageUnavailable
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import Buffer
from tests.unit.adapters.storage.s3.scripted_s3 import (
    ScriptedS3,
    StoringS3,
    ok,
    refusal,
    storage_on,
)

WHEN = datetime(2026, 1, 2, tzinfo=UTC)
ROWS = [(ObjectKind.LOG, "a.log", Buffer(b"A" * 1024))]


async def test_a_delete_that_is_answered_without_a_word_on_its_keys_is_not_believed():
    s3 = StoringS3()
    storage = storage_on(s3)
    await storage.put_segment(ROWS, progress=Progress())
    s3.answers["delete_objects"] = lambda **_: ok()
    head = s3.answers["head_object"]

    def seen(*, Key: str, **_: Any) -> Any:
        if Key not in s3.objects:
            raise refusal(404, "404")
        return head(Key=Key)

    def absent(**_: Any) -> Any:
        raise refusal(404, "NoSuchKey")

    s3.answers |= {"head_object": seen, "get_object": absent}
    outcome = await storage.delete(["a.log", "b.log"])
    assert outcome["b.log"] is None, "absent is success"
    error = outcome["a.log"]
    assert isinstance(error, StorageUnavailable)
    assert error.fields["reason"] == "not_deleted"
    assert "a.log" in error.message
    await storage.close()


async def read(pages: Any) -> None:
    async with contextlib.aclosing(pages) as given:
        async for _ in given:
            pass


async def listed(tokens: Any, *, rows: Any = lambda _: (), uploads: bool = False) -> int:
    """Return how many pages came before the listing was given up."""
    pages = itertools.count()

    def page(**_: Any) -> Any:
        number = next(pages)
        token = tokens(number)
        contents = [
            {"Key": key, "UploadId": key, "Size": 1, "LastModified": WHEN, "Initiated": WHEN}
            for key in rows(number)
        ]
        return ok(
            IsTruncated=True,
            NextContinuationToken=token,
            NextKeyMarker=token,
            Contents=contents,
            Uploads=contents,
        )

    storage = storage_on(ScriptedS3(list_objects_v2=page, list_multipart_uploads=page))
    found = storage.list_uploads("") if uploads else storage.list("")
    with pytest.raises(StorageUnavailable, match=r"circles|empty pages"):
        await read(found)
    await storage.close()
    return next(pages)


@pytest.mark.parametrize("uploads", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7])
async def test_a_listing_whose_tokens_go_in_circles_ends(length, uploads):
    assert await listed(lambda page: f"t{page % length}", uploads=uploads) <= 3 * length + 3


async def test_a_listing_that_gives_the_same_pages_under_new_tokens_ends():
    def rows(page: int) -> list[str]:
        return [f"k{page % 3}"]

    assert await listed(lambda page: f"t{page}", rows=rows) <= 12


async def test_a_listing_of_empty_pages_without_end_ends(monkeypatch):
    monkeypatch.setattr(listing, "EMPTY_PAGES_MAX", 50)
    assert await listed(lambda page: f"t{page}") <= 60


async def test_a_single_404_of_a_description_does_not_lose_a_copy():
    s3 = StoringS3()
    head = s3.answers["head_object"]
    answers = itertools.count()

    def late(**parameters: Any) -> Any:
        if not next(answers):
            raise refusal(404, "404")
        return head(**parameters)

    class Body:
        def close(self) -> None: ...

    def get(*, Key: str, **_: Any) -> Any:
        size = s3.objects[Key][1]
        return ok(
            Body=Body(),
            ETag="e",
            ContentRange=f"bytes 0-0/{size}",
            ContentLength=1,
        )

    s3.answers |= {"head_object": late, "get_object": get}
    storage = storage_on(s3)
    (stored,) = await storage.put_segment(ROWS, progress=Progress())
    assert stored.size == 1024
    assert set(s3.objects) == {"a.log"}
    await storage.close()


async def test_a_probe_of_a_storage_that_does_not_answer_waits_for_it_once():
    """Each step waited: the command that messages name took several minutes."""

    def silent(**_: Any) -> Any:
        raise ReadTimeoutError(endpoint_url="s3")

    s3 = ScriptedS3(list_objects_v2=silent)
    storage = storage_on(s3, attempts_max=1)
    results = dict((await storage.probe()).results)
    assert s3.calls == ["list_objects_v2"]
    assert "no answer in time" in str(results.pop("list"))
    assert {str(error) for error in results.values()} == {"not tried: the storage does not answer"}
    await storage.close()
