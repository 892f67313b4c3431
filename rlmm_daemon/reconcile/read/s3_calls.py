"""The S3 calls that obstore has not: old versions, tags, and keys of any shape. Blocking.

Versions and tags are extras of a run: where a server does not have them, or the daemon's keys may
not, the run goes on without, and `Unsupported` says which it was.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import botocore.session
from botocore.config import Config as BotoConfig
from botocore.exceptions import BotoCoreError, ClientError

from rlmm_daemon.adapters.storage.s3.client import REGION_DEFAULT
from rlmm_daemon.codec.marker import PRESENCE_PREFIX
from rlmm_daemon.config import Config, S3Storage
from rlmm_daemon.domain.errors import StorageNotConfigured
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.wiring import adapters

_ATTEMPTS: Final = 5
#: What a server answers that has not the call, or to whom the call is not allowed.
_UNSUPPORTED: Final = frozenset(
    {"AccessDenied", "NotImplemented", "MethodNotAllowed", "XNotImplemented", "InvalidArgument"}
)
Row = Mapping[str, Any]


class Unsupported(Exception):
    """This server has not the call, or these keys may not."""

    def __init__(self, call: str, code: str) -> None:
        super().__init__(f"{call}: {code}")
        self.denied = code == "AccessDenied"


class S3Calls:
    """A bucket's client for the few calls."""

    def __init__(self, config: Config) -> None:
        s3 = config.storage
        if not isinstance(s3, S3Storage):
            raise StorageNotConfigured("the storage is not S3")
        keys = adapters.s3_static_keys_of(s3)
        credentials: dict[str, str] = {}
        if keys is not None:
            found = keys()
            credentials = {
                "aws_access_key_id": found.access_key_id.reveal(),
                "aws_secret_access_key": found.secret_access_key.reveal(),
            }
            if found.session_token is not None:
                credentials["aws_session_token"] = found.session_token.reveal()
        self._where = {"Bucket": s3.bucket}
        if s3.expected_bucket_owner:
            self._where["ExpectedBucketOwner"] = s3.expected_bucket_owner
        self._s3: Any = botocore.session.get_session().create_client(
            "s3",
            region_name=s3.region or REGION_DEFAULT,
            endpoint_url=s3.endpoint,
            verify=s3.ca_file,
            config=BotoConfig(
                s3={"addressing_style": s3.addressing},
                connect_timeout=s3.connect_timeout_ms / 1000,
                read_timeout=s3.read_timeout_ms / 1000,
                # Slows down by itself where the server asks for it.
                retries={"total_max_attempts": _ATTEMPTS, "mode": "adaptive"},
                proxies={"http": s3.proxy, "https": s3.proxy} if s3.proxy else None,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
            **credentials,
        )

    def require_owner(self) -> None:
        """Make sure that the bucket is the expected owner's, which every call here names.

        Another account's of the same name would look like one that lost everything.

        Raises:
            Incomplete: it is not, or the server did not answer.
        """
        try:  # with what the job lists anyway
            self._call("list_objects_v2", Prefix=PRESENCE_PREFIX, MaxKeys=1)
        except Unsupported as error:
            raise Incomplete(f"the bucket, as storage.expected_bucket_owner's: {error}") from error

    def is_versioned(self, note: Callable[[str], object] = lambda _: None) -> bool:
        """Return whether the bucket may hold old versions; False where they can't be asked for.

        `note` is told if these keys may not.

        Raises:
            Incomplete: the server did not answer.
        """
        try:
            answer = self._call("get_bucket_versioning")
            if answer.get("Status") not in {"Enabled", "Suspended"}:
                return False
            self._call("list_object_versions", MaxKeys=1)
        except Unsupported as error:
            if error.denied:
                note(f"old versions were not looked for: the daemon's keys may not ({error})")
            return False
        return True

    # Pages are turned by hand: botocore's paginator takes one that says there is more, and not
    # where, for the last, and a listing that was cut must never look whole.

    def versions(self, prefix: str, *, after: str | None, shallow: bool) -> Iterator[Sequence[Row]]:
        """Yield pages of all versions below a prefix, behind a key; `shallow`: directly below.

        Raises:
            Incomplete: the server did not tell all.
        """
        marks = {"KeyMarker": after} if after else {}
        if shallow:
            marks["Delimiter"] = "/"
        while True:
            page = self._listing("list_object_versions", Prefix=prefix, **marks)
            yield page.get("Versions", ())
            if not page.get("IsTruncated"):
                return
            marks["KeyMarker"] = page["NextKeyMarker"]
            if page.get("NextVersionIdMarker"):
                marks["VersionIdMarker"] = page["NextVersionIdMarker"]

    def objects(
        self, prefix: str, *, after: str | None = None, shallow: bool = False
    ) -> Iterator[Row]:
        """Yield answers to a listing of a prefix, behind a key; `shallow`: directly below.

        Raises:
            Incomplete: the server did not tell all.
        """
        marks = {"StartAfter": after} if after else {}
        if shallow:
            marks["Delimiter"] = "/"
        while True:
            page = self._listing("list_objects_v2", Prefix=prefix, **marks)
            yield page
            if not page.get("IsTruncated"):
                return
            marks["ContinuationToken"] = page["NextContinuationToken"]

    def _listing(self, name: str, **arguments: str) -> Any:
        try:
            return self._call(name, **arguments)
        except Unsupported as error:
            prefix = arguments["Prefix"]
            raise Incomplete(f"listing {prefix!r} was cut short: {error}") from error

    def tag(self, key: str, name: str, value: str | None) -> None:
        """Set one tag of an object, or take it away; its others stay.

        Raises:
            Unsupported: no tags here.
            Incomplete: the server did not answer.
        """
        present = self._call("get_object_tagging", Key=key).get("TagSet", ())
        others = [each for each in present if each["Key"] != name]
        wanted = others if value is None else [*others, {"Key": name, "Value": value}]
        self._call("put_object_tagging", Key=key, Tagging={"TagSet": wanted})

    def _call(self, name: str, **arguments: Any) -> Any:
        try:
            return getattr(self._s3, name)(**self._where, **arguments)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if code in _UNSUPPORTED or status == 501:  # noqa: PLR2004 - not implemented
                raise Unsupported(name, code) from error
            raise Incomplete(f"{name} of {arguments.get('Key', '')!r}: {error}") from error
        except BotoCoreError as error:
            raise Incomplete(f"{name}: {error}") from error
