"""An S3 that answers each operation as a test says: what a real server would not say on request."""

import random
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from rlmm_daemon.adapters.storage.s3 import S3Options, S3Storage

Answer = Callable[..., Any]


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


def storage_on(s3: ScriptedS3, **options: Any) -> S3Storage:
    """Return a storage over this S3; its back-offs are the real ones, so keep failures few."""
    storage = S3Storage(
        S3Options(bucket="b", **options), owner="1", rng=random.Random(7), sweeps=True
    )
    storage._client._s3 = s3
    return storage
