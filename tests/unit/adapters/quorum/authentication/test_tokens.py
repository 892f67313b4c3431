"""A quorum whose members prove who they are by tokens, and tokens that prove nothing."""

import asyncio
import base64
import json
import os
from typing import Any

import jwt
import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from rlmm_daemon.adapters.os.clock import SystemClock
from rlmm_daemon.adapters.quorum.authentication import tokens
from rlmm_daemon.adapters.quorum.authentication.mechanisms import NotProven
from rlmm_daemon.adapters.quorum.authentication.sasl import SaslAcceptor, SaslDialer
from rlmm_daemon.adapters.quorum.authentication.tokens import (
    TokenFile,
    TokenOptions,
    Tokens,
    read_token,
)
from rlmm_daemon.adapters.quorum.handshake import Plain
from rlmm_daemon.adapters.quorum.links import Link, Unreachable
from rlmm_daemon.core.raft.inputs import Peer
from rlmm_daemon.domain.errors import ConfigError
from tests.unit.adapters.quorum.authentication.test_sasl import serving, taken_as
from tests.unit.adapters.quorum.three import CLUSTER, quorum

ISSUER = "https://issuer.example"
AUDIENCE = "rlmm-quorum"
CLOCK = SystemClock()


def now() -> int:
    return CLOCK.now_ms() // 1000


class Provider:
    """An identity provider: its keys, and what it signs."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.second = ec.generate_private_key(ec.SECP256R1())

    def jwks(self, *, second: bool = True) -> str:
        of_rsa = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        of_ec = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.second.public_key()))
        keys = [of_rsa | {"kid": "first"}, *([of_ec | {"kid": "second"}] if second else [])]
        return json.dumps({"keys": keys})

    def token(self, subject: str = "2", *, key=None, algorithm="RS256", kid="first", **more) -> str:
        claims = {
            "sub": subject,
            "iss": ISSUER,
            "aud": AUDIENCE,
            "exp": now() + 600,
        } | more
        claims = {name: value for name, value in claims.items() if value is not None}
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(claims, key or self.key, algorithm, headers)

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )


@pytest.fixture(scope="module")
def provider():
    return Provider()


@pytest.fixture
def keys(tmp_path, provider):
    path = tmp_path / "jwks.json"
    path.write_text(provider.jwks())
    return path


def options(keys) -> TokenOptions:
    return TokenOptions(cluster_id=CLUSTER, keys_file=str(keys), issuer=ISSUER, audience=AUDIENCE)


def acceptor(keys, under=None) -> SaslAcceptor:
    return SaslAcceptor(
        under or Plain(), (Tokens(options(keys)),), CLOCK.now_ms, frozenset({"alice"})
    )


def dialer(tmp_path, token: str) -> SaslDialer:
    path = tmp_path / f"token-{os.urandom(4).hex()}"
    path.write_text(f"{token}\n")
    return SaslDialer(Plain(), TokenFile(str(path)))


@pytest.mark.parametrize(
    ("subject", "peer"),
    [
        ("2", Peer(id=2, may_change_voters=False)),
        (f"rlmm://{CLUSTER}/2", Peer(id=2, may_change_voters=False)),
        ("operator/alice", Peer(may_vote=False, may_change_voters=True)),
        ("operator/bob", Peer(may_vote=False, may_change_voters=False)),
    ],
)
async def test_a_token_proves_what_a_certificate_does(tmp_path, provider, keys, subject, peer):
    """The same names, and the same rights."""
    client = dialer(tmp_path, provider.token(subject))
    assert await taken_as(acceptor(keys), client) == peer


async def test_a_token_of_another_key_of_the_provider_is_believed(tmp_path, provider, keys):
    token = provider.token(key=provider.second, algorithm="ES256", kid="second")
    assert (await taken_as(acceptor(keys), dialer(tmp_path, token))).id == 2


BAD: dict[str, dict[str, Any]] = {
    "expired": {"exp": 1_000},
    "never expires": {"exp": None},
    "not yet": {"nbf": 4_000_000_000},
    "for another service": {"aud": "another"},
    "for none": {"aud": None},
    "by another issuer": {"iss": "https://another.example"},
    "by none": {"iss": None},
    "of nobody": {"sub": None},
    "of a stranger": {"subject": "root"},
    "of another cluster": {"subject": "rlmm://another/2"},
    "of an absent key": {"kid": "third"},
    "of no key": {"kid": None},
}


@pytest.mark.parametrize("bad", BAD)
async def test_a_token_that_is_not_for_this_quorum_proves_nothing(tmp_path, provider, keys, bad):
    token = provider.token(**BAD[bad])
    with structlog.testing.capture_logs() as logs, pytest.raises(Unreachable) as refused:
        await taken_as(acceptor(keys), dialer(tmp_path, token))
    assert refused.value.unproven
    assert len(logs) == 1
    for part in token.split("."):
        assert part not in f"{logs}{refused.value.__cause__!r}"


async def test_a_token_that_the_provider_did_not_sign_proves_nothing(tmp_path, provider, keys):
    """Neither another's signature, nor none, nor the public key taken for a shared secret."""
    body = base64.urlsafe_b64encode(json.dumps({"sub": "2"}).encode()).rstrip(b"=").decode()
    header = base64.urlsafe_b64encode(b'{"alg":"none","kid":"first"}').rstrip(b"=").decode()
    secret = base64.b64encode(provider.public).decode()
    for token in (
        Provider().token(),
        f"{header}.{body}.AA",
        provider.token(key=secret, algorithm="HS256"),
        provider.token()[:-8] + "AAAAAAAA",
    ):
        with pytest.raises(Unreachable):
            await taken_as(acceptor(keys), dialer(tmp_path, token))


async def test_the_only_key_is_that_of_a_token_that_names_none(tmp_path, provider):
    path = tmp_path / "one.json"
    path.write_text(provider.jwks(second=False))
    token = provider.token(kid=None)
    assert (await taken_as(acceptor(path), dialer(tmp_path, token))).id == 2


async def asking_on(link: Link) -> None:
    while True:
        await link.greet()


async def test_a_connection_lasts_no_longer_than_its_token(tmp_path, provider, keys, monkeypatch):
    """Between two requests it is closed, so that no answer is lost; asking on does not help."""
    monkeypatch.setattr(tokens, "_LEEWAY_SECONDS", 0.0)
    step = acceptor(keys)
    async with serving(step) as at:
        stream = await dialer(tmp_path, provider.token(exp=now() + 2)).dial(at)
        with pytest.raises((EOFError, OSError)):
            await asking_on(Link(stream))
        stream.abort()
        stream = await dialer(tmp_path, provider.token(exp=now() + 2)).dial(at)
        link = Link(stream)
        await link.greet()
        assert await stream.reader.read() == b""
        stream.abort()


async def test_a_quorum_with_tokens_elects_and_commits(tmp_path, provider, keys):
    def side(node_id: int):
        return acceptor(keys), dialer(tmp_path, provider.token(f"{node_id}"))

    async with quorum(tmp_path, side) as three:
        assert await three.submit() > 0
        assert three.alarms("stranger") == 0


async def test_a_new_token_is_shown_at_the_next_connection(tmp_path, provider, keys):
    path = tmp_path / "token"
    path.write_text(provider.token(exp=1_000))
    client = SaslDialer(Plain(), TokenFile(str(path)))
    with pytest.raises(Unreachable, match="expired"):
        await taken_as(acceptor(keys), client)
    path.write_text(provider.token())
    assert (await taken_as(acceptor(keys), client)).id == 2


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "s3cret", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "czNjcmV0"}]}'],
)
def test_a_file_without_public_keys_is_refused_and_not_shown(tmp_path, text):
    path = tmp_path / "jwks"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        Tokens(options(path))
    assert "s3cret" not in refused.value.message
    assert "czNjcmV0" not in refused.value.message


@pytest.mark.parametrize("text", ["", "s3cret", "a.b", "a.b.c d", "é.é.é", "a.b." + "c" * 20_000])
def test_a_file_without_a_token_is_refused_and_not_shown(tmp_path, text):
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(ConfigError, match="no signed token") as refused:
        read_token(str(path))
    assert "s3cret" not in refused.value.message


async def test_another_first_message_is_no_token(keys):
    believer = Tokens(options(keys))

    async def ask(_: bytes) -> bytes:
        raise AssertionError("one token is all")

    for first in (b"", b"n,,n=user,r=x", b"n,,\x01auth=Basic a.b.c\x01\x01", b"\xff" * 9000):
        with pytest.raises(NotProven, match="no token"):
            async with asyncio.timeout(5):
                await believer.proven(first, ask)
