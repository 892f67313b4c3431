"""Deletes in batches, with an outcome for each key: absent is success, a partial failure is not.

What an answer does not name is not taken for deleted: it is looked for.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import aiohttp
from botocore.exceptions import ClientError

from rlmm_daemon.adapters.storage.s3.client import Client
from rlmm_daemon.adapters.storage.s3.errors import (
    VENDOR_ERRORS,
    Remedy,
    Translated,
    code_of,
    judge,
    status_of,
)
from rlmm_daemon.adapters.storage.s3.objects import head
from rlmm_daemon.domain.errors import ObjectMissing, RlmmError, StorageUnavailable

#: What one DeleteObjects takes.
DELETE_KEYS_MAX: Final = 1_000
NO_CONTENT: Final = 204
NOT_IMPLEMENTED: Final = 501


async def delete(client: Client, keys: Collection[str]) -> Mapping[str, RlmmError | None]:
    """Delete objects, the `.log` of each segment before its companions; an outcome for each key."""
    outcome: dict[str, RlmmError | None] = {}
    logs = [key for key in keys if key.endswith(".log")]
    others = [key for key in keys if not key.endswith(".log")]
    for group in (logs, others):
        for first in range(0, len(group), DELETE_KEYS_MAX):
            outcome |= await _delete_batch(client, group[first : first + DELETE_KEYS_MAX])
    return {key: outcome[key] for key in keys}


async def _delete_batch(client: Client, keys: Sequence[str]) -> dict[str, RlmmError | None]:
    """Delete at most 1,000 keys; those that the storage may do later are asked for again."""
    outcome: dict[str, RlmmError | None] = {}
    left = list(keys)
    #: What no answer named, neither as deleted nor as failed.
    unnamed: set[str] = set()

    async def work() -> None:
        nonlocal left
        objects = [{"Key": key} for key in left]
        with client.late_deletes.sent(left):
            answer = await client.s3.delete_objects(
                **client.where(), Delete={"Objects": objects, "Quiet": False}
            )
        rows = {str(row.get("Key")): row for row in answer.get("Errors", [])}
        deleted = {str(row.get("Key")) for row in answer.get("Deleted", [])}
        if not rows.keys() | deleted <= set(keys):
            raise aiohttp.ClientPayloadError("the answer names a key that was not asked for")
        unnamed.update(set(left) - rows.keys() - deleted)
        outcome.update({key: _outcome(client, key, rows.get(key)) for key in left})
        remedies = {key: _judged(client, rows[key]).remedy for key in left if key in rows}
        left = [key for key, remedy in remedies.items() if remedy is not Remedy.NONE]
        if left:
            slower = [key for key in left if remedies[key] is Remedy.SLOWER]
            raise _error(rows[(slower or left)[0]])

    try:
        await client.call("DeleteObjects", work, gate=client.writes)
    except RlmmError as error:
        if getattr(error.__cause__, "response", None) and (
            status_of(error.__cause__ or error) == NOT_IMPLEMENTED
        ):
            return {key: await _delete_one(client, key) for key in keys}
        # Those that an answer settled are settled; of the others none is known to be gone.
        return {key: outcome.get(key, error) for key in keys} | await _seen(client, unnamed)
    return outcome | await _seen(client, unnamed)


async def _seen(client: Client, keys: Collection[str]) -> dict[str, RlmmError | None]:
    """Return the outcome of deletes that were answered without a word on these keys."""
    return {key: await _absence(client, key) for key in keys}


async def _absence(client: Client, key: str) -> RlmmError | None:
    try:
        found = await client.call("HeadObject", lambda: head(client, key), key=key)
    except ObjectMissing:
        return None
    except RlmmError as error:
        return error
    if found is None:
        return None
    return StorageUnavailable(
        f"{key} in bucket {client.options.bucket!r}: the answer to its delete does not name it, "
        "and it is still there",
        reason="not_deleted",
        call="DeleteObjects",
    )


async def _delete_one(client: Client, key: str) -> RlmmError | None:
    async def work() -> None:
        try:
            with client.late_deletes.sent([key]):
                answer = await client.s3.delete_object(**client.where(key))
        except VENDOR_ERRORS as error:
            if code_of(error) != "NoSuchKey":
                raise
            return
        if answer["ResponseMetadata"]["HTTPStatusCode"] != NO_CONTENT:
            raise aiohttp.ClientPayloadError("not the answer to a delete")

    try:
        await client.call("DeleteObject", work, gate=client.writes, key=key)
    except ObjectMissing:
        return None
    except RlmmError as error:
        return error
    return None


def _outcome(client: Client, key: str, row: Any) -> RlmmError | None:
    if row is None or row.get("Code") == "NoSuchKey":
        return None
    text = f"DeleteObject of {key} in bucket {client.options.bucket!r}"
    return StorageUnavailable(
        f"{text}: {row.get('Message', '')} ({row.get('Code', '')})",
        **_judged(client, row).error.fields,
    )


def _judged(client: Client, row: Any) -> Translated:
    return judge(_error(row), "DeleteObject", bucket=client.options.bucket)


def _error(row: Any) -> ClientError:
    """Return a key's failure, told inside a 200, as if it had been the answer."""
    return ClientError({"Error": {"Code": row.get("Code", "")}}, "DeleteObjects")
