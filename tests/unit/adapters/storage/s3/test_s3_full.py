"""A storage that is full, also where an attempt before may have been heard."""

from typing import Any

import aiohttp
import pytest

from rlmm_daemon.adapters.storage.s3.options import MIB
from rlmm_daemon.domain.errors import ChecksumMismatch, StorageFull
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import Buffer
from tests.unit.adapters.storage.s3.scripted_s3 import StoringS3, ok, refusal, refuses, storage_on

ROWS = [(ObjectKind.LOG, "a.log", Buffer(bytes(MIB)))]


class Filling(StoringS3):
    """Says that it is full to the call that would show the `.log`."""

    def __init__(self, operation: str, *, heard: bool) -> None:
        """`heard`: it does that call once before, and its answer is lost."""
        super().__init__()
        self._work, self._heard = self.answers[operation], heard
        self.answers |= {operation: self._fill}

    async def _fill(self, **parameters: Any) -> Any:
        if not self._heard:
            raise refusal(507, "InsufficientStorage")
        self._heard = False
        done = self._work(**parameters)
        if hasattr(done, "__await__"):
            await done
        raise aiohttp.ServerDisconnectedError


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("operation", ["put_object", "complete_multipart_upload"])
async def test_a_log_that_may_be_there_unverified_does_not_stay(operation, heard):
    s3 = Filling(operation, heard=heard)
    in_parts = operation != "put_object"
    storage = storage_on(s3, multipart_threshold_bytes=1 if in_parts else 2 * MIB)
    progress = Progress()
    with pytest.raises(StorageFull):
        await storage.put_segment(ROWS, progress=progress)
    assert s3.objects == {}
    # Where nothing can be there, an earlier attempt's object is left alone.
    assert s3.calls.count("delete_object") == heard
    assert progress.write_begun is (heard or in_parts)
    await storage.close()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("threshold", [1, 2 * MIB])
async def test_a_log_that_is_described_wrongly_goes_unless_one_was_there_before(before, threshold):
    """The description may be of the earlier copy, which a finished segment may name."""
    s3 = StoringS3()
    storage = storage_on(s3, multipart_threshold_bytes=threshold)
    if before:
        await storage.put_segment(ROWS, progress=Progress())
    s3.answers["head_object"] = lambda **_: ok(ContentLength=MIB, ChecksumCRC32C="AAAAAA==")
    with pytest.raises(ChecksumMismatch):
        await storage.put_segment(ROWS, progress=Progress())
    assert (set(s3.objects) == {"a.log"}) is before
    await storage.close()


async def test_where_nobody_says_whether_a_log_was_there_none_is_removed():
    s3 = StoringS3()
    s3.answers["list_objects_v2"] = refuses(403, "AccessDenied")
    s3.answers["head_object"] = lambda **_: ok(ContentLength=MIB, ChecksumCRC32C="AAAAAA==")
    storage = storage_on(s3)
    with pytest.raises(ChecksumMismatch):
        await storage.put_segment(ROWS, progress=Progress())
    assert set(s3.objects) == {"a.log"}
    await storage.close()
