"""GETs through obstore, which needs less processor time than aiobotocore: the default.

Its own retries are off, and what it raises becomes what the SDK would raise, so that the rim, the
gate, the counters and the table of errors are the same. It trusts whom the SDK trusts and asks the
proxy that the SDK asks. It does not show a `Retry-After` (our own back-off it is), nor the region
that a redirect names in its headers. What it can't do, aiobotocore does: keys with `.` or `..` as a
part, and servers whose TLS OpenSSL takes and it does not.
"""

import asyncio
import importlib
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import structlog
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ReadTimeoutError,
    SSLError,
)

from rlmm_daemon import __version__
from rlmm_daemon.adapters.storage.s3.answers import Answer, SdkTransport
from rlmm_daemon.adapters.storage.s3.client import REGION_DEFAULT, Client
from rlmm_daemon.adapters.storage.s3.options import BYTES_PER_SECOND_MIN, S3Options
from rlmm_daemon.domain.errors import StorageUnavailable

#: It holds what comes until it is so much, as each piece wakes our loop; more costs memory.
PIECE_BYTES: Final = 1024 * 1024
#: Of a whole answer, which obstore insists on; we bound it by its pace instead.
_ANSWER_LASTS: Final = timedelta(days=1)
_STATUS: Final = re.compile(r"Server returned non-2xx status code: (\d{3})[^:]*:?")
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_REGION: Final = re.compile(r"<Region>([a-z0-9-]{1,64})</Region>")
_REDIRECT: Final = 301
#: Of rustls: a certificate, the server's refusal of all it offers, its own of what the server does.
_NO_TLS: Final = re.compile(r"\b(InvalidCertificate|AlertReceived|PeerIncompatible)\(")

#: Names and addresses.
_EVERYWHERE: Final = "*,0.0.0.0/0,::/0"

logger = structlog.get_logger(__name__)


class _Made(NamedTuple):
    """A client for one generation of keys, and the library that it is of."""

    keys: ReadOnlyCredentials
    store: Any
    get: Any
    #: An object that is absent is a FileNotFoundError, a key that it can't take a ValueError.
    raised: tuple[type[Exception], ...]


class ObstoreTransport:
    """One obstore client for each generation of keys, made when something is read."""

    def __init__(self, client: Client) -> None:
        self._client, self._options = client, client.options
        self._sdk = SdkTransport(client)
        self._made: _Made | None = None
        self._making = asyncio.Lock()
        #: Since aiobotocore got an answer over a TLS that obstore refuses.
        self._sdk_alone = False

    async def get(self, key: str, start: int, end: int, etag: str) -> Answer:
        """Ask; see `answers.Transport`."""
        if self._sdk_alone or not _nameable(key):
            return await self._sdk.get(key, start, end, etag)
        keys = await self._client.credentials.get_frozen_credentials()
        if keys is None:
            raise NoCredentialsError
        wanted: dict[str, Any] = {"range": (start, end)}
        if etag:
            wanted["if_match"] = etag
        made = await self._for(keys)
        try:
            found = await made.get(made.store, key, options=wanted)
        except made.raised as error:
            if _NO_TLS.search(str(error)) is None:
                # Not the cause: its text repeats the server's page, which may name an access key.
                raise translated(error) from None
        else:
            return _Answer(found, made.raised)
        return await self._over_other_tls(key, start, end, etag)

    def close(self) -> None:
        """Let the client go, and its idle connections with it."""
        self._made = None

    async def _over_other_tls(self, key: str, start: int, end: int, etag: str) -> Answer:
        """Ask through the SDK, whose errors count then; its answer says who is asked from now on.

        OpenSSL takes a self-signed certificate as its own authority, and older ciphers.
        """
        answer = await self._sdk.get(key, start, end, etag)
        if not self._sdk_alone:
            self._sdk_alone = True
            logger.warning(
                "segments are read through aiobotocore: "
                "obstore refuses the certificate or the ciphers of the server",
                endpoint=self._options.endpoint,
            )
        return answer

    async def _for(self, keys: ReadOnlyCredentials) -> _Made:
        async with self._making:
            if self._made is None or self._made.keys != keys:
                # The region's, the environment's or the configured one: uploads go there too.
                address = address_of(self._options, self._client.s3.meta.endpoint_url)
                # The first import takes a tenth of a second, and authorities are read from a file.
                self._made = await asyncio.to_thread(self._new, keys, address)
            return self._made

    def _new(self, keys: ReadOnlyCredentials, address: str) -> _Made:
        obstore = importlib.import_module("obstore")
        exceptions = importlib.import_module("obstore.exceptions")
        store = importlib.import_module("obstore.store").S3Store(
            self._options.bucket,
            # Given so, nothing of the environment is mixed with them.
            credential_provider=lambda: {
                "access_key_id": keys.access_key,
                "secret_access_key": keys.secret_key,
                "token": keys.token,
                "expires_at": None,
            },
            **store_settings(
                self._options,
                address,
                authorities=self._client.http.authorities,
                proxy=self._client.http.proxy_for(address),
            ),
        )
        return _Made(keys, store, obstore.get_async, (exceptions.BaseError, OSError, ValueError))


def _nameable(key: str) -> bool:
    """Return whether a key is a path to obstore."""
    return not {"", ".", ".."} & set(key.split("/"))


def address_of(options: S3Options, endpoint: str) -> str:
    """Return where the SDK, given this endpoint by whatever decides it, finds the bucket.

    By name where that is asked for, or AWS's own way, unless no certificate would cover the name.
    """
    parts, bucket = urlsplit(endpoint.rstrip("/")), options.bucket
    is_aws = (parts.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
    wanted = options.addressing == "virtual" or (options.addressing == "auto" and is_aws)
    if wanted and ("." not in bucket or parts.scheme == "http"):
        return f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path}"
    return f"{parts.scheme}://{parts.netloc}{parts.path}/{bucket}"


def store_settings(
    options: S3Options, address: str, *, authorities: str, proxy: str | None
) -> dict[str, Any]:
    """Return obstore's words for ours: nothing is left to its defaults that we have a key for.

    Blocks, to read the authorities' file. No `proxy`: none is asked, whatever the environment says.
    """
    more: dict[str, Any] = {}
    if address.startswith("https://") or (proxy or "").startswith("https://"):
        more["root_certificate"] = _read(authorities)
    if options.expected_bucket_owner:
        # Signed with the rest.
        more["default_headers"] = {"x-amz-expected-bucket-owner": options.expected_bucket_owner}
    return {
        "region": options.region or REGION_DEFAULT,
        # As its name is in the address already, or stands in its path.
        "virtual_hosted_style_request": True,
        # Its word for the one that goes before what the environment says.
        "aws_endpoint_url_s3": address,
        "skip_signature": False,
        "client_options": {
            "allow_http": address.startswith("http://"),
            "allow_invalid_certificates": False,
            "disable_system_certificates": True,
            # Told none, it would look for one in the environment, by rules of its own.
            "proxy_url": proxy or address,
            "proxy_excludes": "" if proxy else _EVERYWHERE,
            "connect_timeout": timedelta(seconds=options.connect_timeout),
            "read_timeout": timedelta(seconds=options.read_timeout),
            "timeout": _ANSWER_LASTS,
            "user_agent": f"rlmm-daemon/{__version__}",
            **more,
        },
        # One attempt is one request: repeats are the rim's.
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(0)},
    }


def _read(authorities: str) -> bytes:
    try:
        return Path(authorities).read_bytes()
    except OSError as error:
        raise StorageUnavailable(
            f"the authorities in {authorities} can't be read: {error.strerror}",
            reason="tls",
            retry=False,
        ) from error


class _Answer:
    def __init__(self, found: Any, raised: tuple[type[Exception], ...]) -> None:
        etag = found.meta["e_tag"]
        if not etag:
            # A body of somebody else's.
            raise aiohttp.ClientPayloadError("the answer lacks ETag")
        self.etag: str = etag
        self.first, last = found.range
        self.length: int = last - self.first
        self.total: int = found.meta["size"]
        self._raised = raised
        self._stream = found.stream(min_chunk_size=PIECE_BYTES)

    async def piece(self, patience: float) -> bytes | None:
        try:
            # It keeps what came until it has a whole piece.
            async with asyncio.timeout(patience + PIECE_BYTES / BYTES_PER_SECOND_MIN):
                return bytes(await anext(self._stream))
        except StopAsyncIteration:
            return b""
        except TimeoutError:
            return None
        except self._raised as error:
            raise translated(error) from None

    def close(self) -> None:
        self._stream = None


def translated(error: Exception) -> Exception:
    """Return what the SDK raises for the same: with S3's code and the status, and no more."""
    text = str(error)
    if (answered := _STATUS.search(text)) is not None:
        return _refusal(int(answered[1]), text[answered.end() :])
    return next((make() for words, make in _BY_WORDS if words in text), BotoCoreError())


def _refusal(status: int, page: str) -> Exception:
    code, region = _CODE.search(page), _REGION.search(page)
    told = {"Code": code[1] if code else str(status), "Region": region[1] if region else ""}
    answer: Any = {"Error": told, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}}}
    refusal: Exception = ClientError(answer, "GetObject")
    return refusal


def _cut() -> Exception:
    return aiohttp.ClientPayloadError("the answer was cut, or is none of S3's")


def _other_range() -> Exception:
    return StorageUnavailable("got another range than was asked for", reason="wrong_range")


#: obstore's word -> the error; in order, as an HttpError says more than that.
_BY_WORDS: Final[Sequence[tuple[str, Callable[[], Exception]]]] = (
    ("redirect without LOCATION", lambda: _refusal(_REDIRECT, "")),
    (
        "InvalidCertificate(",
        lambda: SSLError(endpoint_url="", error="CERTIFICATE_VERIFY_FAILED"),
    ),
    ("kind: Timeout", lambda: ReadTimeoutError(endpoint_url="")),
    ("UnexpectedRange {", _other_range),
    ("HttpError {", _cut),
    ("source: Header {", _cut),
    # A 200: somebody else's page, or a server that knows no ranges.
    ("source: NotPartial", _cut),
)
