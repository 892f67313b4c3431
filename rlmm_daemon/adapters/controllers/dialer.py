"""Connections to a cluster's controllers, with Kafka's own kinds of TLS and SASL.

The server's certificate names its host here, as Kafka's do; what proves a member of a quorum of
daemons is another matter (`adapters.quorum.authentication`).
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from rlmm_daemon.adapters.kafka.connection.security import Security
from rlmm_daemon.adapters.quorum import handshake
from rlmm_daemon.adapters.quorum.authentication import scram
from rlmm_daemon.adapters.quorum.authentication.mechanisms import Speaker, Step
from rlmm_daemon.adapters.quorum.authentication.sasl import SaslDialer
from rlmm_daemon.adapters.quorum.handshake import Dialer, Stream
from rlmm_daemon.core.raft.voters import Endpoint

_PLAIN: Final = "PLAIN"
_DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class KafkaDialer:
    """Dials as the settings say that were read last."""

    def __init__(self, load_security: Callable[[], Security]) -> None:
        self._load_security = load_security
        self._dialer: Dialer | None = None

    async def reload(self) -> None:
        """Read certificates and secrets again, for the connections to come.

        Raises:
            ConfigError: something is not usable; what was in force stays so.
        """
        self._dialer = _dialer_of(await asyncio.to_thread(self._load_security))

    async def dial(self, endpoint: Endpoint, expected: int | None = None) -> Stream:
        """Connect and log in; errors as of `Dialer`."""
        if self._dialer is None:
            await self.reload()
        assert self._dialer is not None, "it was loaded"
        return await self._dialer.dial(endpoint, expected)


def _dialer_of(security: Security) -> Dialer:
    under = _Named(security.tls)
    return under if security.mechanism is None else SaslDialer(under, _speaker_of(security))


def _speaker_of(security: Security) -> Speaker:
    return _Plain(security) if security.mechanism == _PLAIN else _Scram(security)


class _Named:
    """Plaintext, or TLS whose server proves its host's name."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls

    async def dial(self, endpoint: Endpoint, expected: int | None = None) -> Stream:  # noqa: ARG002 - no id is in Kafka's certificates
        return await handshake.dialed(endpoint, self._tls)


class _Password:
    """A user and a password, whatever the mechanism."""

    def __init__(self, security: Security) -> None:
        self.mechanism = security.mechanism or ""
        self._user = security.username or ""
        self._secret = security.password
        self.refused = f"a wrong user or password ({self._user})"

    def _password(self) -> str:
        return self._secret.reveal() if self._secret else ""


class _Plain(_Password):
    """RFC 4616: the password itself, so that TLS has to be beneath."""

    async def prove(self, ask: Step) -> None:
        await ask(f"\0{self._user}\0{self._password()}".encode())


class _Scram(_Password):
    """RFC 5802, with either of Kafka's digests."""

    async def prove(self, ask: Step) -> None:
        # 5.1 there: these two would end the name.
        name = self._user.replace("=", "=3D").replace(",", "=2C")
        client = scram.Client(name, self._password(), digest=_DIGESTS[self.mechanism])
        proof = await asyncio.to_thread(client.proof, await ask(client.first))
        client.check(await ask(proof))
