"""Small objects of ours (marker, presence, lease) and their conditional writes."""

from typing import Any, Final

from crc32c import crc32c

from rlmm_daemon.adapters.storage.s3.client import Client
from rlmm_daemon.adapters.storage.s3.errors import VENDOR_ERRORS, code_of, length_told, told
from rlmm_daemon.adapters.storage.s3.reading import checksum_text
from rlmm_daemon.codec.marker import CONTROL_BYTES_MAX
from rlmm_daemon.domain.errors import Malformed
from rlmm_daemon.ports.storage import Conflict, ControlObject

#: A name for each write, so that a writer whose answer was lost knows its own again.
WRITE_TAG: Final = "rlmm-write"
_CONDITION_FAILED: Final = frozenset({"PreconditionFailed", "NoSuchKey"})


async def get(client: Client, key: str) -> ControlObject | None:
    """Return a small object whole, or None if it is certainly absent.

    Raises:
        Malformed: it is too large to be one of ours.
    """
    found = await client.call("GetObject", lambda: _read(client, key), key=key)
    return None if found is None else found[0]


async def put(client: Client, key: str, data: bytes, *, if_etag: str | None, tag: str) -> str:
    """Write only over the named version (None: only if absent) and return the new etag.

    A lost answer makes the repeated write meet its own object: the `tag` that it carries, or on a
    storage that keeps no metadata the bytes, tell it from somebody else's.

    Raises:
        Conflict: somebody else was faster.
    """
    condition = {"IfNoneMatch": "*"} if if_etag is None else {"IfMatch": if_etag}

    async def work() -> str | None:
        try:
            return await _write(client, key, data, tag, condition=condition)
        except VENDOR_ERRORS as error:
            if code_of(error) not in _CONDITION_FAILED:
                raise
        present = await _read(client, key)
        if present is None or not _is_own(present, data, tag):
            return None
        return present[0].etag

    etag = await client.call("PutObject", work, gate=client.writes, key=key, size=len(data))
    if etag is None:
        raise Conflict(key)
    return etag


async def overwrite(client: Client, key: str, data: bytes, *, tag: str) -> None:
    """Write whatever is there."""
    await client.call(
        "PutObject",
        lambda: _write(client, key, data, tag, condition={}),
        gate=client.writes,
        key=key,
        size=len(data),
    )


async def _write(
    client: Client, key: str, data: bytes, tag: str, *, condition: dict[str, str]
) -> str:
    answer = await client.s3.put_object(
        **client.where(key),
        **client.as_written(),
        **condition,
        Body=data,
        Metadata={WRITE_TAG: tag},
        ChecksumCRC32C=checksum_text(crc32c(data)),
    )
    return told(answer, "ETag")


async def _read(client: Client, key: str) -> tuple[ControlObject, dict[str, str]] | None:
    try:
        answer: Any = await client.s3.get_object(**client.where(key))
    except VENDOR_ERRORS as error:
        if code_of(error) == "NoSuchKey":
            return None
        raise
    try:
        if length_told(answer) > CONTROL_BYTES_MAX:
            raise Malformed(f"{key} has more than {CONTROL_BYTES_MAX} bytes")
        data = await answer["Body"].raw_stream.read()
    finally:
        answer["Body"].close()
    when = answer.get("LastModified")
    modified_ms = None if when is None else int(when.timestamp() * 1000)
    control = ControlObject(data=data, etag=told(answer, "ETag"), modified_ms=modified_ms)
    return control, answer.get("Metadata", {})


def _is_own(present: tuple[ControlObject, dict[str, str]], data: bytes, tag: str) -> bool:
    control, metadata = present
    if WRITE_TAG in metadata:
        return metadata[WRITE_TAG] == tag
    return control.data == data
