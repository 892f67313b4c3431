"""A storage that is full, also where an attempt before may have been heard."""

from typing import Any

import aiohttp
import pytest

from rlmm_daemon.adapters.storage.s3.options import MIB
from rlmm_daemon.domain.errors import StorageFull
from rlmm_daemon.ports.storage import ObjectKind, Progress
from tests.contract.storage import Buffer
from tests.unit.storage.scripted_s3 import StoringS3, ok, refusal, storage_on

ROWS = [(ObjectKind.LOG, "a.log", Buffer(bytes(MIB)))]


class Filling(StoringS3):
    """Says that it is full to the call that would show the `.log`."""

    def __init__(self, operation: str, *, heard: bool) -> None:
        """`heard`: it does that call once before, and its answer is lost."""
        super().__init__()
        self._work, self._heard = self.answers[operation], heard
        self.answers |= {operation: self._fill, "delete_object": self._delete}

    async def _fill(self, **parameters: Any) -> Any:
        if not self._heard:
            raise refusal(507, "InsufficientStorage")
        self._heard = False
        done = self._work(**parameters)
        if hasattr(done, "__await__"):
            await done
        raise aiohttp.ServerDisconnectedError

    def _delete(self, *, Key: str, **_: Any) -> Any:
        self.objects.pop(Key, None)
        return ok()


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
