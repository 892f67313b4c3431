"""Proofs of a quorum's members: connections by certificates, passwords, tokens, or by none."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from rlmm_daemon.adapters.quorum.authentication.mechanisms import Believer
from rlmm_daemon.adapters.quorum.authentication.passwords import Password, Users
from rlmm_daemon.adapters.quorum.authentication.principals import (
    NoPrincipal,
    Principal,
    read_member,
)
from rlmm_daemon.adapters.quorum.authentication.sasl import SaslAcceptor, SaslDialer
from rlmm_daemon.adapters.quorum.authentication.tls import MutualTls, TlsOptions, own_cluster
from rlmm_daemon.adapters.quorum.authentication.tokens import (
    TokenFile,
    TokenOptions,
    Tokens,
    read_token,
)
from rlmm_daemon.adapters.quorum.handshake import Acceptor, Dialer, Plain
from rlmm_daemon.core.raft.voters import Endpoint
from rlmm_daemon.domain.errors import ConfigError
from rlmm_daemon.domain.secret import Secret

_PASSWORD_CHARS_MAX: Final = 1024


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """How a member proves who it is; without files, nobody does."""

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    #: Of an operator, with a password.
    user: str | None = None
    password_file: str | None = None
    token_file: str | None = None
    #: In the clear, beyond loopback too.
    insecure: bool = False


class Belief(msgspec.Struct, frozen=True, kw_only=True):
    """By what clients prove who they are, other than by certificates."""

    users_file: str | None = None
    #: The public keys of who signs tokens; the three go together.
    token_keys_file: str | None = None
    token_issuer: str | None = None
    token_audience: str | None = None

    @property
    def asks_sasl(self) -> bool:
        """Whether clients have to speak SASL."""
        return self.users_file is not None or self.token_keys_file is not None


def way_of(
    proof: Proof,
    *,
    cluster_id: str | None = None,
    member: Principal | None = None,
    voter_changers: frozenset[str] = frozenset(),
    asks_clients: bool = True,
) -> Plain | MutualTls:
    """Return how connections are made; without a `cluster_id`, in that of the certificate.

    Raises:
        ConfigError: only some of the files are named, or they don't hold.
    """
    ca, certificate, key = proof.ca_file, proof.certificate_file, proof.key_file
    if ca is None and certificate is None and key is None:
        return Plain(insecure=proof.insecure)
    by_sasl = proof.password_file is not None or proof.token_file is not None
    if ca is None or (certificate is None) != (key is None) or not (certificate or by_sasl):
        raise ConfigError(
            "--ca, --certificate and --key go together; --ca alone only with a password or a token"
        )
    options = TlsOptions(
        cluster_id=cluster_id,
        ca_file=ca,
        certificate_file=certificate,
        key_file=key,
        member=member,
        voter_changers=voter_changers,
        asks_clients=asks_clients,
    )
    if cluster_id is None and certificate is not None:
        options = msgspec.structs.replace(options, cluster_id=own_cluster(options))
    return MutualTls(options)


def acceptor_of(
    way: Plain | MutualTls,
    belief: Belief,
    *,
    proof: Proof,
    cluster_id: str,
    voter_changers: frozenset[str],
    now_ms: Callable[[], int],
) -> Acceptor:
    """Return the listener's side.

    Raises:
        ConfigError: a file does not hold; or this replica would not be believed itself.
    """
    believers = _believers(belief, cluster_id)
    if not believers:
        return way
    if proof.password_file is None and proof.token_file is None:
        raise ConfigError(
            "with --users or --token-keys the other replicas ask this one, too: name its own "
            "--password-file or --token-file"
        )
    return SaslAcceptor(way, believers, now_ms, voter_changers)


def _believers(belief: Belief, cluster_id: str) -> tuple[Believer, ...]:
    users = () if belief.users_file is None else (Users(belief.users_file),)
    parts = (belief.token_keys_file, belief.token_issuer, belief.token_audience)
    if parts == (None, None, None):
        return users
    keys, issuer, audience = parts
    if keys is None or issuer is None or audience is None:
        raise ConfigError("--token-keys, --token-issuer and --token-audience go together")
    options = TokenOptions(cluster_id=cluster_id, keys_file=keys, issuer=issuer, audience=audience)
    return (*users, Tokens(options))


def dialer_of(way: Plain | MutualTls, proof: Proof, member: Principal | None = None) -> Dialer:
    """Return the other side; without a `member`, of the operator whom the proof names.

    Raises:
        ConfigError: a file does not hold, or it is not said whose it is.
    """
    password, token = proof.password_file, proof.token_file
    if password is None and token is None:
        return way
    if password is not None and token is not None:
        raise ConfigError("only one of --password-file and --token-file can be shown")
    if token is not None:
        try:
            read_token(token)
        except OSError as error:
            raise ConfigError(f"{token} can't be read: {error.strerror}") from None
        return SaslDialer(way, TokenFile(token))
    assert password is not None
    return SaslDialer(way, Password(member or _operator(proof), _password(password)))


def _operator(proof: Proof) -> Principal:
    if proof.user is None:
        raise ConfigError("--password-file needs --user, whose it is")
    try:
        return read_member(f"operator/{proof.user}")
    except NoPrincipal as error:
        raise ConfigError(f"--user: {error}") from None


def _password(path: str) -> Secret:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_PASSWORD_CHARS_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise ConfigError(f"{path} can't be read: {why}") from None
    password = text.rstrip("\r\n")
    if not password or "\n" in password or len(text) > _PASSWORD_CHARS_MAX:
        raise ConfigError(f"{path} holds no password: one line, {_PASSWORD_CHARS_MAX} characters")
    return Secret(password)


def require_allowed(way: Plain | MutualTls, at: Endpoint) -> None:
    """Refuse an address beyond loopback where nobody would prove who they are: ConfigError."""
    try:
        way.check(at.host)
    except ConfigError as error:
        if isinstance(way, MutualTls):
            raise
        raise ConfigError(
            f"{at.host} is not on loopback, and nobody would prove who they are: name --ca, "
            "--certificate and --key, or say --insecure where nobody else reaches it"
        ) from error
