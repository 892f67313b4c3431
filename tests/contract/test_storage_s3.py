from typing import Any

import pytest

from rlmm_daemon.adapters.storage.s3 import S3Storage
from tests.contract.storage import StorageContract
from tests.support.s3_world import S3World, needs_s3, s3_server

pytestmark = needs_s3
__all__ = ["s3_server"]


class Wide(S3World):
    """More calls at once: one promise takes a thousand objects."""

    async def new(self, owner: str = "1", **options: Any) -> S3Storage:
        return await super().new(owner, **({"parts_in_flight_max": 16} | options))


class TestS3Storage(StorageContract):
    transport = "aiobotocore"

    @pytest.fixture
    async def harness(self, s3_server):
        world = Wide(s3_server, transport=self.transport)
        yield world
        await world.aclose()


class TestS3StorageThroughObstore(TestS3Storage):
    transport = "obstore"
