import pytest

from tests.contract.storage import StorageContract
from tests.support.s3_world import S3World, needs_s3, s3_server

pytestmark = needs_s3
__all__ = ["s3_server"]


class TestS3Storage(StorageContract):
    @pytest.fixture
    async def harness(self, s3_server):
        world = S3World(s3_server)
        yield world
        await world.aclose()
