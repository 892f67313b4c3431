"""Credentials for S3: keys from files, or the SDK's own chain; read anew without a restart."""

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
from botocore.exceptions import BotoCoreError
from botocore.loaders import create_loader

from rlmm_daemon.adapters.storage.s3.moments import moment
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
        #: Of the first read; signing never waits for a reload.
        self._lock = asyncio.Lock()
        self._reloading = asyncio.Lock()
        self._handed_out: ReadOnlyCredentials | None = None
        #: Raised whenever other keys are handed out than before, a refreshed role's too.
        self.generation = 0

    async def get_frozen_credentials(self) -> ReadOnlyCredentials | None:
        """Return the keys to sign with; None if the chain has none."""
        async with self._lock:
            if self._options.static_keys is not None:
                self._keys = self._keys or await _read(self._options.static_keys)
            elif self._chain is None:
                self._chain = await _load()
        return await self._handed()

    async def reload(self, since: int | None = None) -> bool:
        """Read the source anew; return whether the keys are others than those of `since`, or now.

        Raises:
            StorageUnavailable: the source can't be read; the keys stay as they are.
        """
        async with self._reloading:
            before = self.generation if since is None else since
            # Of many calls that were refused together, one reads.
            if self.generation == before:
                try:
                    await self._read_anew()
                except BotoCoreError as error:
                    text = f"the SDK's own chain of credentials: {error}"
                    raise StorageUnavailable(text, reason="no_credentials") from error
        return self.generation != before

    async def _read_anew(self) -> None:
        if self._options.static_keys is not None:
            self._keys = await _read(self._options.static_keys)
        elif (fresh := await _load()) is not None:
            self._chain = fresh
        else:
            text = "the SDK's own chain finds no credentials"
            raise StorageUnavailable(text, reason="no_credentials", retry=False)
        await self._handed()

    async def _handed(self) -> ReadOnlyCredentials | None:
        """Return what is signed with now, and notice where that changed."""
        if self._keys is not None:
            fresh = _frozen(self._keys)
        elif self._chain is not None:
            fresh = await self._chain.get_frozen_credentials()
        else:
            return None
        if fresh != self._handed_out:
            self.generation += self._handed_out is not None
            self._handed_out = fresh
        return fresh


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
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=moment)
    return session


async def _load() -> Any:
    """Return what the SDK's own chain finds, None for nothing."""
    return await create_credential_resolver(AioSession()).load_credentials()


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
