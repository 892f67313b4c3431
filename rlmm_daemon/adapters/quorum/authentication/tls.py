"""Mutual TLS of a quorum: one authority, and a certificate that names each member.

Host names mean nothing here: a replica may move, and stays itself. Files are read again when they
changed; connections that are open keep what they had.
"""

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from rlmm_daemon.adapters.quorum import handshake
from rlmm_daemon.adapters.quorum.authentication.principals import (
    NoPrincipal,
    Principal,
    read_cluster,
    read_uris,
)
from rlmm_daemon.adapters.quorum.authentication.watched import Watched
from rlmm_daemon.adapters.quorum.handshake import Stream, Unproven
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.secret import Secret

#: Flights of a handshake with itself; TLS 1.3 takes three.
_FLIGHTS_MAX: Final = 10


#: Whoever has proven nothing yet.
_NOBODY: Final = Peer(may_vote=False, may_change_voters=False)


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member's proof lies, and whom it takes for what."""

    #: None: whichever the authority's members name; of one that only dials.
    cluster_id: str | None
    #: PEM, of the only authority of this quorum; while it is replaced, of both.
    ca_file: str
    #: PEM, with intermediate authorities behind it; None: of one that only dials, where SASL
    #: proves who it is.
    certificate_file: str | None
    key_file: str | None
    key_password: Secret | None = None
    #: The name that its certificate has to have; None: any of this cluster.
    member: Principal | None = None
    #: Names of operators that may add and remove voters.
    voter_changers: frozenset[str] = frozenset()
    #: False: clients prove themselves by SASL, on top; without it, they may do nothing.
    asks_clients: bool = True
    handshake_seconds: float = 5.0


class _Contexts(msgspec.Struct, frozen=True):
    """Both sides' settings from files that fit each other."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class MutualTls:
    """Acceptor and dialer of a quorum's member: there is no way without a certificate."""

    def __init__(self, options: TlsOptions, now: Callable[[], float] = time.monotonic) -> None:
        """Read the files.

        Raises:
            ConfigError: they can't be read, or don't prove what they have to.
        """
        self._options = options
        paths = (options.ca_file, options.certificate_file, options.key_file)
        named = tuple(path for path in paths if path is not None)
        self._contexts = Watched(named, partial(_load, options), now)

    def check(self, host: str) -> None:
        """Any address will do; ConfigError: there is no certificate to show there."""
        if self._options.certificate_file is None:
            raise ConfigError(f"{host}: a listener of a quorum needs a certificate")

    async def accept(self, connection: socket.socket) -> Stream:
        """Return the stream of a member of this quorum; errors as of `Acceptor`."""
        contexts = await self._contexts.current()
        stream = await handshake.accepted(
            connection, contexts.server, seconds=self._options.handshake_seconds
        )
        if not self._options.asks_clients:
            return msgspec.structs.replace(stream, peer=_NOBODY)
        try:
            peer = self._principal(stream).peer(self._options.voter_changers)
        except Unproven:
            stream.abort()
            raise
        return msgspec.structs.replace(stream, peer=peer)

    async def dial(self, endpoint: Endpoint, expected: int | None = None) -> Stream:
        """Connect to a node of this quorum, and prove who this is; errors as of `Dialer`."""
        contexts = await self._contexts.current()
        stream = await handshake.dialed(
            endpoint, contexts.client, seconds=self._options.handshake_seconds
        )
        try:
            member = self._principal(stream)
            if member.node is None:
                raise Unproven(f"{member} answers there, and is no replica")
            if expected is not None and member.node != expected:
                raise Unproven(f"replica {member.node} answers there, not {expected}")
        except Unproven:
            stream.abort()
            raise
        return msgspec.structs.replace(stream, peer=member.peer(()))

    def _principal(self, stream: Stream) -> Principal:
        tls = stream.writer.get_extra_info("ssl_object")
        return _principal(tls.getpeercert(), self._options.cluster_id)


def own_cluster(options: TlsOptions) -> str:
    """Return the cluster that one's own certificate names.

    Raises:
        ConfigError: it names none, or the files don't hold.
    """
    own = _own_certificate(_built(options), options)
    names = (own or {}).get("subjectAltName", ())
    try:
        return read_cluster([name for kind, name in names if kind == "URI"])
    except NoPrincipal as error:
        raise ConfigError(f"{options.certificate_file}: {error}") from None


def _built(options: TlsOptions) -> _Contexts:
    server = _context(options, ssl.PROTOCOL_TLS_SERVER)
    server.num_tickets = 0  # nobody resumes, so that each handshake proves anew
    if not options.asks_clients:
        server.verify_mode = ssl.CERT_NONE
    return _Contexts(server, _context(options, ssl.PROTOCOL_TLS_CLIENT))


def _own_certificate(contexts: _Contexts, options: TlsOptions) -> Mapping[str, Any]:
    try:
        return _greet_itself(contexts)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{options.certificate_file} would be refused by this quorum's members, by "
            f"{options.ca_file}: {getattr(error, 'verify_message', error.reason)}"
        ) from None


def _load(options: TlsOptions) -> _Contexts:
    """Return settings that hold: with them, this member would take itself for what it is."""
    contexts = _built(options)
    if options.certificate_file is None:
        return contexts
    own = _own_certificate(contexts, options)
    try:
        member = _principal(own, options.cluster_id)
    except Unproven as error:
        raise ConfigError(f"{options.certificate_file}: {error.message}") from None
    if options.member is not None and member != options.member:
        raise ConfigError(f"{options.certificate_file} is of {member}, not of {options.member}")
    return contexts


def _context(options: TlsOptions, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=options.ca_file)
    except OSError as error:
        raise ConfigError(f"{options.ca_file}: {_why(error)}") from None
    if options.certificate_file is None:
        return context
    phrase = options.key_password
    try:
        context.load_cert_chain(
            options.certificate_file,
            options.key_file,
            # Without one, OpenSSL would ask the terminal for an encrypted key's passphrase.
            password=phrase.reveal() if phrase else "",
        )
    except OSError as error:
        raise ConfigError(
            f"{options.certificate_file} with {options.key_file}: {_why(error)}"
        ) from None
    return context


def _greet_itself(contexts: _Contexts) -> Mapping[str, Any]:
    """Return its own certificate, once a client with it and a server with it took each other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = contexts.server.wrap_bio(to_server, to_client, server_side=True)
    client = contexts.client.wrap_bio(to_client, to_server)
    for _ in range(_FLIGHTS_MAX):
        if all([_is_done(client), _is_done(server)]):
            return client.getpeercert() or {}
    raise AssertionError("a handshake ends, well or not")


def _is_done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _principal(certificate: Mapping[str, Any] | None, cluster_id: str | None) -> Principal:
    names = (certificate or {}).get("subjectAltName", ())
    uris = [name for kind, name in names if kind == "URI"]
    try:
        return read_uris(uris, read_cluster(uris) if cluster_id is None else cluster_id)
    except NoPrincipal as error:
        raise Unproven(str(error)) from None


def _why(error: OSError) -> str:
    """Say what is wrong with a file; OpenSSL's own words, "PEM lib", help nobody."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the certificate is of another key"
    return "not readable as PEM, or the key's passphrase is wrong or missing"
