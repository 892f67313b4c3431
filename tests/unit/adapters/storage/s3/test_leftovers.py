"""Housekeeping at the start that the storage refuses: copies and reads go on without it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from rlmm_daemon.adapters.storage.s3 import leftovers
from rlmm_daemon.domain.errors import StorageUnavailable
from tests.contract.storage import SEGMENT
from tests.unit.adapters.storage.s3.scripted_s3 import ScriptedS3, ok, refusal, refuses, storage_on

OLD = datetime(2020, 1, 1, tzinfo=UTC)


class Uploads(ScriptedS3):
    """A bucket with old uploads of ours, of which some can't be aborted."""

    def __init__(self, *keys: str) -> None:
        self.left, self.stuck = list(keys), set[str]()
        super().__init__(
            list_objects_v2=lambda **_: self._listing(),
            list_multipart_uploads=lambda **_: ok(
                Uploads=[{"Key": key, "UploadId": key, "Initiated": OLD} for key in self.left]
            ),
            abort_multipart_upload=self._abort,
        )

    def _listing(self) -> Any:
        page = ok()
        page["ResponseMetadata"]["HTTPHeaders"]["date"] = "Sun, 22 Nov 2026 12:00:00 GMT"
        return page

    def _abort(self, *, Key: str, **_: Any) -> Any:
        if Key in self.stuck:
            raise refusal(403, "AccessDenied")
        self.left.remove(Key)
        return ok()


OURS = [f"{SEGMENT}.log", f"{SEGMENT.replace('0011', '0012')}.log"]


@pytest.mark.parametrize("refused", [(403, "AccessDenied"), (501, "NotImplemented")])
async def test_a_storage_that_lists_no_uploads_is_opened_all_the_same(monkeypatch, refused):
    monkeypatch.setattr(leftovers, "SWEEP_AGAIN_SECONDS", 0.0)
    s3 = Uploads(OURS[0])
    listed = s3.answers["list_multipart_uploads"]
    s3.answers["list_multipart_uploads"] = refuses(*refused)
    storage = storage_on(s3, sweeps=True)
    await storage.open()
    assert s3.calls.count("list_multipart_uploads") == 1, "not retried blindly"
    s3.answers["list_multipart_uploads"] = listed
    await storage.open()
    assert s3.left == []
    before = len(s3.calls)
    await storage.open()
    assert s3.calls[before:] == ["list_objects_v2"], "once it was done it is not done again"
    await storage.close()


async def test_an_upload_that_cannot_be_aborted_is_no_reason_to_leave_the_others():
    s3 = Uploads(*OURS)
    s3.stuck = {OURS[0]}
    storage = storage_on(s3, sweeps=True)
    await storage.open()
    assert s3.left == [OURS[0]]
    before = len(s3.calls)
    await storage.open()
    assert s3.calls[before:] == ["list_objects_v2"], "not at each open"
    await storage.close()


async def test_a_bucket_that_cannot_be_listed_is_not_open():
    s3 = Uploads()
    s3.answers["list_objects_v2"] = refuses(403, "AccessDenied")
    storage = storage_on(s3, sweeps=True)
    with pytest.raises(StorageUnavailable):
        await storage.open()
    await storage.close()
