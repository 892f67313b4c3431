"""Who we are to S3: keys from files, or the SDK's own chain; read anew without a restart."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from aiobotocore.credentials import (
    AioCredentialResolver,
    AioCredentials,
    create_credential_resolver,
)
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials
from botocore.loaders import create_loader

from rlmm_daemon.adapters.storage.s3.options import S3Options, StaticKeys
from rlmm_daemon.domain.errors import ConfigError, StorageUnavailable


class ReloadableCredentials(AioCredentials):  # type: ignore[misc]  # aiobotocore is not typed
    """What botocore's signer asks before each request.

    With the chain, what it found is kept (it refreshes roles by itself) until `reload`.
    """

    def __init__(self, options: S3Options) -> None:
        super().__init__("", "", method="rlmm")
        self._options = options
        self._keys: StaticKeys | None = None
        self._chain: Any = None
        self._lock = asyncio.Lock()

    async def get_frozen_credentials(self) -> ReadOnlyCredentials | None:
        """Return the keys to sign with; None if the chain has none."""
        if self._options.static_keys is not None:
            if self._keys is None:
                self._keys = await _read(self._options.static_keys)
            return _frozen(self._keys)
        async with self._lock:
            if self._chain is None:
                self._chain = await create_credential_resolver(AioSession()).load_credentials()
            if self._chain is None:
                return None
        frozen: ReadOnlyCredentials = await self._chain.get_frozen_credentials()
        return frozen

    async def reload(self) -> bool:
        """Read the source anew; return whether it has other keys than those in use.

        A source that can't be read leaves the keys as they are.
        """
        if self._options.static_keys is None:
            before, self._chain = self._chain, None
            after = await self.get_frozen_credentials()
            return before is None or after != await before.get_frozen_credentials()
        try:
            fresh = await _read(self._options.static_keys)
        except StorageUnavailable:
            return False
        changed, self._keys = fresh != self._keys, fresh
        return changed


class _Provider:
    """The only provider of our session's chain."""

    METHOD = "rlmm"
    CANONICAL_NAME = "rlmm"

    def __init__(self, credentials: ReloadableCredentials) -> None:
        self._credentials = credentials

    async def load(self) -> ReloadableCredentials:
        """Return the credentials, read or not."""
        return self._credentials


def session_with(credentials: ReloadableCredentials) -> AioSession:
    """Return a session that knows these credentials and no others."""
    session = AioSession()
    session.register_component("data_loader", _descriptions())
    resolver = AioCredentialResolver([_Provider(credentials)])
    session.register_component("credential_provider", resolver)
    return session


async def _read(static_keys: Callable[[], StaticKeys]) -> StaticKeys:
    try:
        return await asyncio.to_thread(static_keys)
    except ConfigError as error:
        # The daemon runs by now, and the files may be mended without a restart.
        raise StorageUnavailable(error.message, reason="no_credentials", retry=False) from error


@functools.cache
def _descriptions() -> Any:
    """Return botocore's loader: S3's description is parsed once per process."""
    return create_loader()


def _frozen(keys: StaticKeys) -> ReadOnlyCredentials:
    token = keys.session_token
    return ReadOnlyCredentials(
        keys.access_key_id.reveal(),
        keys.secret_access_key.reveal(),
        token.reveal() if token else None,
    )
