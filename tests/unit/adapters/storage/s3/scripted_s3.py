"""An S3 that answers each operation as a test says: what a real server would not say on request."""

import random
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError
from crc32c import crc32c

from rlmm_daemon.adapters.storage.s3 import S3Options, S3Storage
from rlmm_daemon.adapters.storage.s3.rates import TokenBucket
from rlmm_daemon.adapters.storage.s3.reading import checksum_text

Answer = Callable[..., Any]
#: Reads too are the script's.
SCRIPTED: dict[str, Any] = {"bucket": "b", "transport": "aiobotocore"}


class ScriptedS3:
    """botocore's client: each operation is a function of its parameters, or of none."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.calls: list[str] = []

    def __getattr__(self, operation: str) -> Any:
        async def call(**parameters: Any) -> Any:
            self.calls.append(operation)
            found = self.answers[operation](**parameters)
            return await found if hasattr(found, "__await__") else found

        return call


def ok(**fields: Any) -> dict[str, Any]:
    return {"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {}}, **fields}


def refusal(status: int, code: str, operation: str = "Operation") -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": "no"},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}},
        },
        operation,
    )


def refuses(status: int, code: str) -> Answer:
    def answer(**_: Any) -> Any:
        raise refusal(status, code)

    return answer


def storage_on(s3: ScriptedS3 | None, *, sweeps: bool = False, **options: Any) -> S3Storage:
    """Return a storage over this S3, None: the real one.

    Its back-offs are the real ones, so keep failures few.
    """
    storage = S3Storage(
        S3Options(**SCRIPTED | options), owner="1", rng=random.Random(7), sweeps=sweeps
    )
    storage._client._s3 = s3
    return storage


class StoringS3(ScriptedS3):
    """Takes uploads and describes them as S3 does.

    `on_part` is waited for before each part, `link` for each piece of one.
    """

    def __init__(self) -> None:
        #: Key -> checksum and size of what was sent.
        self.objects: dict[str, tuple[int, int]] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.on_part: Callable[[str, int], Any] = _nothing
        self.link = TokenBucket()
        super().__init__(
            create_multipart_upload=lambda Key, **_: ok(UploadId=Key),
            upload_part=self._upload_part,
            complete_multipart_upload=self._complete,
            abort_multipart_upload=lambda **_: ok(),
            list_parts=refuses(404, "NoSuchUpload"),
            put_object=self._put,
            head_object=self._head,
            delete_object=self._delete,
            list_objects_v2=self._list,
        )

    def _delete(self, *, Key: str, **_: Any) -> Any:
        self.objects.pop(Key, None)
        return ok()

    def _list(self, *, Prefix: str, MaxKeys: int = 1000, **_: Any) -> Any:
        found = [{"Key": key} for key in self.objects if key.startswith(Prefix)]
        return ok(Contents=found[:MaxKeys])

    async def _upload_part(self, *, Key: str, PartNumber: int, Body: Any, **_: Any) -> Any:
        await self.on_part(Key, PartNumber)
        self.parts.setdefault(Key, {})[PartNumber] = await self._received(Body)
        return ok(ETag=f"{PartNumber}")

    async def _received(self, body: Any) -> bytes:
        found = b""
        async for piece in body:
            await self.link.take(len(piece))
            found += piece
        return found

    def _complete(self, *, Key: str, **_: Any) -> Any:
        self._keep(Key, b"".join(body for _, body in sorted(self.parts.pop(Key).items())))
        return ok()

    async def _put(self, *, Key: str, Body: Any, **_: Any) -> Any:
        self._keep(Key, Body and await self._received(Body))
        return ok()

    def _keep(self, key: str, body: bytes) -> None:
        self.objects[key] = (crc32c(body), len(body))

    def _head(self, *, Key: str, **_: Any) -> Any:
        crc32c, size = self.objects[Key]
        return ok(ContentLength=size, ChecksumCRC32C=checksum_text(crc32c))


async def _nothing(key: str, number: int) -> None:
    del key, number
