"""Table of the answers of S3 and its client stack, and what each means here.

`judge` is the only place where a vendor's error becomes ours. The code decides, not the status: a
bare 404 may be a proxy, a wrong path or a missing account; only NoSuchKey says that an object is
gone. A 503 may be a throttle or a fault; both ask for less.
"""

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import aiohttp
import msgspec
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004 - botocore's name
    ConnectTimeoutError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    SSLError,
)

from rlmm_daemon.domain.errors import ObjectMissing, RlmmError, StorageFull, StorageUnavailable

#: What a call to the client stack may raise. aiohttp's own come past botocore's retry layer.
VENDOR_ERRORS: Final = (ClientError, BotoCoreError, aiohttp.ClientError, TimeoutError, OSError)


class Remedy(enum.Enum):
    """What may help."""

    #: Somebody has to act; the same call would fail again.
    NONE = "none"
    AGAIN = "again"
    #: Again, later, and fewer at once.
    SLOWER = "slower"
    #: Again, if the credentials' source has others by now.
    RELOAD = "reload"


class Translated(msgspec.Struct, frozen=True, kw_only=True):
    """Our error for one of theirs."""

    error: RlmmError
    remedy: Remedy
    #: The server's own wish, in seconds.
    retry_after: float | None = None
    #: The call may have taken effect all the same.
    uncertain: bool = False

    @property
    def reason(self) -> str:
        """One word for programs."""
        return str(self.error.fields.get("reason", self.error.wire_name()))


class _Row(msgspec.Struct, frozen=True):
    reason: str
    remedy: Remedy
    text: str


_DENIED: Final = _Row("denied", Remedy.NONE, "access denied")
_NO_BUCKET: Final = _Row("no_bucket", Remedy.NONE, "the bucket does not exist")
_REGION: Final = _Row("wrong_region", Remedy.NONE, "the bucket is in another region")
_SKEW: Final = _Row("clock_skew", Remedy.NONE, "this machine's clock is off; S3 refuses its calls")
_EXPIRED: Final = _Row("expired_credentials", Remedy.RELOAD, "the credentials have expired")
_KEYS: Final = _Row("bad_credentials", Remedy.RELOAD, "the credentials are not accepted")
_NO_KEYS: Final = _Row("no_credentials", Remedy.NONE, "no credentials were found")
_NO_ANSWER_FOR_KEYS: Final = _Row(
    "no_credentials", Remedy.AGAIN, "the credentials could not be fetched"
)
_SLOW: Final = _Row("throttled", Remedy.SLOWER, "the storage asks for fewer calls")
_FAULT: Final = _Row("server_error", Remedy.AGAIN, "the storage failed")
_TRANSIT: Final = _Row("damaged_in_transit", Remedy.AGAIN, "the bytes were damaged on their way")
_RACE: Final = _Row("raced", Remedy.AGAIN, "another write of the same object is in progress")
_FULL: Final = _Row("full", Remedy.NONE, "the storage is full")
_KMS: Final = _Row("kms", Remedy.NONE, "the key of the encryption can't be used")
_ARCHIVED: Final = _Row("archived", Remedy.NONE, "the object is archived; restore it first")
_NOT_THERE: Final = _Row("bare_404", Remedy.NONE, "404 without NoSuchKey: no such object or path?")
_GONE_UPLOAD: Final = _Row("no_upload", Remedy.NONE, "the multipart upload is gone")
_CONDITION: Final = _Row("precondition", Remedy.NONE, "the object is another one by now")
_REFUSED: Final = _Row("refused", Remedy.NONE, "the storage refuses the call")
_NOT_MADE: Final = _Row("not_implemented", Remedy.NONE, "the storage does not know this call")
_SILENT: Final = _Row("timeout", Remedy.AGAIN, "no answer in time")
_CONNECTION: Final = _Row("connection", Remedy.AGAIN, "the connection failed")
_TLS: Final = _Row("tls", Remedy.NONE, "the server's certificate is not trusted")

_CODES: Final[Mapping[_Row, str]] = MappingProxyType(
    {
        _DENIED: "AccessDenied AllAccessDisabled AccountProblem Forbidden",
        _NO_BUCKET: "NoSuchBucket",
        _REGION: """PermanentRedirect TemporaryRedirect Redirect AuthorizationHeaderMalformed
            IllegalLocationConstraintException""",
        _SKEW: "RequestTimeTooSkewed RequestExpired",
        _EXPIRED: "ExpiredToken ExpiredTokenException TokenRefreshRequired",
        _KEYS: """InvalidAccessKeyId SignatureDoesNotMatch InvalidToken InvalidSecurity NotSignedUp
            XAdminUserNotFound""",
        _SLOW: """SlowDown SlowDownRead SlowDownWrite ServiceUnavailable Throttling
            ThrottlingException RequestLimitExceeded TooManyRequests BandwidthLimitExceeded""",
        _NOT_MADE: "NotImplemented",
        _FAULT: "InternalError InternalFailure ServerError",
        _SILENT: "RequestTimeout RequestTimeoutException",
        _TRANSIT: """BadDigest InvalidDigest IncompleteBody XAmzContentChecksumMismatch
            XAmzContentSHA256Mismatch""",
        _RACE: "OperationAborted ConditionalRequestConflict",
        _FULL: "QuotaExceeded QuotaExceededException XMinioStorageFull InsufficientStorage",
        _KMS: "KMS.DisabledException KMS.NotFoundException KMS.KMSInvalidStateException",
        _ARCHIVED: "InvalidObjectState",
        _GONE_UPLOAD: "NoSuchUpload",
        _CONDITION: "PreconditionFailed",
    }
)
_BY_CODE: Final[Mapping[str, _Row]] = MappingProxyType(
    {code: row for row, codes in _CODES.items() for code in codes.split()}
)
_BY_STATUS: Final[Mapping[int, _Row]] = MappingProxyType(
    {
        301: _REGION,
        307: _REGION,
        401: _KEYS,
        403: _DENIED,
        404: _NOT_THERE,
        408: _SILENT,
        412: _CONDITION,
        429: _SLOW,
        501: _NOT_MADE,
        503: _SLOW,
        507: _FULL,
    }
)
#: In order: a timeout is a connection error too.
_BY_KIND: Final[Sequence[tuple[tuple[type[BaseException], ...], _Row]]] = (
    ((NoCredentialsError, PartialCredentialsError), _NO_KEYS),
    ((CredentialRetrievalError,), _NO_ANSWER_FOR_KEYS),
    ((TimeoutError, ReadTimeoutError, ConnectTimeoutError), _SILENT),
    ((ConnectionError, HTTPClientError, aiohttp.ClientError, OSError), _CONNECTION),
)
_SERVER_FAULTS: Final = 500
_RETRY_AFTER_MAX: Final = 60.0


def code_of(error: BaseException) -> str:
    """Return S3's error code, `404` where only a status came, `` for no answer of S3's."""
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: BaseException) -> int:
    """Return the HTTP status, 0 without one."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def judge(error: BaseException, call: str, *, bucket: str, key: str = "") -> Translated:
    """Return our error and what may help. `call` is S3's name of the operation.

    `fields["reason"]` is one word for programs; `retry` is False where only a person can help.
    Nothing of the request's headers, so no secret, is repeated.
    """
    if isinstance(error, RlmmError):
        return Translated(error=error, remedy=Remedy.NONE)
    if code_of(error) == "NoSuchKey":
        missing = ObjectMissing(f"{key} is not in the storage", key=key)
        return Translated(error=missing, remedy=Remedy.NONE)
    row = _row(error)
    text = f"{call} in bucket {bucket!r}: {row.text}{_detail(error)}"
    fields: dict[str, Any] = {"reason": row.reason, "call": call}
    if row.remedy is Remedy.NONE:
        fields["retry"] = False
    if row is _REGION and (region := _region(error)):
        fields["region"] = region
        text += f"; its region is {region}"
    kind = StorageFull if row is _FULL else StorageUnavailable
    return Translated(
        error=kind(text, **fields),
        remedy=row.remedy,
        retry_after=_retry_after(error),
        uncertain=row in {_SILENT, _CONNECTION, _FAULT},
    )


def told(answer: Mapping[str, Any], name: str) -> str:
    """Return what an answer must hold; a 200 without it is no answer of S3's, so try again."""
    value = answer.get(name)
    if not value:
        raise aiohttp.ClientPayloadError(f"the answer lacks {name}")
    return str(value)


def length_told(answer: Mapping[str, Any]) -> int:
    """Return the length of an answer's body; one without it is none of S3's, so try again."""
    value = answer.get("ContentLength")
    if value is None:
        raise aiohttp.ClientPayloadError("the answer lacks ContentLength")
    return int(value)


def _row(error: BaseException) -> _Row:
    if isinstance(error, ClientError):
        return _answered(error)
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return _TLS
    return next((row for kinds, row in _BY_KIND if isinstance(error, kinds)), _REFUSED)


def _answered(error: ClientError) -> _Row:
    row = _BY_CODE.get(code_of(error))
    if row is not None:
        return row
    if code_of(error).startswith("KMS."):
        return _KMS
    status = status_of(error)
    row = _BY_STATUS.get(status)
    return row or (_FAULT if status >= _SERVER_FAULTS else _REFUSED)


def _detail(error: BaseException) -> str:
    if isinstance(error, ClientError):
        return f" ({status_of(error)} {code_of(error)})"
    return f" ({type(error).__name__})"


def _headers(error: BaseException) -> Mapping[str, str]:
    if not isinstance(error, ClientError):
        return {}
    found: Mapping[str, str] = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return found


def _region(error: BaseException) -> str:
    assert isinstance(error, ClientError), "a redirect is an answer"
    told: dict[str, Any] = dict(error.response.get("Error", {}))
    return str(told.get("Region") or _headers(error).get("x-amz-bucket-region", ""))


def _retry_after(error: BaseException) -> float | None:
    """Return the header in seconds; a date, or nonsense, counts as none."""
    text = _headers(error).get("retry-after", "")
    return min(float(text), _RETRY_AFTER_MAX) if text.isdigit() else None
