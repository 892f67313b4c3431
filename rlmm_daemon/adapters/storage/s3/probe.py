"""Probe of the rights in a bucket, on a canary of its own, and the policy that would give them."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from botocore.exceptions import UnknownRegionError
from botocore.loaders import Loader
from botocore.regions import EndpointResolver
from crc32c import crc32c

from rlmm_daemon.adapters.storage.s3 import control, deleting, listing, objects
from rlmm_daemon.adapters.storage.s3.client import Client
from rlmm_daemon.adapters.storage.s3.errors import told
from rlmm_daemon.adapters.storage.s3.leftovers import Leftovers
from rlmm_daemon.adapters.storage.s3.objects import RangeReader
from rlmm_daemon.adapters.storage.s3.reading import checksum_text
from rlmm_daemon.domain.errors import RlmmError, StorageUnavailable
from rlmm_daemon.ports.storage import Conflict, ProbeResult

CANARY: Final = b"canary of rlmm-daemon\n"
CHECKSUM: Final = checksum_text(crc32c(CANARY))
#: Of no object's version.
NOBODYS_ETAG: Final = f'"{"0" * 32}"'

#: Reasons of a storage that is not there: nobody's policy.
NO_ANSWER: Final = frozenset({"timeout", "connection"})

#: Step -> the IAM actions it needs; on the bucket itself where it begins with `s3:List`... or is
#: about uploads of the whole bucket.
ACTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "list": ("s3:ListBucket",),
        "put": ("s3:PutObject",),
        "head": ("s3:GetObject",),
        "range get": ("s3:GetObject",),
        "conditional put": ("s3:PutObject", "s3:GetObject"),
        "multipart": ("s3:PutObject",),
        "complete": ("s3:PutObject", "s3:GetObject"),
        "list uploads": ("s3:ListBucketMultipartUploads",),
        "abort": ("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"),
        "delete": ("s3:DeleteObject",),
    }
)
_WRITING: Final = "write "
_ON_BUCKET: Final = frozenset({"s3:ListBucket", "s3:ListBucketMultipartUploads"})


class Probe:
    """Tries each step; a step whose forerunner failed tells that error instead of its own."""

    def __init__(
        self, client: Client, leftovers: Leftovers, reader: RangeReader, *, name: str
    ) -> None:
        """`name` tells daemons apart, so that their canaries never meet."""
        self._client, self._leftovers, self._reader = client, leftovers, reader
        self._key = f"_rlmm/probe/{name}"
        self._multipart_key, self._whole_key = f"{self._key}.multipart", f"{self._key}.whole"
        self._upload_id = ""

    async def run(self, keys: Collection[str] = ()) -> ProbeResult:
        """Return each step's error, None where it is allowed. Leaves nothing if it may delete.

        What lies under `keys`, or does not, stays as it is.
        """
        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "list": lambda: listing.reachable(self._client, self._key),
            "put": lambda: control.overwrite(self._client, self._key, CANARY, tag="probe"),
            "head": self._head,
            "range get": self._range,
            "conditional put": self._conditional,
            "multipart": self._multipart,
            "complete": self._complete,
            "list uploads": self._list_uploads,
            "abort": self._abort,
            "delete": self._delete,
        }
        assert steps.keys() == ACTIONS.keys(), "each step has its actions"
        results: dict[str, RlmmError | None] = {}
        silent = False
        for name, step in steps.items():
            if silent:
                results[name] = StorageUnavailable("not tried: the storage does not answer")
                continue
            try:
                await step()
                results[name] = None
            except RlmmError as error:
                results[name] = error
                # Each of the others would take as long as this first one.
                silent = name == "list" and error.fields.get("reason") in NO_ANSWER
        unsafe = await self._unsafe(results["conditional put"]) if keys else None
        for key in keys:
            results[writing(key)] = unsafe or await self._writing(key)
        return ProbeResult(results=results)

    async def _unsafe(self, conditional: RlmmError | None) -> RlmmError | None:
        """Return why a write under a condition can't be tried on keys that are in use.

        Not every storage refuses If-Match where there is no object.
        """
        why = conditional and conditional.message
        if why is None:
            key = f"{self._key}.absent"
            try:
                await self._refused("If-Match", NOBODYS_ETAG, key)
            except RlmmError as error:
                why = error.message
                await deleting.delete(self._client, [key])
        if why is None:
            return None
        return StorageUnavailable(
            f"not tried, for the storage might write it: {why}", reason="not_tried"
        )

    async def _writing(self, key: str) -> RlmmError | None:
        """Ask for a write over a version that nobody has; rights are judged before conditions."""
        try:
            await self._refused("If-Match", NOBODYS_ETAG, key)
        except RlmmError as error:
            return error
        return None

    async def _head(self) -> None:
        await self._described(self._key)

    async def _described(self, key: str) -> None:
        """Make sure that the storage tells of the canary what was written."""
        client = self._client
        found = await client.call("HeadObject", lambda: objects.head(client, key), key=key)
        if found is None or found.size != len(CANARY):
            raise StorageUnavailable("the canary that was written is not there")
        if found.crc32c != crc32c(CANARY):
            raise StorageUnavailable(
                f"the storage does not report the CRC-32C of {key}, so no copy could be verified",
                reason="no_checksums",
            )

    async def _range(self) -> None:
        pieces = [piece async for piece in self._reader.fetch(self._key, 3, 9)]
        if b"".join(pieces) != CANARY[3:9]:
            raise StorageUnavailable("a range of the canary is not what was written")

    async def _conditional(self) -> None:
        """Make sure of both conditions: a marker is made under one and changed under the other."""
        await self._refused("If-None-Match", None, self._key)
        await self._refused("If-Match", NOBODYS_ETAG, self._key)

    async def _refused(self, header: str, etag: str | None, key: str) -> None:
        try:
            await control.put(self._client, key, b"x", if_etag=etag, tag=header)
        except Conflict:
            return
        raise StorageUnavailable(
            f"the storage ignores {header}: daemons could overwrite each other's marker",
            reason="no_conditional_writes",
        )

    async def _multipart(self) -> None:
        """Leave an upload behind, to be listed and aborted."""
        self._upload_id = await self._created(self._multipart_key)
        await self._part(self._multipart_key, self._upload_id)

    async def _complete(self) -> None:
        """Store an object in parts and see what is told of it: large segments come that way."""
        client, key = self._client, self._whole_key
        upload_id = await self._created(key)
        try:
            etag = await self._part(key, upload_id)
            part = {"PartNumber": 1, "ETag": etag, "ChecksumCRC32C": CHECKSUM}
            await client.call(
                "CompleteMultipartUpload",
                lambda: client.s3.complete_multipart_upload(
                    **client.where(key),
                    UploadId=upload_id,
                    MultipartUpload={"Parts": [part]},
                    ChecksumCRC32C=CHECKSUM,
                    ChecksumType="FULL_OBJECT",
                ),
                gate=client.writes,
                key=key,
            )
        except RlmmError:
            await self._leftovers.remove(key, upload_id)
            raise
        await self._described(key)

    async def _created(self, key: str) -> str:
        client = self._client

        async def create() -> str:
            answer = await client.s3.create_multipart_upload(
                **client.where(key),
                **client.as_written(),
                ChecksumAlgorithm="CRC32C",
                ChecksumType="FULL_OBJECT",
            )
            return told(answer, "UploadId")

        return await client.call("CreateMultipartUpload", create, gate=client.writes, key=key)

    async def _part(self, key: str, upload_id: str) -> str:
        client = self._client

        async def part() -> str:
            answer = await client.s3.upload_part(
                **client.where(key),
                UploadId=upload_id,
                PartNumber=1,
                Body=CANARY,
                ChecksumCRC32C=CHECKSUM,
            )
            return told(answer, "ETag")

        return await client.call("UploadPart", part, gate=client.writes, key=key)

    async def _list_uploads(self) -> None:
        async for page in listing.uploads(self._client, self._key):
            if not self._upload_id or any(row.upload_id == self._upload_id for row in page):
                return
        if self._upload_id:
            raise StorageUnavailable(
                "the storage does not list incomplete uploads, so none can be swept"
            )

    async def _abort(self) -> None:
        if not self._upload_id:
            raise StorageUnavailable("not tried: there was no upload to abort")
        await self._leftovers.abort(self._multipart_key, self._upload_id)

    async def _delete(self) -> None:
        written = [self._key, self._whole_key]
        for error in (await deleting.delete(self._client, written)).values():
            if error is not None:
                raise error


def writing(key: str) -> str:
    """Return the step that tries whether a key may be written."""
    return f"{_WRITING}{key}"


def _actions_of(step: str) -> tuple[str, ...]:
    return ACTIONS["conditional put"] if step.startswith(_WRITING) else ()


def policy(
    bucket: str,
    steps: Iterable[str],
    *,
    region: str | None = None,
    kms_key_id: str | None = None,
    tags: bool = False,
) -> dict[str, Any]:
    """Return the smallest IAM policy that allows these steps of a probe, on objects with `tags`."""
    arn = f"arn:{_partition(region or '')}"
    wanted = {action for step in steps for action in ACTIONS.get(step, _actions_of(step))}
    if tags and "s3:PutObject" in wanted:
        wanted.add("s3:PutObjectTagging")
    actions = sorted(wanted)
    statements = []
    for actions_of, resource in (
        ([a for a in actions if a in _ON_BUCKET], f"{arn}:s3:::{bucket}"),
        ([a for a in actions if a not in _ON_BUCKET], f"{arn}:s3:::{bucket}/*"),
    ):
        if actions_of:
            statements.append({"Effect": "Allow", "Action": actions_of, "Resource": resource})
    if kms_key_id and "s3:PutObject" in actions:
        allowed = ["kms:GenerateDataKey", "kms:Decrypt"]
        # A key may be named by its id alone; a policy wants more.
        named = kms_key_id.startswith("arn:")
        key = kms_key_id if named else f"{arn}:kms:{region or '*'}:*:key/{kms_key_id}"
        statements.append({"Effect": "Allow", "Action": allowed, "Resource": key})
    return {"Version": "2012-10-17", "Statement": statements}


def _partition(region: str) -> str:
    """Return which of AWS's separate worlds a region is in; each has names of its own."""
    regions = EndpointResolver(Loader().load_data("endpoints"))
    try:
        return str(regions.get_partition_for_region(region))
    except UnknownRegionError:  # none, or another server's own
        return "aws"
