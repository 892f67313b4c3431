"""The obstore client of the configured bucket, for the driver and for Spark tasks."""

import functools
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import botocore.session
from obstore.store import S3Store

from rlmm_daemon.config import Config, S3Storage
from rlmm_daemon.domain.errors import StorageNotConfigured, StorageUnavailable
from rlmm_daemon.reconcile.errors import Incomplete
from rlmm_daemon.reconcile.read.s3_calls import S3Calls
from rlmm_daemon.wiring import adapters

_ATTEMPTS: Final = 5
_CLIENT_SECONDS: Final = 60
#: Then the chain is asked again; roles' keys live longer.
_CREDENTIALS_LAST: Final = timedelta(minutes=10)
#: The minute in which S3 last said whose bucket it is.
_owned: dict[S3Storage, int] = {}


def opened(config: Config) -> Any:
    """Return an obstore client of the configured bucket, keys read from their files.

    One client serves for a minute: making one reads the system's certificates, which takes as long
    as a request, and there may be a request for each of a hundred thousand prefixes.

    Raises:
        StorageNotConfigured: the storage is not S3.
        Incomplete: `ca_file` can't be read, or the bucket is not the expected owner's.
    """
    s3, minute = config.storage, int(time.monotonic() // _CLIENT_SECONDS)
    if not isinstance(s3, S3Storage):
        raise StorageNotConfigured("the storage is not S3")
    # obstore does not sign such a header of a listing, so S3 would refuse it.
    if s3.expected_bucket_owner is not None and _owned.get(s3) != minute:
        S3Calls(config).require_owner()
        _owned[s3] = minute
    # By the storage alone: other sections hold tables, which no cache can be keyed by.
    return _opened(s3, minute)


@functools.lru_cache(maxsize=4)
def _opened(s3: S3Storage, minute: int) -> Any:
    del minute
    region = s3.region or "us-east-1"
    options: dict[str, Any] = {
        "region": region,
        "virtual_hosted_style_request": s3.addressing == "virtual",
        "client_options": {
            "allow_http": (s3.endpoint or "").startswith("http://"),
            "timeout": timedelta(milliseconds=s3.call_timeout_ms),
            **({"proxy_url": s3.proxy} if s3.proxy else {}),
            **(_trusting(s3.ca_file) if s3.ca_file else {}),
        },
        "retry_config": {"max_retries": _ATTEMPTS, "retry_timeout": timedelta(seconds=60)},
    }
    if s3.endpoint:
        options["endpoint"] = s3.endpoint
    keys = adapters.s3_static_keys_of(s3)
    if keys is None:
        return S3Store(s3.bucket, credential_provider=_chain, **options)
    found = keys()
    token = {"session_token": found.session_token.reveal()} if found.session_token else {}
    return S3Store(
        s3.bucket,
        access_key_id=found.access_key_id.reveal(),
        secret_access_key=found.secret_access_key.reveal(),
        **token,
        **options,
    )


def _trusting(file: str) -> dict[str, Any]:
    """Return what trusts these authorities and not the system's, as the daemon does."""
    try:
        return {"root_certificate": Path(file).read_bytes(), "disable_system_certificates": True}
    except OSError as error:
        raise Incomplete(f"storage.ca_file: {error}") from error


def _chain() -> dict[str, Any]:
    """Return what the SDK's own chain finds now: environment, files, instance role.

    Raises:
        StorageUnavailable: it finds nothing.
    """
    found = botocore.session.get_session().get_credentials()
    if found is None:
        raise StorageUnavailable("the SDK's chain finds no credentials on this machine")
    frozen = found.get_frozen_credentials()
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
        "expires_at": datetime.now(tz=UTC) + _CREDENTIALS_LAST,
    }
