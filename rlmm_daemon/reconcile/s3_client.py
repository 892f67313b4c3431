"""The obstore client of the configured bucket, for the driver and for Spark tasks."""

import functools
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import botocore.session
from obstore.store import S3Store

from rlmm_daemon import wiring
from rlmm_daemon.config import Config, S3Storage
from rlmm_daemon.domain.errors import StorageNotConfigured, StorageUnavailable
from rlmm_daemon.reconcile.errors import Incomplete

_ATTEMPTS: Final = 5
_CLIENT_SECONDS: Final = 60
#: Then the chain is asked again; roles' keys live longer.
_CREDENTIALS_LAST: Final = timedelta(minutes=10)


def opened(config: Config) -> Any:
    """Return an obstore client of the configured bucket, keys read from their files.

    One client serves for a minute: making one reads the system's certificates, which takes as long
    as a request, and there may be a request for each of a hundred thousand prefixes.

    Raises:
        StorageNotConfigured: the storage is not S3.
        Incomplete: `ca_file` can't be read.
    """
    if not isinstance(config.storage, S3Storage):
        raise StorageNotConfigured("the storage is not S3")
    # By the storage alone: other sections hold tables, which no cache can be keyed by.
    return _opened(config.storage, int(time.monotonic() // _CLIENT_SECONDS))


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
            **({"root_certificate": _authority(s3.ca_file)} if s3.ca_file else {}),
        },
        "retry_config": {"max_retries": _ATTEMPTS, "retry_timeout": timedelta(seconds=60)},
    }
    if s3.endpoint:
        options["endpoint"] = s3.endpoint
    keys = wiring.s3_static_keys_of(s3)
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


def _authority(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
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
